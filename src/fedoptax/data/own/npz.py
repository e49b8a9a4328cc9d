"""One's own data as a NumPy archive: `np.savez("data.npz", x=…, y=…, client=…)`."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from fedoptax.data.own.columns import names, numbers, short
from fedoptax.data.own.source import MAX_BYTES, Examples, build
from fedoptax.data.sources import Source
from fedoptax.errors import DataError, brief

_DEFLATE_RATIO = 1032  # DEFLATE's largest possible ratio of output to input
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def load(
    path: str | Path, *, x: str = "x", y: str = "y", client: str | None = None, max_bytes: int = MAX_BYTES
) -> Source:
    """Reads an archive of arrays, `np.savez` or `np.savez_compressed`; pickled objects are refused.

    The test part, if there is one, is in the arrays of the same names with `_test` at the end.

    Args:
      path: the file.
      x: the array of the examples, numbers of shape (n, …).
      y: the array of the labels, whole numbers or text of shape (n,).
      client: the array of the client ids, whole numbers or text of shape (n,); None takes `client` if it is there.
      max_bytes: the most that the arrays may take in memory.

    Returns:
      x in its stored type (but float64 as float32, int64 as int32).

    Raises:
      DataError: the file cannot be read, lacks an array, holds more than allowed, or the arrays do not fit together.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: not a file")
    try:
        with zipfile.ZipFile(path) as archive:
            stored = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            client = "client" if client is None and "client" in stored else client
            columns = [name for name in (x, y, client) if name is not None]
            parts = ("", "_test") if any(f"{name}_test" in stored for name in columns) else ("",)
            wanted = [f"{name}{part}" for part in parts for name in columns]
            if missing := [name for name in wanted if name not in stored]:
                held = ", ".join(map(short, stored[:20])) or "none"
                raise DataError(f"{path}: lacks the array '{missing[0]}' (the first it holds: {held})")
            arrays = _read(path, archive, wanted, max_bytes)
    except DataError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, RuntimeError) as error:
        raise DataError(f"{path}: cannot be read as a NumPy archive: {' '.join(str(error).split())}") from None
    train, *test = [
        Examples(
            numbers(f"{path}: '{x}{part}'", arrays[f"{x}{part}"]),
            names(f"{path}: '{y}{part}'", arrays[f"{y}{part}"]),
            None if client is None else names(f"{path}: '{client}{part}'", arrays[f"{client}{part}"]),
        )
        for part in parts
    ]
    return build(str(path), train, test[0] if test else None)


def _read(path: Path, archive: zipfile.ZipFile, wanted: list[str], max_bytes: int) -> dict[str, np.ndarray]:
    """The arrays; the sizes of all are checked before the first is read."""
    members = {name: archive.getinfo(f"{name}.npy") for name in wanted}
    total = sum(_checked_size(f"{path}: '{name}'", archive, member) for name, member in members.items())
    if total > max_bytes:
        raise DataError(f"{path}: arrays of {total} bytes; at most {max_bytes} (max_bytes) are allowed")
    arrays = {}
    for name, member in members.items():
        with archive.open(member) as stream:
            arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
    return arrays


def _checked_size(where: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """The bytes of an array, which header, member and stored size agree on."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{where}: compressed by method {member.compress_type}; NumPy's own (0 or 8) are allowed")
    with archive.open(member) as stream:
        shape, dtype = _header(where, stream)
        size = math.prod(shape) * dtype.itemsize
        declared = stream.tell() + size
    if dtype.kind not in "biufUS":
        raise DataError(f"{where}: holds {dtype}; numbers or text are allowed, no objects")
    if declared != member.file_size or member.file_size > member.compress_size * _DEFLATE_RATIO:
        raise DataError(f"{where}: declares {shape}, {size} bytes, which its {member.compress_size} cannot hold")
    return size


def _header(where: str, stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    try:
        version = np.lib.format.read_magic(stream)
        if version in _HEADERS:
            shape, _, dtype = _HEADERS[version](stream)
            return shape, dtype
    except Exception as error:  # NumPy's parser of a foreign text: whatever it raises means that it is damaged
        raise DataError(f"{where}: a damaged header: {type(error).__name__}: {brief(error, 100)}") from None
    raise DataError(f"{where}: NumPy format {version}; {' or '.join(map(str, _HEADERS))} is allowed")
