"""Single files as they are or packed by gzip or xz, unpacked in memory up to a limit."""

from __future__ import annotations

import lzma
import zlib
from pathlib import Path

from fedoptax.errors import DataError

SUFFIXES = ("", ".xz", ".gz")
"""What a packed file adds to its name, the empty one first: a file as it is needs no unpacking."""

_GZIP_MAGIC, _XZ_MAGIC = b"\x1f\x8b", b"\xfd7zXZ\0"
_XZ_MEMORY = 2**28  # for the decoder; `xz -9` needs a quarter of it


def find_packed(folder: Path, name: str) -> Path | None:
    """The file `name` of the folder as it is, else packed as `name.xz` or `name.gz`, else `None`."""
    paths = (folder / f"{name}{suffix}" for suffix in SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def read_packed(path: Path, max_bytes: int) -> bytes:
    """What a file holds once it is unpacked; the container is told by content, not by name.

    Args:
      path: the file.
      max_bytes: the most to unpack: a bomb takes no more memory than that.

    Raises:
      DataError: it cannot be read, is damaged, goes on after its container's end, or holds more than `max_bytes`.
    """
    try:
        if path.stat().st_size > max_bytes:
            raise DataError(f"{path}: {path.stat().st_size} bytes; at most {max_bytes} are allowed")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    decompressor: lzma.LZMADecompressor | zlib._Decompress
    if data.startswith(_XZ_MAGIC):
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
    elif data.startswith(_GZIP_MAGIC):
        decompressor = zlib.decompressobj(wbits=31)
    else:
        return data
    try:
        unpacked = decompressor.decompress(data, max_bytes + 1)
    except (lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: damaged: {error}") from None
    if len(unpacked) > max_bytes:
        raise DataError(f"{path}: holds more than the {max_bytes} bytes that are allowed")
    if not decompressor.eof:
        raise DataError(f"{path}: truncated: its container ends early")
    if decompressor.unused_data:
        raise DataError(f"{path}: bytes left over after its container")
    return unpacked
