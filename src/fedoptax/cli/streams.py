"""Standard streams that take every text, so that no result is lost to a character or to a stream that is not there."""

from __future__ import annotations

import io
import os
import sys


def forgiving_streams() -> None:
    """Writes what a stream's encoding lacks as an escape, such as \\u03b5, and what has no stream to nowhere.

    Python gives a program that was started with standard output or error closed None in its place; the next file that
    is opened would have its number, and get what libraries in C print.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
