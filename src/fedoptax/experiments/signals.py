"""Ctrl-C and the signals of schedulers, which wait for the end of the current rounds."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from multiprocessing import parent_process
from typing import Any

POLITE = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))  # Windows has one
"""The signals that ask a process to end: of `kill`, of batch systems, and of a terminal that closes."""
_answer: ContextVar[Callable[[], int] | None] = ContextVar("answer", default=None)
_received: ContextVar[list[int] | None] = ContextVar("received", default=None)


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], int]]:
    """Within it, a signal only makes the yielded function return its number, not 0.

    A second Ctrl-C interrupts at once; a second SIGTERM or SIGHUP does not, as some systems send both or to many
    processes. SIGHUP that is ignored, as under `nohup`, stays so. Outside the main thread, where signals cannot be
    handled, nothing changes.
    """
    if (answer := _answer.get()) is not None:
        yield answer
        return
    earlier = _received.get()  # a signal that was lost with its KeyboardInterrupt, as in a garbage collector's callback
    received: list[int] = [] if earlier is None else earlier

    def handler(number: int, frame: Any) -> None:
        if received:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        received.append(number)
        hint = "; Ctrl-C again stops at once" if number == signal.SIGINT else ""
        with suppress(OSError, RuntimeError):  # the terminal may be gone, or a line is being written to it
            print(f"\nstopping after the current rounds{hint}", file=sys.stderr, flush=True)

    with handled(handler, signal.SIGINT):
        yield lambda: received[0] if received else 0


@contextmanager
def interruptible_sleep() -> Iterator[tuple[Callable[[], int], Callable[[float], None]]]:
    """Yield `stop`, see `deferred_interrupt`, and a `sleep` that raises KeyboardInterrupt once it tells of a signal."""
    with deferred_interrupt() as stop:

        def sleep(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end and not stop():
                time.sleep(0.1)
            if stop():
                raise KeyboardInterrupt

        yield stop, sleep


@contextmanager
def answering(answer: Callable[[], int]) -> Iterator[None]:
    """Within it, `answer` stands for the signals of `deferred_interrupt`, as in a worker that others stop."""
    token = _answer.set(answer)
    try:
        yield
    finally:
        _answer.reset(token)


def follow_parent() -> None:
    """In a process of a pool: leave Ctrl-C to the parent process, and end with it, even if it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def terminable() -> Iterator[Callable[[], int]]:
    """Within it, signals raise `KeyboardInterrupt`, so that a process ends in good order wherever it is.

    The yielded function returns the number of the signal that came, or 0. Rounds that begin after one stop at once.
    """
    received: list[int] = []

    def handler(number: int, frame: Any) -> None:
        received.append(number)
        raise KeyboardInterrupt

    token = _received.set(received)
    try:
        with handled(handler, signal.SIGINT):
            yield lambda: received[0] if received else 0
    finally:
        _received.reset(token)


@contextmanager
def handled(handler: Callable[[int, Any], None], *others: int) -> Iterator[None]:
    """Within it, `handler` takes the polite signals that are not ignored, and others, if this is the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    polite = [number for number in POLITE if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, handler) for number in (*others, *polite)} if is_main else {}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
