"""A real HTTP server on the loopback for tests of downloads: it knows ranges, and misbehaves on request."""

import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Asked:
    """One request: the file, its Range and If-Range, and how many bytes of content were sent, or tried to be."""

    name: str
    range: str | None
    if_range: str | None
    sent: int = 0


class FileServer:
    """What is served, and what was asked for.

    Attributes:
      files: name -> content.
      faults: name -> words that change how it is served: `"no ranges"`, `"cut N"` (the connection ends after N
        bytes, once), `"drop"` (it ends before the answer), `"redirect NAME"` or `"redirect URL"`, `"status N"`,
        `"no length"`, `"wrong range"`, `"declare N"` bytes of length, `"no version"`.
      etags: name -> ETag; a file without one has a date, unless its faults say `"no version"`.
      requests: in the order in which they came.
    """

    def __init__(self):
        self.files, self.faults, self.etags, self.requests = {}, {}, {}, []
        self.url = ""

    def sent(self):
        return [asked.sent for asked in self.requests]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server, name = self.server.content, self.path.lstrip("/")
        fault = server.faults.get(name, "")
        self.close_connection = True
        self.asked = Asked(name, self.headers["Range"], self.headers["If-Range"])
        server.requests.append(self.asked)
        with suppress(OSError):  # the client may have gone
            self.answer(server, name, fault)

    def answer(self, server, name, fault):
        if "drop" in fault:
            return
        if match := re.search(r"redirect (\S+)", fault):
            target = match[1] if ":" in match[1] else f"{server.url}{match[1]}"
            return self.head(302, {"Location": target, "Content-Length": 0})
        if match := re.search(r"status (\d+)", fault):
            return self.head(int(match[1]), {"Content-Length": 0})
        if name not in server.files:
            return self.head(404, {"Content-Length": 0})
        self.serve(server, name, fault)

    def serve(self, server, name, fault):
        data = server.files[name]
        version = self.version(server, name, fault)
        start = self.start(version, fault)
        headers = dict(version)
        if start and start >= len(data):
            return self.head(416, {"Content-Range": f"bytes */{len(data)}", "Content-Length": 0})
        if start:
            first = start + 7 if "wrong range" in fault else start
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        body = data[start:]
        if "no length" not in fault:
            match = re.search(r"declare (\d+)", fault)
            headers["Content-Length"] = match[1] if match else len(body)
        self.head(206 if start else 200, headers)
        if match := re.search(r"cut (\d+)", fault):
            body = body[: int(match[1])]
            server.faults[name] = fault.replace(match[0], "")
        for at in range(0, len(body), 1000):
            self.asked.sent += len(body[at : at + 1000])
            self.wfile.write(body[at : at + 1000])

    def version(self, server, name, fault):
        if name in server.etags:
            return {"ETag": server.etags[name]}
        return {} if "no version" in fault else {"Last-Modified": "Tue, 01 Jan 2019 00:00:00 GMT"}

    def start(self, version, fault):
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        condition = self.headers["If-Range"]
        if not asked or "no ranges" in fault or (condition and condition not in version.values()):
            return 0
        return int(asked[1])

    def head(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *args):
        pass


@contextmanager
def serving():
    content = FileServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.content = content
    content.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield content
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
