"""WikiText-2: the next word of Wikipedia articles; one client an article, or contiguous parts of equal length.

Merity et al., "Pointer sentinel mixture models", 2017: 2,088,628 / 217,646 / 245,569 tokens, 33,278 words. Text is
taken as in PyTorch's word language model example: words are separated by white space, each line ends with `<eos>`, and
ids are numbered by first appearance in the training part.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.cache import cached
from fedoptax.data.containers import find_packed, read_packed
from fedoptax.data.location import find_data_dir
from fedoptax.data.sources import Source
from fedoptax.data.sources.natural import Client, Codes, write_clients, write_names
from fedoptax.data.sources.tokens import next_token
from fedoptax.data.sources.upstream import missing
from fedoptax.data.store import StoreWriter
from fedoptax.errors import DataError, UsageError

EOS, UNKNOWN = "<eos>", "<unk>"

_MAX_BYTES = 2**25  # of a file: three times the largest
_MAX_WORD = 256
_MAX_TITLE = 200
_MAX_VOCABULARY = 2**16
_VERSION = 1  # of the cached arrays

Article = tuple[str, np.ndarray]
"""A title, and the ids of the article's tokens, uint16 (t,)."""


def load(
    data_dir: str | Path | None = None, clients: str | int = "articles", length: int = 35, part: str = "test"
) -> Source:
    """Reads `wikitext-2/train.txt` and `test.txt` (or `valid.txt`), also under their names `wiki.*.tokens`.

    A client's tokens are cut in windows of `length` inputs, one after the other without overlap; the target of an input
    is the token after it. What is left at the end, up to `length` tokens, is dropped, so that every target counts
    the same and no id is lost to padding; `counts` says how much is used.

    Args:
      data_dir: as in `fedoptax.data.location.find_data_dir`.
      clients: `"articles"` (600 to train, 60 others to test), or the number of contiguous parts of the training text
        whose lengths differ by one token at most. (FAFED: 16 clients.)
      length: of a window, in tokens.
      part: `"test"`, or `"valid"` to choose hyper-parameters by.

    Returns:
      x and y uint16 of shape (n, length); test groups are articles, from N on; an article with no window is no client.
      `counts` has `train_tokens` and `test_tokens`, the tokens there are, `<eos>` included, and `train_targets` and
      `test_targets`, those that are predicted.

    Raises:
      UsageError: an argument is out of range.
      DataError: a file is missing or broken, has no articles, or too little text.
    """
    _check(clients, length, part)
    paths = [_path(data_dir, "train"), _path(data_dir, part)]

    def build(writer: StoreWriter) -> None:
        ids: dict[str, int] = {}
        train = _articles(paths[0], ids, grow=True)
        test = _articles(paths[1], ids, grow=False)
        held = train if clients == "articles" else _parts(train, int(clients))
        names = _distinct([title for title, _ in (*held, *test)])
        codes: Codes = {}
        write_clients(writer, "train", paths[0], _windows(names, held, length), codes)
        write_clients(writer, "test", paths[1], _windows(names[len(held) :], test, length), codes)
        write_names(writer, codes)
        writer.append("vocabulary", np.array(list(ids)))
        writer.append("tokens", np.array([sum(len(tokens) for _, tokens in articles) for articles in (train, test)]))

    arrays = cached(f"wikitext-2-{clients}-{length}", paths, _VERSION, build)
    counts = {f"{name}_tokens": int(count) for name, count in zip(("train", "test"), arrays["tokens"])}
    counts |= {f"{name}_targets": len(arrays[f"{name}_windows"]) * length for name in ("train", "test")}
    return Source(
        train=next_token(arrays["train_windows"]),
        test=next_token(arrays["test_windows"]),
        num_classes=len(arrays["vocabulary"]),
        input_shape=(length,),
        train_groups=arrays["train_groups"],
        test_groups=arrays["test_groups"],
        client_names=arrays["client_names"],
        vocabulary=arrays["vocabulary"],
        counts=counts,
    )


def decode(ids: ArrayLike, vocabulary: np.ndarray) -> str:
    """The words of ids, for people, with a line end for each `<eos>`; `vocabulary` is that of the `Source`."""
    text = " ".join(vocabulary[np.asarray(ids, np.int64).ravel()])
    return "\n".join(line.strip() for line in text.split(EOS))


