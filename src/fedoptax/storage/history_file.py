"""history.jsonl while a run writes it: it grows, and what a checkpoint belongs to is marked by length and hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedoptax.errors import RunError
from fedoptax.storage import folder as storage
from fedoptax.storage.history import Row, to_json_line

NAME = "history.jsonl"


class HistoryFile:
    """The history of the run in `folder`, begun anew with `rows`.

    Raises:
      RunError: it cannot be written.
    """

    def __init__(self, folder: Path, rows: list[Row]) -> None:
        self._path = folder / NAME
        data = _lines(rows)
        storage.write_atomically(self._path, data)
        self._length, self._hash = len(data), hashlib.sha256(data)

    def append(self, rows: list[Row]) -> None:
        """Adds rows, all or none.

        Raises:
          RunError: it cannot be written.
        """
        data = _lines(rows)
        try:
            with self._path.open("ab") as file:
                file.write(data)
        except OSError as error:
            self._cut()
            raise RunError(f"'{self._path}' cannot be written: {error.strerror}") from error
        self._length += len(data)
        self._hash.update(data)

    def mark(self) -> dict[str, Any]:
        """Length in bytes and SHA-256 of what was written so far; that is on the disk then.

        Raises:
          RunError: it cannot be written.
        """
        try:
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"'{self._path}' cannot be written: {error.strerror}") from error
        return {"bytes": self._length, "sha256": self._hash.hexdigest()}

    def _cut(self) -> None:
        with suppress(OSError):  # a reader leaves out a last line without its end
            os.truncate(self._path, self._length)


def check_mark(folder: Path, mark: Mapping[str, Any]) -> None:
    """Checks that a history begins with what was marked.

    Raises:
      ValueError: it does not, or cannot be read.
    """
    try:
        wanted, digest = int(mark["bytes"]), hashlib.sha256()
        with (folder / NAME).open("rb") as file:
            while wanted and (data := file.read(min(wanted, 2**20))):
                digest.update(data)
                wanted -= len(data)
    except OSError as error:
        raise ValueError(f"its {NAME} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError) as error:
        raise ValueError(f"its mark of {NAME} is damaged") from error
    if wanted or digest.hexdigest() != mark.get("sha256"):
        raise ValueError(f"{NAME} is not as it was written")


def _lines(rows: list[Row]) -> bytes:
    return "".join(map(to_json_line, rows)).encode()
