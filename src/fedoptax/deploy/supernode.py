"""`fedoptax-supernode`: Flower's SuperNode with the same arguments, for rounds of less than a second.

Flower's looks for messages every 3 seconds, and its SuperExec every second. Here both look every tenth of a second;
the SuperNode comes back to Flower's pauses in some minutes without a message. And Flower starts a Python program for
each message, which imports Flower for a second of processor time. Here a process that has imported it forks instead.
"""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from multiprocessing import Pipe, active_children, get_context
from typing import Any

import httpcore  # noqa: F401, which httpx imports late
import numpy as np

import fedoptax.deploy.worker  # noqa: F401, as apps import it: both are there when a process is forked

IDLE, BUSY = 3.0, 0.5  # seconds that Flower's SuperNode sleeps without a message, and while a ClientApp works
SHORT, GROWTH = 0.1, 1.02
PROGRAMS = ("flower-superexec", "flwr-clientapp")  # that Flower starts at a node, one and for each message


def with_short_pauses(sleep: Callable[[float], None]) -> Callable[[float], None]:
    """Return a `time.sleep` that shortens Flower's two pauses and no others."""
    idle = SHORT

    def sleep_less(seconds: float) -> None:
        nonlocal idle
        if seconds in (IDLE, BUSY):
            seconds = idle = SHORT if seconds == BUSY else min(IDLE, idle * GROWTH)
        sleep(seconds)

    return sleep_less


def shorten_backoff() -> None:
    """Let Flower pull an object that is not there yet again after a tenth of a second, not after 1, 3, 7 … seconds.

    A message can be seen before its objects have arrived, so this happens in every third round of three nodes.
    """
    with suppress(ImportError):  # in another version, perhaps
        for function in vars(import_module("flwr.supercore.inflatable.inflatable_utils")).values():
            if "initial_backoff" in (defaults := getattr(function, "__kwdefaults__", None) or {}):
                defaults["initial_backoff"] = SHORT


def start_fork_server(programs: dict[str, Callable[[], Any]]) -> None:
    """Let `subprocess.Popen(command)` fork a program of these names from a process that has imported them all.

    Where there are threads already, or that process has ended, or the command has options, `Popen` is Python's.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return
    (requests, sender), parent = Pipe(duplex=False), os.getpid()

    class Popen(subprocess.Popen[bytes]):
        def __new__(cls, command: Any, **options: Any) -> Any:
            if not options and command[0] in programs:
                with suppress(OSError):
                    return sender.send(command)
            return super().__new__(cls)

    subprocess.Popen = Popen  # type: ignore[misc, assignment]
    if os.fork() != 0:
        return requests.close()  # whoever else can read would keep `send` from failing when the process has ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # else the first collection of each process copies the memory that it shares with this one

    def run(command: list[str]) -> None:
        sys.argv = command
        requests.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        np.random.seed()  # else each process draws the same; Python's own generator sees to it by itself
        programs[command[0]]()

    while os.getppid() == parent:
        active_children()  # lets go of those that have ended
        if requests.poll(1.0):
            get_context("fork").Process(target=run, args=(requests.recv(),)).start()
    os._exit(0)


def main() -> None:
    """Run `flower-supernode`."""
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", str(SHORT))
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # where its host is out of reach each process waits for it
    scripts = entry_points(group="console_scripts")
    supernode = scripts["flower-supernode"].load()
    shorten_backoff()
    start_fork_server({name: scripts[name].load() for name in PROGRAMS if name in scripts.names})
    time.sleep = with_short_pauses(time.sleep)  # type: ignore[assignment]
    supernode()


if __name__ == "__main__":
    main()
