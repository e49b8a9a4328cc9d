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
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import tomli_w

from fedoptax._files import write_atomically
from fedoptax.deploy.wire import REASON, shown
from fedoptax.errors import RunError, check_int, check_number

ADDRESS = "127.0.0.1"
NAME = "local"  # of the SuperLink, in Flower's configuration
GRACE = 10.0  # seconds between asking processes to end and killing them
Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class LocalSettings:
    """How a local federation is run.

    Attributes:
      nodes: SuperNodes, one per client.
      port: of the SuperLink; 0 takes a free one.
      node_port: of the first SuperNode, the next has the next; 0 takes free ones.
      time_limit: seconds after which a run is stopped.
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
        check_int("nodes", self.nodes)
        for name, last in (("port", 65535), ("node_port", 65536 - self.nodes)):
            if getattr(self, name) != 0:
                check_int(name, getattr(self, name), 1024, last)
        check_number("time_limit", self.time_limit, 0, open_low=True)
        check_number("start_timeout", self.start_timeout, 0, open_low=True)


@dataclass
class LocalFederation:
    """A running federation; leaving the context ends all its processes.

    Attributes:
      work: its folder, with `app` and `keys` in it.
      settings: how it is run.
      nodes: the SuperNodes' processes, by partition.
      port: of the SuperLink, once it runs.
    """

    work: Path
    settings: LocalSettings
    nodes: dict[int, Process] = field(default_factory=dict)
    port: int = 0

    def __enter__(self) -> LocalFederation:
        self.work = self.work.absolute()
        self._started: list[Process] = []
        self._end = time.monotonic() + self.settings.time_limit
        try:
            self._start()
        except BaseException:
            stop(self._started)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        stop(self._started)

    def start_node(
        self, node: int, key: Path | None = None, ca: Path | None = None, port: int | None = None
    ) -> Process:
        """Start the SuperNode of a partition; `key`, `ca` and `port` other than the federation's are for tests."""
        home = self.work / "nodes" / str(node)
        command = [
            sys.executable, "-m", "fedoptax.deploy.supernode",
            "--root-certificates", str(ca or self.work / "keys" / "ca.crt"),
            "--superlink", f"{ADDRESS}:{port or self.port}",
            "--host", ADDRESS,
            "--port", str(self._node_ports[node]),
            "--auth-supernode-private-key", str(key or self.work / "keys" / f"node-{node}"),
            "--node-config", f'partition-id={node} state-dir="{home / "state"}"',
        ]  # fmt: skip
        self.nodes[node] = self._run(command, home / "log.txt", home / "flower")
        return self.nodes[node]

    def run(self, app: Path, settings: Path, log: Path, watch: Callable[[], None]) -> None:
        """Run the app in a folder to its end, and call `watch` about twice a second.

        `settings` is a TOML file with values that replace those of the app's config; `log` takes the run's log.

        Raises:
          RunError: the app could not be run, the SuperLink ended, or the time is up.
        """
        command = ["flwr", "run", str(app), NAME, "--stream", "--run-config", str(settings)]
        process = self._run(command, log, self.work / "flower")
        while process.poll() is None:
            if self._superlink.poll() is not None:
                raise RunError(f"the SuperLink ended: {last_words(self.work / 'superlink' / 'log.txt')}")
            if time.monotonic() > self._end:
                raise RunError(f"stopped after {self.settings.time_limit:.0f} s, the time_limit")
            watch()
            time.sleep(0.5)
        watch()
        if process.returncode:
            raise RunError(f"flwr run ended with status {process.returncode}: {last_words(log)}")

    def _start(self) -> None:
        settings, keys, home = self.settings, self.work / "keys", self.work / "flower"
        ports = free_ports(1 + settings.nodes)
        self.port = settings.port or ports[0]
        self._node_ports = [
            settings.node_port + i if settings.node_port else ports[1 + i] for i in range(len(ports) - 1)
        ]
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
        self._superlink = self._run(command, log, self.work / "superlink" / "flower", self.work)
        self._wait_for_superlink(log)
        register = ["flwr", "supernode", "register"]
        registering = {}
        for node in range(settings.nodes):
            log = self.work / "nodes" / str(node) / "register.txt"
            registering[log] = self._run([*register, str(keys / f"node-{node}.pub"), NAME], log, home)
        for log, process in registering.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(settings.start_timeout)
            if process.returncode != 0:
                raise RunError(f"a node's key was not registered: {last_words(log)}")
        for node in range(settings.nodes):
            self.start_node(node)

    def _wait_for_superlink(self, log: Path) -> None:
        end = time.monotonic() + self.settings.start_timeout
        while self._superlink.poll() is None and time.monotonic() < end:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex((ADDRESS, self.port)) == 0:
                    return
            time.sleep(0.2)
        raise RunError(f"the SuperLink did not start: {last_words(log)}")

    def _run(self, command: list[str], log: Path, home: Path, folder: Path | None = None) -> Process:
        """Start one of Flower's programs, perhaps in a folder, with its output in a new file."""
        program = Path(sys.executable).parent / command[0]  # an absolute path stays itself
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("wb") as file:
                process = subprocess.Popen(
                    [str(program), *command[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=self._environment(home),
                    cwd=folder,
                    start_new_session=True,  # Ctrl-C comes to us alone, and we end them in order
                )
        except OSError as error:
            raise RunError(f"'{program}' cannot be started: {error.strerror}") from error
        self._started.append(process)
        return process

    def _environment(self, home: Path) -> Mapping[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "FLOWER_"))}
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


def stop(started: list[Process]) -> None:
    """End processes and what they started: politely, and after `GRACE` seconds by force."""
    running = [psutil.Process(process.pid) for process in started if process.poll() is None]
    family = [*running, *(child for process in running for child in process.children(recursive=True))]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(family, timeout=GRACE)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left)
    for child in started:
        child.wait()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on now."""
    sockets = [socket.create_server((ADDRESS, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def last_words(log: Path) -> str:
    """Return the last line of a log that tells something, for an error's message."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    telling = [line for line in lines if "rror" in line] or [line for line in lines if line.strip()]
    return f"{shown(telling[-1], REASON) if telling else 'nothing'} (log: {log})"
