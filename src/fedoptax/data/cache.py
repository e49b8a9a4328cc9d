"""Arrays on disk as folders of `.npy` files, read by memory map: decoded data sets, federations larger than memory."""

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedoptax._files import reading
from fedoptax.errors import DataError

ENVIRONMENT = "FEDOPTAX_CACHE"
Arrays = dict[str, np.ndarray]
Rows = Iterable[tuple[str, np.ndarray]]
"""Arrays by name, some rows (n, …) at a time, so that they may be larger than memory."""


def cache_dir() -> Path:
    """Return the folder of decoded data: the environment's `FEDOPTAX_CACHE`, else `arrays` in the user's cache."""
    if from_environment := os.environ.get(ENVIRONMENT):
        return Path(from_environment).expanduser()
    import pooch  # only here: it is slow to import

    return Path(pooch.os_cache("fedoptax")) / "arrays"


def cached(name: str, files: Sequence[Path], version: int, decode: Callable[[], Rows]) -> Arrays:
    """Return the arrays that `decode` makes of `files`, decoded once and cached, memory-mapped and read-only.

    The cache may be deleted at any time; it is built again if it is damaged or a file has changed. Its key is the
    `name` of the data set, with the reader's options that change the arrays; path, size and time of change of the
    files; and the reader's `version`. A file that cannot be read, or a cache that cannot be written, is a `DataError`.
    """
    with reading(" or ".join(map(str, files)), "a file"):
        states = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    key = hashlib.sha256(f"{version} {states}".encode()).hexdigest()[:24]
    folder = cache_dir() / f"{name}-{key}"
    try:
        return open_arrays(folder)
    except DataError:  # missing or damaged
        write_arrays(folder, decode(), keep=True)
        return open_arrays(folder)


def write_arrays(folder: Path, rows: Rows, keep: bool = False) -> None:
    """Make `folder` of arrays, each in one shape and type, completely, or leave nothing and raise a `DataError`.

    An earlier folder is replaced, or kept if it is readable and `keep` says so: another process may have been faster.
    """
    temporary, old = (folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.{end}") for end in ("tmp", "old"))
    try:
        temporary.mkdir(parents=True)
        _write(temporary, rows)
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
        raise DataError(f"'{folder}' cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _write(folder: Path, rows: Rows) -> None:
    files: dict[str, BinaryIO] = {}
    forms: dict[str, tuple[tuple[int, ...], np.dtype]] = {}

    def write_header(name: str) -> None:
        shape, dtype = forms[name]  # NumPy pads this header so that the number of rows may grow in place
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(files[name], header)

    with ExitStack() as stack:
        for name, array in rows:
            if name not in files:
                forms[name] = (0, *array.shape[1:]), array.dtype
                files[name] = stack.enter_context((folder / f"{name}.npy").open("wb"))
                write_header(name)
            files[name].write(np.ascontiguousarray(array).data if array.size else b"")
            shape, dtype = forms[name]
            forms[name] = (shape[0] + len(array), *shape[1:]), dtype
        for name, file in files.items():
            file.seek(0)
            write_header(name)
            file.flush()
            os.fsync(file.fileno())


def open_arrays(folder: Path) -> Arrays:
    """Open the arrays of a folder, memory-mapped and read-only; a `DataError` if there are none, or a size is wrong."""
    with reading(f"'{folder}'", "arrays"):
        arrays = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in sorted(folder.glob("*.npy"))}
    if not arrays:
        raise DataError(f"'{folder}' has no arrays")
    return arrays
