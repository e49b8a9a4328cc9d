"""Arrays on disk as a folder of `.npy` files that are read by memory map: caches, and federations larger than memory.

A store is written beside its place and moved there when it is whole, so a reader sees all of it or none.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedoptax.errors import DataError

_META = "meta.json"  # written last: the list of what the store must hold
_DAMAGE = (  # what reading a damaged list or array raises; SyntaxError: NumPy's, of a type
    *(OSError, ValueError, KeyError, TypeError, AttributeError),
    *(OverflowError, RecursionError, SyntaxError),
)


class StoreWriter:
    """Fills a new store, rows after rows; arrays may grow beyond memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, np.dtype] = {}
        self._closing = ExitStack()

    def append(self, name: str, rows: np.ndarray) -> None:
        """Adds `rows` (n, …) at the end of the array `name`, which the first call makes.

        Raises:
          DataError: rows of another shape or type than the first.
        """
        rows = np.ascontiguousarray(rows)
        if name not in self._files:
            if rows.dtype.hasobject:
                raise DataError(f"{name}: objects given; numbers or strings of a fixed length are allowed")
            self._files[name] = self._closing.enter_context((self._folder / f"{name}.npy").open("wb"))
            self._shapes[name], self._dtypes[name] = (0, *rows.shape[1:]), rows.dtype
            self._header(name)
        shape, dtype = self._shapes[name], self._dtypes[name]
        if (rows.shape[1:], rows.dtype) != (shape[1:], dtype):
            raise DataError(
                f"{name}: rows of {rows.dtype}{list(rows.shape[1:])} given after rows of {dtype}{list(shape[1:])}"
            )
        self._files[name].write(rows.data if rows.size else b"")
        self._shapes[name] = (shape[0] + len(rows), *shape[1:])

    def close(self) -> None:
        """Writes the final shapes and the list of arrays."""
        with self._closing:
            for name, file in self._files.items():
                file.seek(0)
                self._header(name)
                file.flush()
                os.fsync(file.fileno())
        content = {name: {"dtype": self._dtypes[name].str, "shape": list(self._shapes[name])} for name in self._files}
        (self._folder / _META).write_text(json.dumps(content), encoding="utf-8")

    def abort(self) -> None:
        """Closes the files as they are."""
        self._closing.close()

    def _header(self, name: str) -> None:
        # NumPy pads this header so that the number of rows may grow in place.
        description = np.lib.format.dtype_to_descr(self._dtypes[name])
        header = {"descr": description, "fortran_order": False, "shape": self._shapes[name]}
        np.lib.format.write_array_header_1_0(self._files[name], header)


def write_store(folder: Path, fill: Callable[[StoreWriter], None], replace: bool = True) -> None:
    """Makes the store `folder` of what `fill(writer)` writes; nothing is left behind when `fill` fails.

    Args:
      folder: the store.
      fill: writes the arrays.
      replace: whether a whole store that is there by then gives way; a damaged one always does.

    Raises:
      DataError: the disk is full, or the folder cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.mkdir(parents=True)
        writer = StoreWriter(temporary)
        try:
            fill(writer)
            writer.close()
        finally:
            writer.abort()
        _publish(temporary, folder, replace)
    except OSError as error:
        raise DataError(f"'{folder}' cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Makes the store `folder` of arrays that are in memory; see `write_store`."""

    def fill(writer: StoreWriter) -> None:
        for name, array in arrays.items():
            writer.append(name, array)

    write_store(folder, fill)


def open_store(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of a store, memory-mapped and read-only.

    Raises:
      DataError: it is missing, incomplete or damaged. (Sizes are checked; contents are not read.)
    """
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # held: all files are of one store, if it is replaced
        try:
            with _file(place, _META) as file:
                content = json.loads(file.read())
            if any(Path(name).name != name for name in content):
                raise ValueError("an array's name leaves the folder")
            return {name: _open(place, f"{name}.npy", form) for name, form in content.items()}
        finally:
            os.close(place)
    except FileNotFoundError as error:
        raise DataError(f"'{folder}' is no store of arrays: {Path(str(error.filename)).name} is missing") from None
    except _DAMAGE as error:
        raise DataError(f"'{folder}' is damaged: {' '.join(str(error).split())}") from None


def _file(place: int, name: str) -> BinaryIO:
    """A file of the open folder `place`."""
    return open(name, "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=place))


def _open(place: int, name: str, form: Mapping[str, Any]) -> np.ndarray:
    shape, dtype = tuple(form["shape"]), np.dtype(form["dtype"])
    if dtype.hasobject:
        raise ValueError(f"{name} would hold objects")
    if 0 in shape:  # an empty file cannot be mapped
        return np.empty(shape, dtype)
    with _file(place, name) as file:  # not np.load, which also takes zip files, and warns of what it cannot read
        np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0(file)
        if header != (shape, False, dtype):
            raise ValueError(f"{name} holds {header[2]}{list(header[0])}, {dtype}{list(shape)} was written")
        offset, size = file.tell(), file.seek(0, os.SEEK_END)
        if size != offset + math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} has {size} bytes, which is not the size of its array")
        return np.memmap(file, dtype, "r", offset, shape)


def _publish(temporary: Path, folder: Path, replace: bool) -> None:
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.old")
    try:
        with _turn(folder.parent):
            _move(temporary, folder, aside, replace)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _move(temporary: Path, folder: Path, aside: Path, replace: bool) -> None:
    for _ in range(8):  # where locks are not kept, others may put theirs there in between
        try:
            os.rename(temporary, folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if not replace and _whole(folder):
            return
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(FileNotFoundError):
            os.rename(folder, aside)  # whole, at once: no reader finds half of it
    raise DataError(f"'{folder}' cannot be written: other processes replace it all the time")


@contextmanager
def _turn(parent: Path) -> Iterator[None]:
    """One writer at a time moves a store into `parent`; without it, many who replace one store starve each other."""
    place = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without locks: `_move` tries again instead
            fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def _whole(folder: Path) -> bool:
    try:
        open_store(folder)
    except DataError:
        return False
    return True
