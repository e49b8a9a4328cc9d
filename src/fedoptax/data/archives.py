"""Archives from strangers: tar (plain, gzip, bzip2, xz) and zip, read and unpacked within limits.

Only files and folders with plain relative names are taken. Links, devices, names that leave the folder, two files of
one name, and more bytes or members than allowed are refused, and nothing of such an archive is left behind.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import stat
import struct
import tarfile
import uuid
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fedoptax.errors import DataError

MAX_MEMBERS = 10_000
"""The most files and folders an archive may hold, if no other number is given."""

_CHUNK = 2**20  # bytes read at once; no header of an honest archive is longer
_HEADERS = 4096  # bytes of headers and padding a member may have in a tar file
_OPENERS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error),
    *(struct.error, EOFError, ValueError, IndexError, OverflowError),
)
_UNREADABLE = (NotImplementedError, RuntimeError)  # of zipfile: an unknown compression, a password

_Take = Callable[[PurePosixPath, Iterator[bytes]], None]  # (name, chunks): is given one file after the other


class _Refused(Exception):
    """The reason why an archive is not read."""


def unpack(archive: Path, folder: Path, max_bytes: int, max_members: int = MAX_MEMBERS) -> None:
    """Unpacks an archive to a new folder, which is there whole or not at all.

    Args:
      archive: a tar or zip file, told by content.
      folder: made by this; its parent exists.
      max_bytes: the most that all files together may hold, in bytes.
      max_members: the most files and folders.

    Raises:
      DataError: `folder` is there already, the archive cannot be read or is refused, or the disk is full.
    """
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")

    def write(name: PurePosixPath, chunks: Iterator[bytes]) -> None:
        path = temporary / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.writelines(chunks)

    try:
        if folder.exists():
            raise DataError(f"{archive}: not unpacked: '{folder}' is there already")
        temporary.mkdir()
        _walk(archive, write, max_bytes, max_members)
        temporary.rename(folder)
    except OSError as error:
        raise DataError(f"{archive}: cannot be unpacked to '{folder}': {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_members(
    archive: Path, names: Collection[str], max_bytes: int, max_members: int = MAX_MEMBERS
) -> dict[str, bytes]:
    """Reads some files of an archive without unpacking it to disk.

    Args:
      archive: a tar or zip file, told by content.
      names: the files to read, such as `"cifar-10-batches-py/test_batch"`.
      max_bytes: the most that all files of the archive together may hold, in bytes.
      max_members: the most files and folders.

    Returns:
      Name -> content.

    Raises:
      DataError: a file is missing, or the archive cannot be read or is refused.
    """
    found: dict[str, bytes] = {}

    def keep(name: PurePosixPath, chunks: Iterator[bytes]) -> None:
        if str(name) in names:
            found[str(name)] = b"".join(chunks)

    try:
        _walk(archive, keep, max_bytes, max_members)
    except OSError as error:
        raise DataError(f"{archive}: cannot be read: {error.strerror or error}") from None
    if missing := sorted(set(names) - found.keys()):
        raise DataError(f"{archive}: lacks {', '.join(missing)}")
    return found


def _walk(archive: Path, take: _Take, max_bytes: int, max_members: int) -> None:
    """Gives `take` every file of the archive, in its order."""
    try:
        with archive.open("rb") as raw:
            magic = raw.read(6)
            raw.seek(0)
            walk = _walk_zip if magic.startswith((b"PK\x03\x04", b"PK\x05\x06")) else _walk_tar
            walk(raw, magic, _Guard(take, max_bytes, max_members))
    except _Refused as error:
        raise DataError(f"{archive}: refused: {error}") from None
    except _DAMAGE as error:
        raise DataError(f"{archive}: damaged, or no archive: {' '.join(str(error).split())[:200]}") from None
    except _UNREADABLE as error:
        raise DataError(f"{archive}: cannot be read: {' '.join(str(error).split())[:200]}") from None


class _Guard:
    """Checks every member before its content is read."""

    def __init__(self, take: _Take, max_bytes: int, max_members: int) -> None:
        self.max_bytes, self.max_members = max_bytes, max_members
        self._take = take
        self._bytes = self._members = 0
        self._names: set[PurePosixPath] = set()

    def member(self, name: str, size: int, stream: IO[bytes] | None) -> None:
        """Hands on a file of `size` bytes; a folder has no stream."""
        path = _plain_path(name)
        self._members += 1
        self._bytes += size
        if self._members > self.max_members:
            raise _Refused(f"more than {self.max_members} files and folders")
        if size < 0 or self._bytes > self.max_bytes:
            raise _Refused(f"more than {self.max_bytes} bytes of files")
        if stream is None:
            return
        if not path.name:
            raise _Refused("a file without a name")
        if path in self._names:
            raise _Refused(f"two files named {name!r}")
        self._names.add(path)
        self._take(path, iter(lambda: stream.read(_CHUNK), b""))


def _plain_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if not name.isprintable() or "\\" in name or ":" in name or path.is_absolute() or ".." in path.parts:
        raise _Refused(f"a file named {name[:80]!a}")
    return path


def _walk_tar(raw: IO[bytes], magic: bytes, guard: _Guard) -> None:
    opener = next((opener for start, opener in _OPENERS.items() if magic.startswith(start)), None)
    with opener(raw) if opener else raw as stream:
        bounded = _Bounded(stream, guard.max_bytes + _HEADERS * (guard.max_members + 10))
        with tarfile.TarFile.open(fileobj=bounded, mode="r:") as tar:
            for member in tar:
                if member.isdir():
                    guard.member(member.name, 0, None)
                elif member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse():
                    guard.member(member.name, member.size, tar.extractfile(member))
                else:
                    raise _Refused(f"{member.name[:80]!a} is no plain file (a link, a device or the like)")
        if bounded.last != bytes(tarfile.BLOCKSIZE):  # the mark of the end; tarfile also stops at a damaged header
            raise tarfile.ReadError("its last header is damaged or missing")
        while rest := bounded.read(_CHUNK):  # to the end, where a packed stream has its checksum
            if rest.strip(b"\0"):
                raise tarfile.ReadError("bytes that belong to no file")


def _walk_zip(raw: IO[bytes], magic: bytes, guard: _Guard) -> None:
    with zipfile.ZipFile(raw) as archive:
        for member in archive.infolist():
            mode = stat.S_IFMT(member.external_attr >> 16)  # 0 where the archive was not made on Unix
            if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _Refused(f"{member.filename[:80]!a} is no plain file (a link, a device or the like)")
            if member.orig_filename.endswith("/"):
                guard.member(member.orig_filename, 0, None)
                continue
            with archive.open(member) as stream:
                guard.member(member.orig_filename, member.file_size, stream)


class _Bounded(io.BufferedIOBase):
    """An unpacked stream that goes forward only, in small steps, and not beyond a limit."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream, self._limit = stream, limit
        self.last = b""  # what was read last

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _CHUNK:
            raise _Refused(f"a header of more than {_CHUNK} bytes")
        self.last = self._stream.read(size)
        self._check(self._stream.tell())
        return self.last

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if offset < self._stream.tell():
            raise _Refused("files that overlap")
        self._check(offset)
        return self._stream.seek(offset)

    def tell(self) -> int:
        return self._stream.tell()

    def _check(self, position: int) -> None:
        if position > self._limit:
            raise _Refused(f"more than {self._limit} bytes, files and headers together")
