"""A real Flower federation as processes of this machine: a SuperLink and SuperNodes, with TLS and node authentication.

```
WORK/app, WORK/keys      as `app_folder` writes them
WORK/flower/             Flower's home of the command line: where the SuperLink is, and its CA
WORK/superlink/          the SuperLink's home and log
WORK/nodes/I/            a SuperNode's home, log and client state
```
Everything listens on the loopback interface only and ends with the context, or with the process that holds it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from fedoptax.deploy.processes import Processes, free_ports, wait_for_port
from fedoptax.deploy.toml_text import toml_text
from fedoptax.deploy.wire import shown
from fedoptax.errors import RunError, UsageError
from fedoptax.storage import folder as storage

ADDRESS = "127.0.0.1"
NAME = "local"  # of the SuperLink, in Flower's configuration
REVIVE_EVERY = 10.0
INHERITED = ("FLWR_", "FLOWER_")  # of Flower's own environment: nothing of the user's takes part in a trial


@dataclass(frozen=True)
class LocalSettings:
    """How a local federation is run.

    Attributes:
      nodes: SuperNodes, one a client.
      port: of the SuperLink; 0 takes a free one.
      node_port: of the first SuperNode, the next has the next; 0 takes free ones.
      time_limit: seconds after which everything is stopped.
      start_timeout: seconds that a process may take to start.
      data_dir: where the data sets are, or None.
    """

    nodes: int
    port: int = 0
    node_port: int = 0
    time_limit: float = 86400.0
    start_timeout: float = 120.0
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise UsageError(f"nodes: {self.nodes} given, allowed is a whole number >= 1")
        for name, port, span in (("port", self.port, 1), ("node_port", self.node_port, self.nodes)):
            if port != 0 and not 1024 <= port <= 65536 - span:
                raise UsageError(f"{name}: {port} given, allowed is 0 or 1024 to {65536 - span}")
        for name in ("time_limit", "start_timeout"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name}: {getattr(self, name)} given, allowed is a number of seconds above 0")


class LocalFederation:
    """A running federation; leaving the context ends all its processes.

    Args:
      work: its folder, with `app` and `keys` in it.
      settings: how it is run.
    """

    def __init__(self, work: Path, settings: LocalSettings) -> None:
        self.work, self.settings = work.absolute(), settings
        self._processes = Processes(settings.time_limit)
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._node_started: dict[int, float] = {}

    def __enter__(self) -> LocalFederation:
        self._processes.__enter__()
        try:
            self._start()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.__exit__(kind, error, trace)

    def start_node(self, node: int, key: Path | None = None, ca: Path | None = None) -> subprocess.Popen[bytes]:
        """Starts the SuperNode of a partition, or starts it again; `key` and `ca` other than its own are for tests."""
        home = self.work / "nodes" / str(node)
        home.mkdir(parents=True, exist_ok=True)
        config = f'partition-id={node} num-partitions={self.settings.nodes} state-dir="{home / "state"}"'
        command = [
            _program("flower-supernode"),
            "--root-certificates", str(ca or self.work / "keys" / "ca.crt"),
            "--superlink", f"{ADDRESS}:{self.port}",
            "--host", ADDRESS,
            "--port", str(self._node_ports[node]),
            "--auth-supernode-private-key", str(key or self.work / "keys" / f"node-{node}"),
            "--node-config", config,
        ]  # fmt: skip
        process = self._processes.start(command, home / "log.txt", self._environment(home / "flower"))
        self.nodes[node], self._node_started[node] = process, time.monotonic()
        return process

    def stop_node(self, node: int) -> None:
        """Ends a SuperNode and what it runs."""
        self._processes.stop(self.nodes.pop(node))

    def revive(self) -> None:
        """Starts those SuperNodes again that ended by themselves, at most every `REVIVE_EVERY` seconds each.

        After a SuperNode was killed the SuperLink takes it for alive until it misses its heartbeats, about a minute,
        and refuses the new one, which then ends.
        """
        for node, process in list(self.nodes.items()):
            if process.poll() is not None and time.monotonic() - self._node_started[node] >= REVIVE_EVERY:
                self.stop_node(node)
                self.start_node(node)

    def run(self, app: Path, settings: Path, log: Path, watch: Callable[[], None]) -> None:
        """Runs an app to its end.

        Args:
          app: the app's folder.
          settings: a TOML file with values that replace those of the app's config.
          log: takes what the run tells.
          watch: is called about twice a second.

        Raises:
          RunError: the app could not be run, or a server process ended.
        """
        command = [_program("flwr"), "run", str(app), NAME, "--stream", "--run-config", str(settings)]
        process = self._processes.start(command, log, self._environment(self.work / "flower"))
        while process.poll() is None:
            if self._superlink.poll() is not None:
                raise RunError(f"the SuperLink ended with status {self._superlink.returncode}: {self._superlink_log}")
            self.revive()
            watch()
            time.sleep(0.5)
        watch()
        self._processes.stop(process)
        if process.returncode:
            raise RunError(f"flwr run ended with status {process.returncode}: {last_words(log)}")

    def _start(self) -> None:
        settings = self.settings
        ports = free_ports(1 + settings.nodes)
        self.port = settings.port or ports[0]
        first = settings.node_port
        self._node_ports = {i: first + i if first else ports[1 + i] for i in range(settings.nodes)}
        keys = self.work / "keys"
        self._configure()
        home = self.work / "superlink"
        home.mkdir(parents=True, exist_ok=True)
        self._superlink_log = home / "log.txt"
        command = [
            _program("flower-superlink"),
            "--host", ADDRESS,
            "--port", str(self.port),
            "--ssl-ca-certfile", str(keys / "ca.crt"),
            "--ssl-certfile", str(keys / "server.crt"),
            "--ssl-keyfile", str(keys / "server.key"),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        self._superlink = self._processes.start(command, self._superlink_log, self._environment(home / "flower"))
        what = f"the SuperLink (log: {self._superlink_log})"
        wait_for_port(self.port, self._superlink, settings.start_timeout, what)
        registering = [self._register(node) for node in range(settings.nodes)]
        for node, (process, log) in enumerate(registering):
            try:
                status = process.wait(settings.start_timeout)
            except subprocess.TimeoutExpired:
                raise RunError(f"the key of node {node} was not registered in {settings.start_timeout:.0f} s") from None
            self._processes.stop(process)
            if status:
                raise RunError(f"the key of node {node} was not registered: {last_words(log)}")
        for node in range(settings.nodes):
            self.start_node(node)

    def _configure(self) -> None:
        config = (
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{ADDRESS}:{self.port}"\n'
            f"root-certificates = {toml_text(str(self.work / 'keys' / 'ca.crt'))}\n"
        )
        storage.write_atomically(self.work / "flower" / "config.toml", config.encode())

    def _register(self, node: int) -> tuple[subprocess.Popen[bytes], Path]:
        home = self.work / "nodes" / str(node)
        home.mkdir(parents=True, exist_ok=True)
        log, public = home / "register.txt", self.work / "keys" / f"node-{node}.pub"
        log.unlink(missing_ok=True)
        command = [_program("flwr"), "supernode", "register", str(public), NAME]
        return self._processes.start(command, log, self._environment(self.work / "flower")), log

    def _environment(self, home: Path) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(INHERITED)}
        ours["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{ours.get('PATH', '')}"
        ours |= {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PYTHONUNBUFFERED": "1",
        }
        if self.settings.data_dir is not None:
            ours["FEDOPTAX_DATA"] = str(self.settings.data_dir.absolute())
        return ours


def last_words(log: Path) -> str:
    """The last line of a log that says something, for an error's message."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "no log"
    telling = [line for line in lines if "rror" in line] or [line for line in lines if line.strip()]
    return f"{shown(telling[-1]) if telling else 'nothing said'} (log: {log})"


def _program(name: str) -> str:
    program = Path(sys.executable).parent / name
    if not program.is_file():
        raise UsageError(f"{name}: not installed; allowed is an environment with fedoptax[flower]")
    return str(program)
