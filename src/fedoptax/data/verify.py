"""Whether a file of a data set is the published one, and a record of those whose hash is not published.

The record is `SHA256SUMS`, as `sha256sum -c` reads it, in the data set's folder or in the folder of all data sets.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fedoptax.data.containers import SUFFIXES, read_packed
from fedoptax.data.registry import File
from fedoptax.errors import DataError
from fedoptax.storage.folder import write_atomically

HASHES = {"md5": "MD5", "sha256": "SHA-256"}
"""The kinds of published hashes, and what they are called."""

RECORD = "SHA256SUMS"

_PACKED_LIMIT = 2**28  # bytes; no published file with a hash of its own is larger
_RECORD_LIMIT = 2**20
_RECORD_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


class Standing(NamedTuple):
    """What is known of a file.

    Attributes:
      status: `"ok"`, `"unverified"` (there, but no hash is known), `"differs"` or `"missing"`.
      detail: why.
    """

    status: str
    detail: str


def standing(folder: Path, file: File) -> Standing:
    """Compares a file, plain or packed as the readers take it, with its published or its recorded hash.

    Args:
      folder: of the data set.
      file: as published.

    Raises:
      DataError: it cannot be read.
    """
    path = folder / file.path
    if path.is_file():
        return _with_published(path, file.hash) if file.hash else _with_recorded(folder, file.path)
    for suffix in filter(None, SUFFIXES):
        packed = path.with_name(path.name + suffix)
        if packed.is_file():
            return _packed(packed, file.hash)
    if path.suffix == ".gz" and path.with_suffix("").is_file():
        return Standing("unverified", "unpacked; the published hash is that of the packed file")
    return Standing("missing", "")


def is_right(folder: Path, file: File) -> bool:
    """Whether a file need not be downloaded: it is there and has the published hash, if there is one."""
    if file.hash is None:
        return (folder / file.path).is_file()
    try:
        return standing(folder, file).status == "ok"
    except DataError:
        return False


def file_hash(path: Path, kind: str) -> str:
    """The hash of a file in hexadecimal; `kind` is one of `HASHES`.

    Raises:
      DataError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, kind).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def record(folder: Path, sums: Mapping[str, str]) -> None:
    """Adds path -> SHA-256 to the record in a data set's folder."""
    lines = [f"{digest}  {path}\n" for path, digest in sorted({**_read(folder), **sums}.items())]
    write_atomically(folder / RECORD, "".join(lines).encode())


def recorded(folder: Path) -> dict[str, str]:
    """Path -> SHA-256 of a data set's files, of the records in its folder and in the folder above."""
    prefix = f"{folder.name}/"
    above = {
        path.removeprefix(prefix): digest for path, digest in _read(folder.parent).items() if path.startswith(prefix)
    }
    return {**above, **_read(folder)}


def _read(folder: Path) -> dict[str, str]:
    path = folder / RECORD
    if not path.is_file():
        return {}
    text = read_packed(path, _RECORD_LIMIT).decode("utf-8", errors="replace")
    matches = map(_RECORD_LINE.fullmatch, text.splitlines())
    return {match[2].removeprefix("./"): match[1] for match in matches if match}


def _with_published(path: Path, published: str) -> Standing:
    kind, _, expected = published.partition(":")
    given = file_hash(path, kind)
    if given == expected:
        return Standing("ok", f"{HASHES[kind]} as published")
    return Standing("differs", f"{HASHES[kind]} {given}; {expected} was published")


def _with_recorded(folder: Path, name: str) -> Standing:
    expected = recorded(folder).get(name)
    if expected is None:
        return Standing("unverified", "no hash of it is published")
    given = file_hash(folder / name, "sha256")
    if given == expected:
        return Standing("ok", f"SHA-256 as in {RECORD}")
    return Standing("differs", f"SHA-256 {given}; {expected} is in {RECORD}")


def _packed(path: Path, published: str | None) -> Standing:
    if published is None:
        return Standing("unverified", f"packed as {path.name}; no hash of it is published")
    kind, _, expected = published.partition(":")
    given = hashlib.new(kind, read_packed(path, _PACKED_LIMIT)).hexdigest()
    if given == expected:
        return Standing("ok", f"packed as {path.name}; unpacked, its {HASHES[kind]} is as published")
    return Standing("differs", f"{path.name} unpacked: {HASHES[kind]} {given}; {expected} was published")
