"""The heaps of an HDF5 file in which its strings of variable length lie, checked before HDF5 walks them.

HDF5 (2.0 and before) goes from object to object of a heap by the sizes that the objects declare. One that declares
none holds it in one place for ever, inside one call that not even Ctrl-C ends. Layout: HDF5 File Format Specification
3.0, section III.E, "Disk Format: Level 1E - Global Heap".
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

LENGTHS = 8
"""Bytes of a length in the files whose heaps are understood; the superblock states it, and all common writers use 8."""

_SIGNATURE = b"GCOL\x01"  # with the only version there is
_HEADER = struct.Struct("<5s3xQ")  # signature and version, size of the heap
_OBJECT = struct.Struct("<HHIQ")  # number, references, nothing, size
_SMALLEST = 4096  # HDF5 refuses smaller heaps
_WINDOW = 2**26  # bytes that are searched at once: Ctrl-C works in between


def check_heaps(path: Path) -> None:
    """Finds whatever HDF5 could take for a heap and follows it as HDF5 would.

    Raises:
      ValueError: the objects of one stand still or lead out of it, or two overlap.
      OSError: the file cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        end = 0
        for start in _found(data):
            size = _HEADER.unpack_from(data, start)[1]
            if not _SMALLEST <= size <= len(data) - start:
                continue  # HDF5 refuses it, should anything refer to it
            if start < end:
                raise ValueError(f"a heap at byte {start} lies inside another")
            end = start + size
            _follow(data, start + _HEADER.size, end)


def _found(data: mmap.mmap) -> Iterator[int]:
    """The places of the signature that have room for a header."""
    for window in range(0, len(data), _WINDOW):
        last = min(window + _WINDOW + len(_SIGNATURE) - 1, len(data))
        place = data.find(_SIGNATURE, window, last)
        while place >= 0:
            if place + _HEADER.size <= len(data):
                yield place
            place = data.find(_SIGNATURE, place + 1, last)


def _follow(data: mmap.mmap, place: int, end: int) -> None:
    while place + _OBJECT.size <= end:  # less is left over
        number, _, _, size = _OBJECT.unpack_from(data, place)
        step = size if number == 0 else _OBJECT.size + -(-size // 8) * 8  # number 0 is the free space, header included
        if not 0 < step <= end - place:
            raise ValueError(f"a damaged heap: its object at byte {place} declares {size} bytes")
        place += step
