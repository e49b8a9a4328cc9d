"""From Stack Overflow's sentences to ids, by the vocabularies that TensorFlow Federated distributes beside them.

The rules are those of the released code of "Adaptive Federated Optimization"; see `stackoverflow`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from pathlib import Path

import numpy as np

from fedoptax.data.containers import read_packed
from fedoptax.data.sources.strict_json import parse_json
from fedoptax.data.sources.tokens import special_tokens
from fedoptax.errors import DataError

MAX_TAGS = 5
"""Tags of a sentence: Stack Overflow allows a question no more."""

Encoder = Callable[..., dict[str, np.ndarray]]
"""From a user's texts, one list of byte strings a field, to the user's arrays."""

_MAX_LINE = 1024  # bytes
_MAX_TAG_FILE = 2**24


def read_words(path: Path, count: int) -> list[str]:
    """The first `count` words of `stackoverflow.word_count`: lines `word count`, the most frequent word first.

    Raises:
      DataError: the file cannot be read, has fewer words, another form, or a word twice.
    """
    words: list[str] = []
    try:
        with path.open("rb") as file:
            while len(words) < count and (line := file.readline(_MAX_LINE)):
                word, users = line.decode().split()
                int(users)
                words.append(word)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise DataError(f"{path}: line {len(words) + 1} is not a word and its count") from None
    return _enough(path, "words", words, count)


def read_tags(path: Path, count: int) -> list[str]:
    """The `count` most frequent tags of `stackoverflow.tag_count`: one JSON object, `{tag: count, …}`.

    Raises:
      DataError: the file cannot be read, has fewer tags, or another form.
    """
    counts = parse_json(path, read_packed(path, _MAX_TAG_FILE))
    if not isinstance(counts, dict) or not all(type(users) is int for users in counts.values()):
        raise DataError(f"{path}: an object of tags and their counts is expected")
    tags = sorted(counts, key=lambda tag: -counts[tag])[:count]
    try:
        "".join(tags).encode()
    except UnicodeEncodeError:
        raise DataError(f"{path}: a tag is no text: it holds half of a surrogate pair") from None
    return _enough(path, "tags", tags, count)


def word_encoder(words: Sequence[str], length: int) -> Encoder:
    """Of `tokens`: `ids` uint16 (n, length + 1), padded.

    The beginning, the first `length` words, and the end if there are fewer. Words are separated by single spaces, so
    an empty sentence has one word, the empty one, which is in no vocabulary.
    """
    special, ids = special_tokens(len(words)), _numbered(words)

    def encode(sentences: list[bytes]) -> dict[str, np.ndarray]:
        rows = [
            [special.bos, *map(ids.get, sentence.split(b" ", length)[:length], repeat(special.oov)), special.eos]
            for sentence in sentences
        ]
        return {"ids": _padded(rows, length + 1)}  # which cuts the end of the longest

    return encode


def tag_encoder(words: Sequence[str], tags: Sequence[str], max_words: int) -> Encoder:
    """Of `tokens`, `title` and `tags`: `x` uint16 (n, max_words), `words` uint16 (n,) and `y` uint16 (n, 5), padded.

    Here words are separated by white space of any length.
    """
    word_ids, tag_ids = _numbered(words), _numbered(tags)

    def encode(sentences: list[bytes], titles: list[bytes], tagged: list[bytes]) -> dict[str, np.ndarray]:
        texts = [b"%b %b" % pair for pair in zip(sentences, titles)]
        found = [text.split() for text in texts]
        return {
            "x": _padded([[word_ids[word] for word in text if word in word_ids] for text in found], max_words),
            "words": np.minimum([len(text) for text in found], np.iinfo(np.uint16).max).astype(np.uint16),
            "y": _padded([[tag_ids[tag] for tag in _split_tags(line) if tag in tag_ids] for line in tagged], MAX_TAGS),
        }

    return encode


def _split_tags(line: bytes) -> list[bytes]:
    return list(dict.fromkeys(line.split(b"|")))


def _padded(rows: list[list[int]], length: int) -> np.ndarray:
    """The rows, cut or filled up with 0 to `length`."""
    sizes = np.array([min(len(row), length) for row in rows], np.int64)
    ids = chain.from_iterable(row[:length] for row in rows)
    padded = np.zeros((len(rows), length), np.uint16)
    padded[np.arange(length) < sizes[:, None]] = np.fromiter(ids, np.uint16, int(sizes.sum()))
    return padded


def _numbered(words: Sequence[str]) -> dict[bytes, int]:
    return {word.encode(): i for i, word in enumerate(words, start=1)}


def _enough(path: Path, what: str, names: list[str], count: int) -> list[str]:
    if len(names) < count:
        raise DataError(f"{path}: holds {len(names)} {what}; {count} are wanted")
    if len(set(names)) < count:
        raise DataError(f"{path}: some of its first {count} {what} are there twice")
    return names
