"""LEAF's JSON files of grey images, one user after the other.

`{"users": [name, …], "num_samples": [n, …], "user_data": {name: {"x": [[p, …], …], "y": [label, …]}}}`, where an
image is a flat list of pixels from 0 to 1. Format: Caldas et al., "LEAF: a benchmark for federated settings", 2018.

A whole file as Python objects takes eight times its size, and up to twenty-four where it is made to. So the innermost
lists (an image, the labels, the users) are found in the text and only what is around them is parsed as JSON; the
pixels then become bytes image by image. That is also twice as quick.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax.data.containers import read_packed
from fedoptax.data.sources.strict_json import parse_json
from fedoptax.errors import DataError

MAX_BYTES = 2**29
"""The largest file that is read, unpacked: 512 MiB, four times the largest of full FEMNIST."""

_INNERMOST = re.compile(rb"\[[^\[\]]*\]")
_MAX_LISTS = 2**20  # in a file; LEAF's have 100 users and 20,000 images
_MAX_TEXT = 2**24  # of one such list, and of all that is around them
_MAX_NUMBER = 64  # characters
_MAX_LABEL = 2**31
_SPELLINGS = 4096  # of the 256 levels that are remembered


def read_users(path: Path, pixels: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The users of a file, in the order of its list `users`.

    Args:
      path: gzipped or plain.
      pixels: of an image.

    Yields:
      The user's name, the images as uint8 (n, pixels), where k stands for the pixel k / 255, and the labels,
      int64 (n,).

    Raises:
      DataError: the file cannot be read, is not of that form, its lists do not fit together, or a pixel is not
        k / 255.
    """
    data = read_packed(path, MAX_BYTES)
    try:
        yield from _users(path, data, pixels)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _users(path: Path, data: bytes, pixels: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    outline = _outline(path, data)
    if not isinstance(outline, dict) or not {"users", "num_samples", "user_data"} <= outline.keys():
        raise ValueError("not a LEAF file: 'users', 'num_samples' and 'user_data' are expected")
    user_data = outline["user_data"]
    users = _values(path, data, outline["users"], str, "users")
    sizes = _values(path, data, outline["num_samples"], int, "num_samples")
    if not isinstance(user_data, dict) or sorted(users) != sorted(user_data) or len(users) != len(sizes):
        raise ValueError("'users', 'num_samples' and 'user_data' are not of the same users, each once")
    levels = _Levels()
    for user, size in zip(users, sizes):
        examples = user_data[user]
        if not isinstance(examples, dict) or not {"x", "y"} <= examples.keys():
            raise ValueError(f"user {user!r} has no 'x' and 'y'")
        x = _images(data, examples["x"], pixels, levels, user)
        y = _values(path, data, examples["y"], int, f"labels of user {user!r}")
        if not len(x) == len(y) == size:
            raise ValueError(f"user {user!r} has {len(x)} images and {len(y)} labels; 'num_samples' says {size}")
        if any(abs(label) > _MAX_LABEL for label in y):
            raise ValueError(f"user {user!r} has a label beyond {_MAX_LABEL}")
        yield user, x, np.array(y, np.int64)


def _outline(path: Path, data: bytes) -> Any:
    """The document with a slice of `data`, brackets excluded, in place of each innermost list."""
    if data.count(b"[") > _MAX_LISTS:
        raise ValueError(f"not a LEAF file: it has more than {_MAX_LISTS} lists")
    lists = [slice(match.start() + 1, match.end() - 1) for match in _INNERMOST.finditer(data)]
    text = _INNERMOST.sub(b"NaN", data)  # no JSON, so that nothing in the file can pass for it
    if len(text) > _MAX_TEXT or any(part.stop - part.start > _MAX_TEXT for part in lists):
        raise ValueError(f"not a LEAF file: it has {_MAX_TEXT} characters in one list, or outside lists")
    remaining = iter(lists)
    outline = parse_json(path, text, parse_constant=lambda _: next(remaining, None))
    if next(remaining, None) is not None:
        raise ValueError("not a LEAF file: there are brackets in a name")
    return outline


def _values(path: Path, data: bytes, part: Any, kind: type, what: str) -> list[Any]:
    if not isinstance(part, slice):
        raise ValueError(f"{what}: a flat list is expected")
    values = parse_json(path, b"[" + data[part] + b"]")
    if any(type(value) is not kind for value in values):
        raise ValueError(f"{what}: a list of {kind.__name__} is expected")
    return values


def _images(data: bytes, parts: Any, pixels: int, levels: _Levels, user: str) -> np.ndarray:
    if isinstance(parts, slice) and not data[parts].strip():
        parts = []  # a user without images
    if not isinstance(parts, list) or not all(isinstance(part, slice) for part in parts):
        raise ValueError(f"user {user!r} has an 'x' that is no list of flat images")
    images = np.empty((len(parts), pixels), np.uint8)
    for i, part in enumerate(parts):
        numbers = data.count(b",", part.start, part.stop) + 1
        if numbers != pixels:
            raise ValueError(f"image {i} of user {user!r} has {numbers} pixels; {pixels} are expected")
        try:
            images[i] = np.frombuffer(bytes(map(levels.__getitem__, data[part].split(b","))), np.uint8)
        except ValueError as error:
            raise ValueError(f"image {i} of user {user!r}: {error}") from None
    return images


class _Levels(dict[bytes, int]):
    """The text of a number k / 255 -> k. The 256 levels come in few spellings, so that a look-up does."""

    def __missing__(self, text: bytes) -> int:
        level = _level(text)
        if len(self) < _SPELLINGS:
            self[text] = level
        return level


def _level(text: bytes) -> int:
    spelled = text.decode("ascii", "replace")[:_MAX_NUMBER]
    try:
        value = float(spelled) if len(text) <= _MAX_NUMBER and not text.strip().strip(b"0123456789.eE+-") else np.nan
    except ValueError:
        value = np.nan
    if not (0.0 <= value <= 1.0 and abs(255 * value - round(255 * value)) < 0.01):
        raise ValueError(f"a pixel is {spelled.strip()!r}; k/255 with k from 0 to 255 is allowed")
    return round(255 * value)
