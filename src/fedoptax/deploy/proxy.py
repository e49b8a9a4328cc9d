"""The configuration of nginx as the door for nodes: TLS, and of Flower's methods only those that a node needs.

A SuperLink serves nodes and operators on one port and, in Flower's free version, does not ask who an operator is. So it
listens on the loopback interface, and nodes come through the proxy.
"""

METHODS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab", "pull-messages", "push-messages",
    "pull-object", "push-object", "confirm-message-received",
)  # fmt: skip
"""Those of Flower's Fleet API that a SuperNode with a registered key calls."""


def make_proxy(port: int = 8443, superlink_port: int = 8000) -> str:
    """Return an `nginx.conf` for the folder of `deploy init`.

    The address at the SuperLink is built from the name of an allowed method, not from what was asked for, so no other
    spelling can reach another method. Bodies pass through without a file on the way.
    """
    return f"""\
# The proxy for nodes, made by fedoptax deploy init. In this folder: nginx -e stderr -p . -c nginx.conf
daemon off;
pid nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path nginx.tmp; proxy_temp_path nginx.tmp;
    fastcgi_temp_path nginx.tmp; uwsgi_temp_path nginx.tmp; scgi_temp_path nginx.tmp;
    upstream superlink {{ server 127.0.0.1:{superlink_port}; keepalive 16; }}
    server {{
        listen {port} ssl;
        ssl_certificate keys/server.crt;
        ssl_certificate_key keys/server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
        client_max_body_size 64m;
        location ~ ^/v1/fleet/({"|".join(METHODS)})$ {{
            limit_except POST {{ deny all; }}
            proxy_pass https://superlink/v1/fleet/$1;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering off;
            proxy_max_temp_file_size 0;
            proxy_read_timeout 300s;
            proxy_ssl_name localhost;
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate keys/ca.crt;
        }}
        location / {{ return 403; }}
    }}
}}
"""
