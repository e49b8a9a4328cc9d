"""Arrays on disk as folders of `.npy` files, read by memory map: decoded data sets, federations larger than memory."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedoptax.errors import DataError

ENVIRONMENT = "FEDOPTAX_CACHE"
Arrays = dict[str, np.ndarray]


def cache_dir() -> Path:
    """Return the folder of decoded data: the environment's `FEDOPTAX_CACHE`, else `arrays` in the user's cache."""
    if from_environment := os.environ.get(ENVIRONMENT):
        return Path(from_environment).expanduser()
    import pooch  # only here: it is slow to import

    return Path(pooch.os_cache("fedoptax")) / "arrays"


def cached(name: str, files: Sequence[Path], version: int, build: Callable[[ArrayWriter], None]) -> Arrays:
    """Return the arrays that `build(writer)` writes from `files`, decoded once and cached, memory-mapped and read-only.

    The cache may be deleted at any time; it is built again if it is damaged or a file has changed. Its key is the
    `name` of the data set, with the reader's options that change the arrays; path, size and time of change of the
    files; and the reader's `version`. A file that cannot be read, or a cache that cannot be written, is a `DataError`.
    """
    try:
        states = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from None
    key = hashlib.sha256(f"{version} {states}".encode()).hexdigest()[:24]
    folder = cache_dir() / f"{name}-{key}"
    try:
        return open_arrays(folder)
    except DataError:  # missing or damaged
        write_arrays(folder, build, keep=True)
        return open_arrays(folder)


class ArrayWriter:
    """Writes arrays to a folder, some rows at a time, so that they may be larger than memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._forms: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        self._closing = ExitStack()

    def append(self, name: str, rows: np.ndarray) -> None:
        """Add `rows` (n, …) to the array `name`; a `DataError` if their shape or type is not that of its first rows."""
        rows = np.ascontiguousarray(rows)
        if rows.dtype.hasobject:
            raise DataError(f"{name} must hold numbers or text of a fixed length, got objects")
        if name not in self._files:
            self._forms[name] = (0, *rows.shape[1:]), rows.dtype
            self._files[name] = self._closing.enter_context((self._folder / f"{name}.npy").open("wb"))
            self._write_header(name)
        shape, dtype = self._forms[name]
        if (rows.shape[1:], rows.dtype) != (shape[1:], dtype):
            raise DataError(f"{name} must hold {dtype}{list(shape[1:])}, got {rows.dtype}{list(rows.shape[1:])}")
        self._files[name].write(rows.data if rows.size else b"")
        self._forms[name] = (shape[0] + len(rows), *shape[1:]), dtype

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *error: object) -> None:
        with self._closing:
            for name, file in self._files.items():
                file.seek(0)
                self._write_header(name)
                file.flush()
                os.fsync(file.fileno())

    def _write_header(self, name: str) -> None:
        shape, dtype = self._forms[name]  # NumPy pads this header so that the number of rows may grow in place
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._files[name], header)


def write_arrays(folder: Path, build: Callable[[ArrayWriter], None], keep: bool = False) -> None:
    """Make `folder` of the arrays that `build(writer)` writes, completely, or leave nothing and raise a `DataError`.

    An earlier folder is replaced, or kept if it is readable and `keep` says so: another process may have been faster.
    """
    temporary, old = (folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.{end}") for end in ("tmp", "old"))
    try:
        temporary.mkdir(parents=True)
        with ArrayWriter(temporary) as writer:
            build(writer)
        try:
            os.replace(temporary, folder)
        except OSError:
            if not folder.exists():
                raise
            with suppress(DataError):
                if keep and open_arrays(folder):
                    return
            os.replace(folder, old)
            os.replace(temporary, folder)
    except OSError as error:
        raise DataError(f"'{folder}' cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def open_arrays(folder: Path) -> Arrays:
    """Open the arrays of a folder, memory-mapped and read-only; a `DataError` if there are none, or a size is wrong."""
    try:
        arrays = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in sorted(folder.glob("*.npy"))}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"'{folder}' is damaged: {error}") from None
    if not arrays:
        raise DataError(f"'{folder}' has no arrays")
    return arrays
