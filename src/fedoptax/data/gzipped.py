"""Gzip files by large pieces: `gzip` of Python 3.11 unpacks 8 KiB a call, and asks for Python's lock before each.

A thread beside a busy one then waits for its turn a thousand times for a data set.
"""

from __future__ import annotations

import io
import zlib
from typing import IO, Any

_PIECE = 2**22  # packed bytes unpacked in one call, without Python's lock
_GZIP = 16 + zlib.MAX_WBITS  # a gzip header and trailer, whose length and checksum zlib checks


class Gzipped(io.RawIOBase):
    """What a gzip file holds, unpacked as it is read and no further.

    Raises, when it is read: `EOFError` for a truncated file, `zlib.error` for a damaged one or bytes after its end.
    """

    def __init__(self, packed: IO[bytes]) -> None:
        super().__init__()
        self._packed, self._rest = packed, b""
        self._member = zlib.decompressobj(_GZIP)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills `buffer` from its beginning; the number of bytes, 0 at the end."""
        while True:
            piece = self._rest or self._packed.read(_PIECE)
            if self._member.eof:
                piece = piece.lstrip(b"\0")  # padding, which gzip allows after a member; then another may follow
                if not piece:
                    return 0
                self._member = zlib.decompressobj(_GZIP)
            data = self._member.decompress(piece, len(buffer))
            self._rest = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if data:
                buffer[: len(data)] = data
                return len(data)
            if not piece and not self._member.eof:
                raise EOFError
