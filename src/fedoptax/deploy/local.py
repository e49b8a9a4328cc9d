"""A real Flower federation as processes of this machine: a SuperLink and SuperNodes, with TLS and node authentication.

```
WORK/app, WORK/keys      as `app` and `keys` write them
WORK/flower/             Flower's home of the command line: where the SuperLink is, and its CA
WORK/superlink/          the SuperLink's home and log
WORK/nodes/I/            a SuperNode's home, log and client state
```
Everything listens on the loopback interface only and ends with the context.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import tomli_w

from fedoptax._files import write_atomically
from fedoptax.deploy.wire import REASON, quote
from fedoptax.errors import RunError, check_int, check_positive
from fedoptax.experiments.signals import handled

ADDRESS = "127.0.0.1"
NAME = "local"  # of the SuperLink, in Flower's configuration
GRACE = 10.0  # seconds between asking processes to end and killing them
Process = subprocess.Popen[bytes]


@dataclass
class LocalFederation:
    """A federation on this machine, which runs within the context; leaving it ends all its processes."""

    work: Path  # its folder, with `app` and `keys` in it
    num_nodes: int  # SuperNodes, one per client
    port: int = 0  # of the SuperLink; 0 takes a free one
    node_port: int = 0  # of the first SuperNode, the next has the next; 0 takes free ones
    time_limit: float = 86400.0  # seconds after which a run is stopped
    start_timeout: float = 120.0  # seconds that a process may take to start
    data_dir: Path | None = None  # where the data sets are
    data_files: Sequence[Path] = ()  # the table of each node, if nodes have one
    nodes: dict[int, Process] = field(default_factory=dict, init=False)  # the SuperNodes', by partition

    def __post_init__(self) -> None:
        check_int("nodes", self.num_nodes)
        for name, last in (("port", 65535), ("node_port", 65536 - self.num_nodes)):
            if getattr(self, name) != 0:
                check_int(name, getattr(self, name), 1024, last)
        check_positive(time_limit=self.time_limit, start_timeout=self.start_timeout)

    def __enter__(self) -> LocalFederation:
        self.work, self._end = self.work.absolute(), time.monotonic() + self.time_limit
        self._started: list[Process] = []
        try:
            self._start()
        except BaseException:
            stop(self._started)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        stop(self._started)

    def start_node(self, node: int, key: Path | None = None, ca: Path | None = None, port: int = 0) -> Process:
        """Start the SuperNode of a partition; `key`, `ca` and `port` other than the federation's are for tests."""
        home = self.work / "nodes" / str(node)
        own = f' data-file="{self.data_files[node].absolute()}"' if self.data_files else ""
        command = [
            sys.executable, "-m", "fedoptax.deploy.supernode",
            "--root-certificates", str(ca or self.work / "keys" / "ca.crt"),
            "--superlink", f"{ADDRESS}:{port or self.port}",
            "--host", ADDRESS,
            "--port", str(self._node_ports[node]),
            "--auth-supernode-private-key", str(key or self.work / "keys" / f"node-{node}"),
            "--node-config", f'partition-id={node} state-dir="{home / "state"}"{own}',
        ]  # fmt: skip
        self.nodes[node] = self._run(command, home / "log.txt", home / "flower")
        return self.nodes[node]

    def run(self, app: Path, settings: Path, log: Path, watch: Callable[[], None]) -> None:
        """Run the app in a folder to its end, and call `watch` about twice a second.

        `settings` is a TOML file with values that replace those of the app's config; `log` takes the run's log. It is a
        `RunError` if the app could not be run, the SuperLink ended, or the time is up.
        """
        command = ["flwr", "run", str(app), NAME, "--stream", "--run-config", str(settings)]
        process = self._run(command, log, self.work / "flower")
        while process.poll() is None and self._superlink.poll() is None:
            if time.monotonic() > self._end:
                raise RunError(f"stopped after the time_limit of {self.time_limit:.0f} s")
            watch()
            time.sleep(0.5)
        watch()
        if (code := self._superlink.poll()) is not None:
            raise RunError(f"the SuperLink ended with status {code}: {last_words(self.work / 'superlink' / 'log.txt')}")
        if process.returncode:
            raise RunError(f"flwr run ended with status {process.returncode}: {last_words(log)}")

    def _start(self) -> None:
        keys, home = self.work / "keys", self.work / "flower"
        of_nodes = [self.node_port and self.node_port + node for node in range(self.num_nodes)]
        self.port, *self._node_ports = free_ports([self.port, *of_nodes])
        link = {"address": f"{ADDRESS}:{self.port}", "root-certificates": str(keys / "ca.crt")}
        write_atomically(home / "config.toml", tomli_w.dumps({"superlink": {"default": NAME, NAME: link}}).encode())
        command = [
            "flower-superlink",
            "--host", ADDRESS,
            "--port", str(self.port),
            "--ssl-ca-certfile", str(keys / "ca.crt"),
            "--ssl-certfile", str(keys / "server.crt"),
            "--ssl-keyfile", str(keys / "server.key"),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        log = self.work / "superlink" / "log.txt"
        self._superlink = self._run(command, log, log.with_name("flower"), self.work)
        self._wait_for_superlink(log)
        registering = {}
        for node in range(self.num_nodes):
            log, key = self.work / "nodes" / str(node) / "register.txt", str(keys / f"node-{node}.pub")
            registering[log] = self._run(["flwr", "supernode", "register", key, NAME], log, home)
        for log, process in registering.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(self.start_timeout)
            if process.returncode != 0:
                raise RunError(f"a node's key was not registered: {last_words(log)}")
        for node in range(self.num_nodes):
            self.start_node(node)

    def _wait_for_superlink(self, log: Path) -> None:
        end = time.monotonic() + self.start_timeout
        while self._superlink.poll() is None and time.monotonic() < end:
            with suppress(OSError), socket.create_connection((ADDRESS, self.port), 1):
                return
            time.sleep(0.2)
        raise RunError(f"the SuperLink did not start: {last_words(log)}")

    def _run(self, command: list[str], log: Path, home: Path, folder: Path | None = None) -> Process:
        """Start one of Flower's programs, perhaps in a folder, with its output in a new file."""
        program = Path(sys.executable).parent / command[0]  # an absolute path stays itself
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("FLWR_", "FLOWER_"))}
        environment |= {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        environment["PATH"] = f"{program.parent}{os.pathsep}{environment.get('PATH', '')}"
        if self.data_dir is not None:
            environment["FEDOPTAX_DATA"] = str(self.data_dir.absolute())
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("wb") as file:
                process = subprocess.Popen(  # in a new session: Ctrl-C comes to us alone, and we end them in order
                    [str(program), *command[1:]], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                    env=environment, cwd=folder, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise RunError(f"'{program}' cannot be started: {error.strerror}") from error
        self._started.append(process)
        return process


@handled(lambda number, frame: None, signal.SIGINT)  # a second signal would leave processes behind
def stop(started: list[Process]) -> None:
    """End processes and their children: by SIGTERM, and after `GRACE` seconds by force.

    ServerApps come first: one that still writes the end of its run is killed when its parent ends.
    """
    running = [psutil.Process(process.pid) for process in started if process.poll() is None]
    left = [*running, *(child for process in running for child in process.children(recursive=True))]
    servers = [process for process in left if is_server_app(process)]
    for process in servers:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    end = time.monotonic() + GRACE
    while any(map(is_server_app, servers)) and time.monotonic() < end:
        time.sleep(0.1)
    for ask, seconds in ((psutil.Process.terminate, GRACE), (psutil.Process.kill, None)):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                ask(process)
        _, left = psutil.wait_procs(left, timeout=seconds)
    for child in started:
        child.wait()


def is_server_app(process: psutil.Process) -> bool:
    """Return whether a process runs a ServerApp, and has not ended."""
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return any(word.endswith("flwr-serverapp") for word in process.cmdline()[:2])
    return False


def free_ports(wanted: Sequence[int]) -> list[int]:
    """Return the wanted ports of the loopback interface, some other for each 0; a `RunError` if one is in use."""
    sockets: list[socket.socket] = []
    with ExitStack() as stack:
        for port in wanted:
            try:
                sockets.append(stack.enter_context(socket.create_server((ADDRESS, port))))
            except OSError as error:
                raise RunError(f"port {port} cannot be used: {os.strerror(error.errno or 0)}") from None
        return [each.getsockname()[1] for each in sockets]


def last_words(log: Path) -> str:
    """Return the last informative line of a log, for an error's message."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    # Flower frames some errors: the last line is the frame's
    telling = [line for line in lines if "rror:" in line] or [line for line in lines if line.strip("╰─╯ ")]
    return f"{quote(telling[-1], REASON) if telling else 'nothing'} (log: {log})"
