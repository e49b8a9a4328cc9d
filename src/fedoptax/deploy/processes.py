"""Processes that are stopped with all their children, whatever happens to us."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fedoptax.deploy import guard
from fedoptax.errors import RunError


class Processes:
    """A set of processes, each in a session of its own; leaving the context ends them all, and what they started.

    A guard process ends them too if this one is killed, or when the time is up.

    Args:
      seconds: how long they may live at most.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._mark = uuid.uuid4().hex
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._started = 0

    def __enter__(self) -> Processes:
        command = [sys.executable, "-S", "-E", guard.__file__, str(self._seconds), self._mark]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self._mark, list(self._running.values()))
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts a process with its output in a file that only its owner may read.

        Raises:
          RunError: it cannot be started.
        """
        self._started += 1
        number = self._started
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "ab") as file:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**environment, guard.VARIABLE: self._mark_of(number)},
                    start_new_session=True,
                )
        except OSError as error:
            raise RunError(f"'{command[0]}' cannot be started: {error.strerror}") from error
        self._running[number] = process
        return process

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Ends one process and what it started."""
        number = next(number for number, running in self._running.items() if running is process)
        self._end(self._mark_of(number), [process])
        del self._running[number]

    def _mark_of(self, number: int) -> str:
        return f"{self._mark}-{number};"

    @staticmethod
    def _end(mark: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        def groups() -> set[int]:
            leaders = {process.pid for process in processes if process.poll() is None}
            return leaders | guard.groups_of(mark)

        guard.stop(groups)
        for process in processes:
            process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float, what: str) -> None:
    """Waits until a process listens on a port of the loopback interface.

    Raises:
      RunError: it ended, or does not listen in time.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RunError(f"{what} ended with status {process.returncode}")
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RunError(f"{what} does not answer on port {port} after {seconds:.0f} s")