def _articles(path: Path, ids: dict[str, int], grow: bool) -> list[Article]:
    """The articles of a file; `ids` gets the words that are new to it if it may grow, else they are `<unk>`.

    An article begins at a line ` = Title = `, one sign on each side, between empty lines; what comes before the first
    one goes with it.
    """
    lines = [line.split() for line in _lines(path)]
    starts = [
        i
        for i, line in enumerate(lines)
        if _is_title(line) and not (i and lines[i - 1]) and not (i + 1 < len(lines) and lines[i + 1])
    ]
    if not starts:
        raise DataError(f"{path}: no article: no line ' = Title = ' between empty lines")
    titles = [" ".join(lines[start][1:-1])[:_MAX_TITLE] for start in starts]
    edges = [0, *starts[1:], len(lines)]
    return [
        (title, _numbered(path, lines[first:last], ids, grow))
        for title, first, last in zip(titles, edges[:-1], edges[1:])
    ]


def _lines(path: Path) -> list[str]:
    try:
        text = read_packed(path, _MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text in UTF-8") from None
    return text.removesuffix("\n").split("\n")


def _is_title(words: list[str]) -> bool:
    return len(words) > 2 and words[0] == words[-1] == "=" and words[1] != "=" and words[-2] != "="


def _distinct(titles: list[str]) -> list[str]:
    """The titles, with a number after one that was there before: two articles are two clients."""
    names: dict[str, None] = {}
    last: dict[str, int] = {}
    for title in titles:
        name = title
        while name in names:
            last[title] = last.get(title, 1) + 1
            name = f"{title} ({last[title]})"
        names[name] = None
    return list(names)


def _numbered(path: Path, lines: list[list[str]], ids: dict[str, int], grow: bool) -> np.ndarray:
    tokens = [word for line in lines for word in (*line, EOS)]
    if grow:
        known = len(ids)
        for word in tokens:
            ids.setdefault(word, len(ids))
        if len(ids) > _MAX_VOCABULARY or any(len(word) > _MAX_WORD for word in islice(ids, known, None)):
            raise DataError(f"{path}: more than {_MAX_VOCABULARY} words, or one of more than {_MAX_WORD} characters")
    unknown = ids.get(UNKNOWN)
    found = [ids.get(word, unknown) for word in tokens]
    if None in found:
        word = tokens[found.index(None)][:_MAX_WORD]
        raise DataError(f"{path}: {word!r} is not in the training text, nor is '{UNKNOWN}'")
    return np.array(found, np.uint16)


def _parts(articles: list[Article], clients: int) -> list[Article]:
    stream = np.concatenate([tokens for _, tokens in articles])
    if clients > len(stream):
        raise UsageError(f"clients: {clients} given; 'articles' or 1 to {len(stream)}, the tokens, is allowed")
    return [(f"part {i}", tokens) for i, tokens in enumerate(np.array_split(stream, clients))]


def _windows(names: list[str], articles: list[Article], length: int) -> Iterator[Client]:
    """Each article as windows of inputs and the last target, uint16 (n, length + 1)."""
    for name, (_, tokens) in zip(names, articles):
        count = max(len(tokens) - 1, 0) // length
        starts = length * np.arange(count)[:, None]
        yield name, {"windows": tokens[starts + np.arange(length + 1)]}


def _check(clients: str | int, length: int, part: str) -> None:
    if clients != "articles" and not (isinstance(clients, int) and clients >= 1):
        raise UsageError(f"clients: {clients!r} given; 'articles' or a number from 1 is allowed")
    if length < 1:
        raise UsageError(f"length: {length} given; 1 or more is allowed")
    if part not in ("test", "valid"):
        raise UsageError(f"part: {part!r} given; 'test' or 'valid' is allowed")


def _path(data_dir: str | Path | None, part: str) -> Path:
    folder = find_data_dir(data_dir) / "wikitext-2"
    for name in (f"{part}.txt", f"wiki.{part}.tokens"):
        if path := find_packed(folder, name):
            return path
    raise missing(folder, f"{part}.txt", also=f"wiki.{part}.tokens")
