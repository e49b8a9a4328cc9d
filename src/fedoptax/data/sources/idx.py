"""The IDX format of MNIST and its relatives: a magic number, the dimensions, and a big-endian array.

Format: http://yann.lecun.com/exdb/mnist (LeCun, Cortes, Burges), "the IDX file format".
"""

from __future__ import annotations

import io
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from fedoptax.data.gzipped import Gzipped
from fedoptax.errors import DataError

MAX_BYTES = 2**30
"""The largest array that is read: 1 GiB, twice the images of the whole of EMNIST."""

_CODES = {0x08: "uint8", 0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}
_GZIP_MAGIC = b"\x1f\x8b"
_DEFLATE_RATIO = 1032  # DEFLATE's largest possible ratio of output to input


def read_idx(path: str | Path, dtype: DTypeLike, ndim: int, max_bytes: int = MAX_BYTES) -> np.ndarray:
    """Reads an IDX file, gzipped or plain (told apart by content), and believes nothing it declares.

    Type, dimensions and size are checked before anything is allocated, and no more than the declared size is
    unpacked, so neither a wrong header nor a gzip bomb can exhaust memory.

    Args:
      path: the file.
      dtype: the element type that the file must hold.
      ndim: the number of dimensions that it must have.
      max_bytes: the largest array to accept, in bytes.

    Returns:
      The array, in native byte order.

    Raises:
      DataError: the file cannot be read, is no IDX file, holds another type or shape, declares more than it
        can hold, is truncated or corrupt, or goes on after its array. One line: the file and the reason.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: not a file")
    try:
        stored = path.stat().st_size
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if not packed:
                return _read(path, raw, np.dtype(dtype), ndim, min(stored, max_bytes))
            limit = min(stored * _DEFLATE_RATIO, max_bytes)
            return _read(path, io.BufferedReader(Gzipped(raw)), np.dtype(dtype), ndim, limit)
    except EOFError:
        raise DataError(f"{path}: truncated: the gzip stream ends early") from None
    except (OSError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _read(path: Path, stream: io.BufferedIOBase, dtype: np.dtype, ndim: int, limit: int) -> np.ndarray:
    shape = _read_header(path, stream, dtype, ndim)
    size = math.prod(shape) * dtype.itemsize
    if size > limit:
        raise DataError(f"{path}: declares {shape}, {size} bytes; at most {limit} are possible or allowed")
    data = np.empty(size, np.uint8)  # its pages are taken only as they are filled
    view, filled = data.data, 0
    while filled < size:
        count = stream.readinto(view[filled:])
        if not count:
            raise DataError(f"{path}: truncated: {filled} of the {size} bytes declared by {shape}")
        filled += count
    if stream.read(1):  # at the end of a gzip stream this also checks its length and checksum
        raise DataError(f"{path}: bytes left over after the {size} declared by {shape}")
    return data.view(dtype.newbyteorder(">")).astype(dtype, copy=False).reshape(shape)


def _read_header(path: Path, stream: io.BufferedIOBase, dtype: np.dtype, ndim: int) -> tuple[int, ...]:
    magic = _exactly(path, stream, 4)
    if magic[:2] != b"\0\0" or magic[2] not in _CODES:
        raise DataError(f"{path}: not an IDX file: its first bytes are {magic.hex(' ')}")
    if _CODES[magic[2]] != dtype.name:
        raise DataError(f"{path}: holds {_CODES[magic[2]]}; {dtype.name} was expected")
    if magic[3] != ndim:
        raise DataError(f"{path}: has {magic[3]} dimensions; {ndim} were expected")
    shape = tuple(int(n) for n in np.frombuffer(_exactly(path, stream, 4 * ndim), ">u4"))
    if 0 in shape:
        raise DataError(f"{path}: is empty: declares {shape}")
    return shape


def _exactly(path: Path, stream: io.BufferedIOBase, count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise DataError(f"{path}: truncated: ends in its header")
    return data
