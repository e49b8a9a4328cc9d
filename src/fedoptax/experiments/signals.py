"""Ctrl-C and the signals of schedulers, which wait for a whole round."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

POLITE = (signal.SIGTERM, signal.SIGHUP)
"""What asks a process to end: of `kill`, batch systems before their time is up, and a terminal that closes."""


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], int]]:
    """Within it, Ctrl-C, SIGTERM and SIGHUP only make the yielded function give the signal's number, not 0.

    A second Ctrl-C interrupts at once; a second SIGTERM or SIGHUP does not, as some systems send both or to many
    processes. SIGHUP that is ignored, as under `nohup`, stays so. Outside the main thread, where signals cannot be
    handled, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    asked: list[int] = []

    def handler(number: int, frame: Any) -> None:
        if asked:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        asked.append(number)
        hint = "; Ctrl-C again stops at once" if number == signal.SIGINT else ""
        _say(f"\nstopping after the current rounds{hint}")

    with _handled(handler, (signal.SIGINT, *_heard())):
        yield lambda: asked[0] if asked else 0


@contextmanager
def terminable() -> Iterator[Callable[[], int]]:
    """Within it, SIGTERM and SIGHUP raise `KeyboardInterrupt`, so that a process ends in good order wherever it is.

    The yielded function gives the number of the signal that came, or 0.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    asked: list[int] = []

    def handler(number: int, frame: Any) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    with _handled(handler, _heard()):
        yield lambda: asked[0] if asked else 0


@contextmanager
def _handled(handler: Callable[[int, Any], None], numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Within it, `handler` takes these signals."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Within it, Ctrl-C, SIGTERM and SIGHUP end the process on the spot, with a line and the signal's exit status.

    For imports, before there is anything to lose: native libraries turn an exception in their start into another, or
    abort.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: Any) -> None:
        cursor = "\x1b[?25h" if sys.stderr is not None and sys.stderr.isatty() else ""  # the spinner hides it
        with suppress(OSError):
            os.write(2, f"{cursor}fedoptax: interrupted\n".encode())
        os._exit(128 + number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, *_heard())}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _heard() -> list[signal.Signals]:
    return [number for number in POLITE if signal.getsignal(number) not in (signal.SIG_IGN, None)]


def _say(text: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr, flush=True)
