"""Hostile inputs from sound ones: bits flipped, cut, lengths blown up, pieces moved and mixed."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Sequence
from typing import Any

NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
TEXTS = (
    b"0", b"-1", b"1e999", b"nan", b"NaN", b"Infinity", b"-0", b"9" * 400, b"1" + b"0" * 40, b"null", b"true", b'""',
    b"[]", b"{}", b"[" * 200, b'{"a":' * 200, b"\\ud800", b"\\u0000", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\n",
    b"\r\n", b'"', b"'", b",", b"../", b"/", b"\xe2\x80\xae", b"<script>", b"%s", b"{0}", b"\x1b[31m",
)  # fmt: skip


VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**53, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, float("nan"),
    float("inf"),
    "", "a", "x" * 5000, "\x00", "\ud800", "\u202e", "../../x", "/etc", "a\nb\x1b[31m",
    "</script><img src=x onerror=a()>",
    "os:getcwd", "file:x.npz", "nan", "1", [], {}, [[]], [None], [1, 2, 3], [[1, 2], [3]], ["a"], {"a": {"b": 1}},
    [2**40] * 3, [10**30], [-1], [1.5], [[0, 0], [0, 0]], [[[1]]],
)  # fmt: skip


def mutate(rng: random.Random, seeds: Sequence[bytes], words: Sequence[bytes], largest: int) -> bytes:
    """One to eight changes of one of the seeds, at most `largest` bytes long."""
    seed = rng.choice(seeds)
    if seed[:1] in b"{[" and rng.random() < 0.7:
        return mutate_json(rng, seed)[:largest]
    data = bytearray(seed)
    for _ in range(min(8, 1 + int(rng.expovariate(0.7)))):
        rng.choice(_CHANGES)(rng, data, seeds, words)
    return bytes(data[:largest])


def mutate_json(rng: random.Random, seed: bytes) -> bytes:
    """JSON, or lines of it, some of whose values are replaced, removed, doubled or moved; else the seed."""
    lines = seed.splitlines()
    try:
        documents = [json.loads(line) for line in lines]
    except ValueError:
        return seed
    for _ in range(1 + int(rng.expovariate(1.0))):
        _change_json(rng, documents)
    try:
        return b"\n".join(json.dumps(document).encode() for document in documents) + seed[len(seed.rstrip()) :]
    except ValueError:  # a document within itself
        return seed


def _change_json(rng: random.Random, documents: list[Any]) -> None:
    places: list[tuple[Any, Any]] = []
    level: list[Any] = [documents]
    while level:
        holder = level.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        places += [(holder, key) for key in keys]
        level += [holder[key] for key in keys if isinstance(holder[key], dict | list)]
    if not places:
        return
    holder, key = rng.choice(places)
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1:
            other, place = rng.choice(places)
            if place in other if isinstance(other, dict) else place < len(other):
                holder[key] = json.loads(json.dumps(other[place]))
        case 2 if isinstance(holder, dict):
            holder[str(rng.choice(VALUES))[:100]] = holder[key]
        case _:
            holder[key] = copy.deepcopy(rng.choice(VALUES))  # a change of it must not change what others get


def _place(rng: random.Random, data: bytearray) -> int:
    return rng.randrange(len(data) + 1)


def _flip(rng: random.Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _number(rng: random.Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    """A number that may be a length, in any width and byte order."""
    form = rng.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
    packed = struct.pack(form, rng.choice(NUMBERS) % 2 ** (8 * struct.calcsize(form)))
    at = _place(rng, data)
    data[at : at + len(packed)] = packed


def _cut(rng: random.Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    del data[_place(rng, data) :]


def _remove(rng: random.Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = _place(rng, data)
    del data[at : at + rng.choice((1, 2, 4, 8, 64, 1000))]


def _repeat(rng: random.Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = _place(rng, data)
    piece = data[at : at + rng.choice((1, 4, 16, 100))]
    data[at:at] = piece * rng.choice((1, 2, 100))


def _move(rng: random.Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    at, to, size = _place(rng, data), _place(rng, data), rng.choice((1, 4, 8, 32, 200))
    piece = data[at : at + size]
    data[to : to + len(piece)] = piece


def _splice(rng: random.Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    other = rng.choice(seeds)
    at, start = _place(rng, data), rng.randrange(len(other) + 1)
    data[at : at + rng.choice((0, 8, 10**6))] = other[start : start + rng.choice((8, 64, 10**6))]


def _word(rng: random.Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    word = rng.choice((*words, *TEXTS) if rng.random() < 0.5 or not words else words)
    at = _place(rng, data)
    data[at : at + rng.choice((0, len(word)))] = word


def _swap_word(rng: random.Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    """One word of the format in place of another that is there."""
    there = [word for word in words if word in data]
    if there:
        old = rng.choice(there)
        at = data.index(old)
        data[at : at + len(old)] = rng.choice((*words, *TEXTS))


_CHANGES = (_flip, _flip, _byte, _byte, _number, _number, _cut, _remove, _repeat, _move, _splice, _word, _swap_word)
