"""The two kinds of failure a user meets, and the exit status each gets at the command line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import NoReturn

LONGEST = 1000
"""Characters of an error's message: people read it, and what it quotes may come from anywhere."""


class UsageError(ValueError):
    """An argument is wrong: the message names it, what was given and what is allowed. Exit status 2."""

    def __init__(self, message: object = "") -> None:
        super().__init__(brief(message, LONGEST))


class RunError(RuntimeError):
    """The work itself failed (a broken file, a diverged run, a full disk). Exit status 1."""

    def __init__(self, message: object = "") -> None:
        super().__init__(brief(message, LONGEST))


class Stopped(RunError):
    """A signal stopped the work in good order: the message says how to go on. Exit status 128 + the signal's number."""

    def __init__(self, message: str, signal: int = 2) -> None:
        super().__init__(message)
        self.status = 128 + signal


class DataError(RunError):
    """A data file or data set cannot be used: the message names it and the reason. Exit status 1."""


def brief(text: object, most: int = 300) -> str:
    """A text in a message: one line, no character that moves or hides others, at most `most` of them.

    Of a longer one the middle is left out.
    """
    line = str(text)
    if len(line) > most:
        line = f"{line[: most - most // 3 - 1]}…{line[len(line) - most // 3 :]}"
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in line)


def unknown(what: str, given: str, allowed: Iterable[str]) -> NoReturn:
    """Raise a `UsageError` for a name that is not one of `allowed`, with the nearest name as a remedy."""
    names = sorted(allowed)
    near = get_close_matches(given, names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise UsageError(f"{what}: unknown name '{given}'{hint} (allowed: {', '.join(names)})")
