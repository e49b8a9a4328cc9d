"""Decoded data sets, kept by the hash of the files they came from, so that the second start is quick.

A cache is a folder of arrays (`fedoptax.data.store`). It may be deleted at any time, is rebuilt when it is damaged or
the source changes, and may be written by two processes at once.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from io import BufferedReader
from pathlib import Path

import numpy as np

from fedoptax.data.store import StoreWriter, open_store, write_store
from fedoptax.errors import DataError

ENVIRONMENT = "FEDOPTAX_CACHE"
_LARGE, _ENDS = 2**30, 2**20  # bytes


def cache_dir() -> Path:
    """The folder of the caches: the environment's `FEDOPTAX_CACHE`, else `arrays` in the user's cache folder."""
    if from_environment := os.environ.get(ENVIRONMENT):
        return Path(from_environment).expanduser()
    import pooch  # only here: it is slow to import

    return Path(pooch.os_cache("fedoptax")) / "arrays"


def cached(
    name: str, files: Sequence[Path], version: int, build: Callable[[StoreWriter], None]
) -> dict[str, np.ndarray]:
    """The arrays that `build` makes of `files`: read from the cache, else built and kept.

    Args:
      name: of the data set, with whatever options of the reader change the arrays.
      files: the source files; the cache is keyed by what they hold, not by where they lie. (Of a file above 1 GiB the
        key is size, time of change, and the first and last megabyte, since hashing it would take as long as reading.)
      version: of the reader: a new number makes old caches void.
      build: `writer -> None` reads the files and writes the arrays.

    Returns:
      Name -> array, memory-mapped and read-only.

    Raises:
      DataError: a file cannot be read, or whatever `build` raises; nothing is kept then.
    """
    folder = cache_dir() / f"{name}-{_digest(files, version)}"
    try:
        return open_store(folder)
    except DataError:
        pass  # missing or damaged: built again
    if not _writable(folder.parent):
        return _build_aside(build)
    write_store(folder, build, replace=False)
    return open_store(folder)


def _build_aside(build: Callable[[StoreWriter], None]) -> dict[str, np.ndarray]:
    """Without a cache folder: built in a temporary one, whose maps outlive its removal."""
    with tempfile.TemporaryDirectory(prefix="fedoptax-") as folder:
        write_store(Path(folder) / "arrays", build)
        return open_store(Path(folder) / "arrays")


def _digest(files: Sequence[Path], version: int) -> str:
    digest = hashlib.sha256(f"{version}".encode())
    for path in files:
        try:
            with path.open("rb") as file:
                digest.update(_of_large(file) if path.stat().st_size > _LARGE else _of_all(file))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    return digest.hexdigest()[:24]


def _of_all(file: BufferedReader) -> bytes:
    return hashlib.file_digest(file, "sha256").digest()


def _of_large(file: BufferedReader) -> bytes:
    status = os.fstat(file.fileno())
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode())
    for offset in (0, status.st_size - _ENDS):
        file.seek(offset)
        digest.update(file.read(_ENDS))
    return digest.digest()


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
