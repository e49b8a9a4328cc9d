"""Stops processes when their owner ends, however it ends, or after a time; run as a script of its own.

Usage: python guard.py SECONDS MARK. The end of standard input, which comes with the death of the owner too, or the end
of the time, terminates the process groups of all processes with MARK in their environment, first politely. Flower puts
some of its processes into sessions of their own and they may lose their parents: the environment is what they keep.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

GRACE = 5.0  # seconds between asking and killing
VARIABLE = "FEDOPTAX_PROCESSES"


def main() -> None:
    """Waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit = time.monotonic() + float(sys.argv[1])
    while (left := limit - time.monotonic()) > 0:
        if select.select([0], [], [], min(left, 3600))[0] and not os.read(0, 4096):
            break
    stop(lambda: groups_of(sys.argv[2]))


def stop(groups: Callable[[], set[int]]) -> None:
    """Ends process groups, SIGTERM and after a while SIGKILL, and waits until they are gone.

    Args:
      groups: those that are there now.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        told: set[int] = set()
        end = time.monotonic() + GRACE
        while (there := groups()) and time.monotonic() < end:
            for group in there - told:  # once each: a second SIGTERM would cut short an orderly end
                _signal(group, number)
            told |= there
            time.sleep(0.05)


def groups_of(mark: str) -> set[int]:
    """The process groups of all running processes whose environment holds `VARIABLE=mark…`; never our own group.

    Where there is no /proc (macOS), none are found; then children end with Flower's own processes.
    """
    wanted = f"\0{VARIABLE}={mark}".encode()
    groups = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in b"\0" + (folder / "environ").read_bytes():
                groups.add(os.getpgid(int(folder.name)))
        except OSError:  # it ended, or is somebody else's
            continue
    return groups - {os.getpgrp()}


def alive(group: int) -> bool:
    """Whether a process of the group is left, be it one whose end nobody took note of yet."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    main()
