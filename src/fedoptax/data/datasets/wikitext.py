"""WikiText-2: the next word of Wikipedia articles; one client per article, or contiguous parts of equal length.

Merity et al., "Pointer sentinel mixture models", 2017: 2,088,628 / 217,646 / 245,569 tokens, 33,278 words. Text is
taken as in PyTorch's word language model example: words are separated by white space, each line ends with `<eos>`, and
ids are numbered by first appearance in the training part.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedoptax.data.cache import Rows, cached
from fedoptax.data.datasets.source import ClientRows, Source, next_token, rows_of_clients
from fedoptax.data.files import read_file, require_file
from fedoptax.data.readers import reading
from fedoptax.errors import DataError, UsageError

EOS, UNKNOWN = "<eos>", "<unk>"

_VERSION = 1  # of the cached arrays


def load(data_dir: str | Path | None = None, clients: str | int = "articles", length: int = 35) -> Source:
    """Read `wikitext-2/train.txt` and `test.txt`, also as `wiki.*.tokens`.

    A client's tokens are cut into windows of `length` inputs without overlap; the target of an input is the next token.
    The rest at the end, up to `length` tokens, is dropped, so that all targets count the same and no id is needed for
    padding. `clients` are `"articles"` (600 to train, 60 others to test), or the number of contiguous parts of the
    training text, of lengths that differ by one token at most (FAFED: 16 clients).

    x and y are uint16 (n, length); test groups are articles, from N on; an article with no window is no client.
    `counts` has the `train_tokens` and `test_tokens`, with `<eos>`, and of these the `train_targets`, `test_targets`.
    """
    paths = [require_file(data_dir, "wikitext-2", f"{name}.txt", f"wiki.{name}.tokens") for name in ("train", "test")]

    def decode() -> Rows:
        ids: dict[str, int] = {}
        train, test = _articles(paths[0], ids, grow=True), _articles(paths[1], ids, grow=False)
        yield "tokens", np.array([sum(map(len, train)), sum(map(len, test))])
        if clients != "articles":
            if int(clients) > (total := sum(map(len, train))):
                raise UsageError(f"clients must be at most {total}, the number of tokens, got {clients}")
            train = np.array_split(np.concatenate(train), int(clients))
        yield from rows_of_clients(paths, _windows("train", train, length), _windows("test", test, length))
        yield "vocabulary", np.array(list(ids))

    arrays = cached(f"wikitext-2-{clients}-{length}", paths, _VERSION, decode)
    counts = {f"{name}_tokens": int(count) for name, count in zip(("train", "test"), arrays["tokens"])}
    counts |= {f"{name}_targets": len(arrays[f"{name}_windows"]) * length for name in ("train", "test")}
    train, test = (next_token(arrays[f"{name}_windows"]) for name in ("train", "test"))
    words, groups = arrays["vocabulary"], (arrays["train_groups"], arrays["test_groups"])
    return Source(train, test, len(words), (length,), *groups, vocabulary=words, counts=counts)


def _articles(path: Path, ids: dict[str, int], grow: bool) -> list[np.ndarray]:
    """Read the ids of each article, uint16 (t,); new words are added to `ids` if it may grow, else they are `<unk>`.

    An article begins at a line ` = Title = `, one sign on each side, between empty lines; what comes before the first
    one goes with it.
    """
    with reading(path, "text in UTF-8"):
        text = read_file(path).decode()
    lines = [line.split() for line in text.removesuffix("\n").split("\n")]
    around = [[], *lines, []]
    titled = [len(w) > 2 and w[0] == w[-1] == "=" and w[1] != "=" and w[-2] != "=" for w in lines]
    starts = [i for i, is_title in enumerate(titled) if is_title and not around[i] and not around[i + 2]]
    if not starts:
        raise DataError(f"{path} has no article: no line ' = Title = ' between empty lines")
    edges = [0, *starts[1:], len(lines)]
    return [_numbered(path, lines[first:last], ids, grow) for first, last in pairwise(edges)]


def _numbered(path: Path, lines: list[list[str]], ids: dict[str, int], grow: bool) -> np.ndarray:
    tokens = [word for line in lines for word in (*line, EOS)]
    if grow:
        for word in tokens:
            ids.setdefault(word, len(ids))
    unknown = ids.get(UNKNOWN)
    numbers = [ids.get(word, unknown) for word in tokens]
    if None in numbers:
        word = tokens[numbers.index(None)]
        raise DataError(f"{path}: {word[:80]!r} is not in the training text, nor is '{UNKNOWN}'")
    return np.array(numbers, np.uint16)


def _windows(part: str, articles: list[np.ndarray], length: int) -> Iterator[ClientRows]:
    """Cut each article into windows of inputs and the last target, uint16 (n, length + 1)."""
    for i, tokens in enumerate(articles):
        starts = length * np.arange(max(len(tokens) - 1, 0) // length)[:, None]
        yield (part, i), {"windows": tokens[starts + np.arange(length + 1)]}
