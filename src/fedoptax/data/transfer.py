"""One file over HTTP, going on where an earlier attempt stopped, and distrusting the server.

The bytes lie in a part file until they are whole. With it lies the server's name for the version they belong to
(its ETag or its date), so that the rest is only added to bytes of the same version (RFC 9110, section 13.1.5).
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from fedoptax import __version__
from fedoptax.errors import DataError

Progress = Callable[[int, int | None], None]
"""`progress(done, total)` in bytes; the total is `None` where the server does not say."""

TIMEOUT = 30.0
"""Seconds to wait for the connection and for each next byte."""

SLOWEST, PATIENCE = 1024.0, 60.0
"""A server that sends fewer bytes a second than this, for so many seconds, is given up."""

ATTEMPTS = 5
"""How often a broken connection is taken up again, as long as each attempt brings something."""

_CHUNK = 2**16
_HANDLERS = (  # urllib's own, without those for ftp:, file: and data:, to which a server might redirect
    urllib.request.ProxyHandler,
    urllib.request.UnknownHandler,
    urllib.request.HTTPHandler,
    urllib.request.HTTPSHandler,
    urllib.request.HTTPDefaultErrorHandler,
    urllib.request.HTTPRedirectHandler,
    urllib.request.HTTPErrorProcessor,
)


class TransferError(DataError):
    """A download failed; the message gives the reason."""


class _Broken(TransferError):
    """The connection failed; another attempt may go on."""


def download(url: str, part: Path, limit: int, size: int | None, progress: Progress) -> None:
    """Fills the file `part`, after the bytes it has already; on return it is whole.

    Args:
      url: http or https.
      part: in a folder that exists. A failure that another attempt may mend leaves it there.
      limit: the most bytes to take.
      size: the exact number of bytes if it is known.
      progress: called before the first byte and after each piece.

    Raises:
      TransferError: the server cannot be reached, refuses, is too slow, or sends more than `limit` or not `size`.
      DataError: the disk is full or the part file cannot be written.
    """
    for attempt in range(1, ATTEMPTS + 1):
        before = _length(part)
        try:
            return _attempt(url, part, limit, size, progress)
        except _Broken:
            if attempt == ATTEMPTS or _length(part) == before:
                raise


def forget(part: Path) -> None:
    """Removes a part file and what belongs to it."""
    part.unlink(missing_ok=True)
    _version_file(part).unlink(missing_ok=True)


def _attempt(url: str, part: Path, limit: int, size: int | None, progress: Progress) -> None:
    start = _length(part)
    try:
        response = _open(url, start, _version_file(part))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            return _no_rest(part, start, error.headers.get("Content-Range", ""))
        raise TransferError(_answer(error.code)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Broken(_reason(error)) from None
    with response:
        if response.status == 206:
            _check_range(part, start, response.headers.get("Content-Range", ""))
        elif response.status == 200:
            start = 0  # the whole file: the server knows no ranges, or has another version
        else:
            raise TransferError(_answer(response.status))
        total = None if response.length is None else start + response.length
        _check_total(part, total, limit, size, start)
        progress(start, total if total is not None else size)
        try:
            _copy(response, part, start, total, limit, progress)
        except OSError as error:
            raise DataError(f"'{part}' cannot be written: {error.strerror or error}") from None


def _open(url: str, start: int, version_file: Path) -> http.client.HTTPResponse:
    headers = {"User-Agent": f"fedoptax/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version_file.is_file():
            headers["If-Range"] = version_file.read_text(encoding="latin-1")
    opener = urllib.request.OpenerDirector()
    for handler in _HANDLERS:
        opener.add_handler(handler())
    return opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)


def _copy(
    response: http.client.HTTPResponse, part: Path, start: int, total: int | None, limit: int, progress: Progress
) -> None:
    done = start
    with part.open("ab" if start else "wb") as file:
        if not start:
            _remember_version(part, response)
        since, received = time.monotonic(), 0
        while chunk := _read(response):
            done += len(chunk)
            if done > limit:
                break
            file.write(chunk)
            progress(done, total)
            received += len(chunk)
            if (seconds := time.monotonic() - since) > PATIENCE:
                if received < SLOWEST * seconds:
                    raise _Broken(f"the server sends only {received / seconds:.0f} bytes a second")
                since, received = time.monotonic(), 0
        file.flush()
        os.fsync(file.fileno())
    if done > limit:
        forget(part)
        raise TransferError(f"the server sends more than {limit} bytes")
    if total is not None and done < total:
        raise _Broken(f"the connection ended after {done} of {total} bytes")


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_CHUNK)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Broken(_reason(error)) from None


def _check_total(part: Path, total: int | None, limit: int, size: int | None, start: int) -> None:
    if total is None:
        return
    if size is not None and total != size:
        forget(part)
        raise TransferError(f"the server offers {total} bytes; {size} were published")
    if total > limit:
        forget(part)
        raise TransferError(f"the server offers {total} bytes; at most {limit} are accepted")
    free = shutil.disk_usage(part.parent).free
    if total - start > free:
        raise DataError(f"'{part.parent}' has {free} bytes free; {total - start} are needed")


def _check_range(part: Path, start: int, content_range: str) -> None:
    """A server that sends another piece than the one asked for is asked again, for all."""
    if not re.match(rf"bytes {start}-\d", content_range):
        forget(part)
        raise _Broken(f"the server sends the range {content_range[:40]!a}; bytes from {start} on were asked for")


def _no_rest(part: Path, start: int, content_range: str) -> None:
    """Nothing follows the bytes that are there: they are all, or of another file."""
    if content_range != f"bytes */{start}":
        forget(part)
        raise _Broken(f"the server has nothing after byte {start}")


def _remember_version(part: Path, response: http.client.HTTPResponse) -> None:
    etag = response.headers.get("ETag", "")
    version = etag if etag.startswith('"') else response.headers.get("Last-Modified", "")  # weak ETags do not serve
    if version:
        _version_file(part).write_text(version, encoding="latin-1", errors="ignore")
    else:
        _version_file(part).unlink(missing_ok=True)


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.etag")


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _answer(code: int) -> str:
    return f"the server answers {code} {http.client.responses.get(code, '')}".rstrip()


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.HTTPException):
        return "the server does not speak HTTP, or breaks off"
    cause = getattr(error, "reason", error)  # what a URLError wraps
    return " ".join(str(getattr(cause, "strerror", None) or cause).split()) or type(error).__name__
