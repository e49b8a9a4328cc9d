"""What a fuzzing target is, and what counts as an orderly refusal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

MODULES = ("run_targets", "deploy_targets")
LONGEST = 1000  # characters of a message: it is read by a person


class Finding(AssertionError):
    """A target broke a law: what it read is wrong, or it refused in another way than it should."""


class Target(NamedTuple):
    """Something that reads foreign bytes.

    Attributes:
      name: what the command line calls it.
      seeds: sound inputs, from which hostile ones are made.
      read: `(data, folder) -> None`: has the bytes read; `folder` is empty before and may be left full.
      words: bytes that mean something in this format, to be spliced in.
      largest: bytes of the longest input.
    """

    name: str
    seeds: tuple[bytes, ...]
    read: Callable[[bytes, Path], None]
    words: tuple[bytes, ...] = ()
    largest: int = 2**16

    def run(self, data: bytes, folder: Path) -> None:
        """One case in an empty `folder`."""
        for entry in folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        self.read(data, folder)


def targets() -> dict[str, Callable[[], Target]]:
    """What makes each target, by name; the modules that they test are imported when one is made."""
    found: dict[str, Callable[[], Target]] = {}
    for module in MODULES:
        found |= import_module(f"fuzzing.{module}").TARGETS
    return found


@contextmanager
def refusal(kind: type[Exception] | tuple[type[Exception], ...], *words: str) -> Iterator[None]:
    """Lets errors of a `kind` pass that say what is wrong on one line of a sensible length, with these words in it."""
    try:
        yield
    except kind as error:
        message = str(error)
        if "\n" in message or "\r" in message:
            raise Finding(f"a message of several lines: {message[:200]!r}") from error
        if len(message) > LONGEST or not message:
            raise Finding(f"a message of {len(message)} characters: {message[:200]!r}") from error
        if missing := [word for word in words if word not in message]:
            raise Finding(f"a message without {missing}: {message[:200]!r}") from error
        if not message.isprintable():
            raise Finding(f"a message that cannot be printed: {message[:200]!r}") from error


def check(holds: bool, what: str) -> None:
    """Raises a `Finding` if the law `what` does not hold."""
    if not holds:
        raise Finding(what)
