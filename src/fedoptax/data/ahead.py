"""A data set read while the program is still being imported: unpacking and hashing leave Python's lock to others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")

_begun: dict[tuple[Any, ...], Future[Any]] = {}


def begin(read: Callable[..., Any], *arguments: Any) -> None:
    """Begins `read(*arguments)` in a thread that ends with the process; `result` takes what comes of it, once."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(read(*arguments))
        except BaseException as error:  # raised again where the result is asked for
            future.set_exception(error)

    _begun[read, *arguments] = future
    Thread(target=work, name="fedoptax-data", daemon=True).start()


def result(read: Callable[..., Result], *arguments: Any) -> Result:
    """`read(*arguments)`, waited for if it was begun with the same arguments."""
    future = _begun.pop((read, *arguments), None)
    return read(*arguments) if future is None else future.result()
