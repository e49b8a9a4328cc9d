"""Nodes reach only what a node needs: nobody can register a key or run an app at the proxy. Real processes."""

import http.client
import os
import shutil
import ssl
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from federations import deployment, processes_of, wait_until, write_network
from fedoptax._files import read_json
from fedoptax.deploy.keys import make_keys, write_keys
from fedoptax.deploy.local import LocalFederation
from fedoptax.deploy.proxy import METHODS
from network_attacks import proxy

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx (Debian: nginx-light)"),
]
TASK = {"name": "digits", "model": "logistic", "num_clients": 1}
CLIENT = """from pathlib import Path

from fedoptax.deploy.flower import client_app


Path({marker!r}).touch()
app = client_app()
"""


def ask(work: Path, port: int, path: str, method: str = "POST") -> int:
    """The status of a request with the CA alone."""
    context = ssl.create_default_context(cafile=str(work / "keys" / "ca.crt"))
    with closing(http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)) as connection:
        connection.request(method, path, b"", {"Content-Type": "application/protobuf"})
        with connection.getresponse() as answer:
            return answer.status


def test_address_and_ca_let_nobody_register_run_or_stop(tmp_path):
    marker, home = tmp_path / "marker", tmp_path / "fresh-home"
    write_keys(tmp_path / "own", make_keys(1))
    given = deployment("fedadam", task=TASK, rounds=1, cohort_size=1, wait_limit=60.0, out=str(tmp_path / "run"))
    package = write_network(tmp_path, given, 1, "altered")
    (package / "client_app.py").write_text(CLIENT.format(marker=str(marker)))
    with LocalFederation(tmp_path, 1, time_limit=400) as federation, proxy(tmp_path, federation.port) as port:
        federation.nodes[0].terminate()
        federation.nodes[0].wait()
        federation.start_node(0, port=port)
        log = tmp_path / "nodes" / "0" / "log.txt"
        wait_until(lambda: "SuperNode ID" in log.read_text(), 90, "the node at the proxy")

        home.mkdir()
        link = f'[superlink.x]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{tmp_path / "keys" / "ca.crt"}"\n'
        (home / "config.toml").write_text(link)
        public = str(tmp_path / "own" / "node-0.pub")
        for command in (["supernode", "register", public, "x"], ["run", str(tmp_path / "app"), "x"], ["stop", "1", "x"],
                        ["list", "x"], ["supernode", "list", "x"]):  # fmt: skip
            flwr = [str(Path(sys.executable).with_name("flwr")), *command]
            ended = subprocess.run(
                flwr, env={**os.environ, "FLWR_HOME": str(home)}, capture_output=True, text=True, timeout=90
            )
            assert ended.returncode != 0 and "403" in ended.stdout + ended.stderr, (command, ended)
        for path in ("/v1/control/start-run", "/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/runtime/x",
                     "/v1/fleet/../control/list-nodes", "/v1/fleet/%2e%2e/control/list-nodes", "/docs", "/",
                     "//v1/control/list-nodes", "/v1/fleet/pull-messages/../../control/list-nodes"):  # fmt: skip
            assert ask(tmp_path, port, path) == 403, path
        for method in METHODS:
            assert ask(tmp_path, port, f"/v1/fleet/{method}") == 401, method  # Flower's answer: no key has signed it
            assert ask(tmp_path, port, f"/v1/fleet/{method}", "GET") == 403
        assert ask(tmp_path, federation.port, "/v1/control/list-nodes") == 200, "the operator's, on the loopback"
        assert not marker.exists() and "key" not in (tmp_path / "nginx.log").read_text()

        federation.run(tmp_path / "app", tmp_path / "run.toml", tmp_path / "log.txt", lambda: None)
        assert marker.exists()  # the operator's app does run at the node, through the proxy
        assert read_json(tmp_path / "run" / "summary.json")["status"] == "completed"
    wait_until(lambda: not processes_of(tmp_path), 10, "the processes end")
