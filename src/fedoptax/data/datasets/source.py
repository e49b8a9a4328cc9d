"""A data set before it is divided among clients: its examples, its test part, its clients, and the ids of its tokens.

TensorFlow Federated's HDF5 layout is `/examples/<client>/<field>`, where every field is an array with one row per
example (TensorFlow Federated 0.17, `simulation/hdf5_client_data.py`); it is read one client at a time. Tokens are
numbered as in "Adaptive Federated Optimization": padding, the vocabulary, then three special ones.
"""

import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedoptax.data.cache import Rows
from fedoptax.data.files import damaged
from fedoptax.data.readers import reading
from fedoptax.data.schema import Schema
from fedoptax.errors import DataError, UsageError


class Source(NamedTuple):
    """A data set before it is divided among clients: n examples to train on, m to test on.

    `train` and `test` have `"x"` of shape (n, *input_shape) in its stored type, and `"y"` int32 of shape (n,),
    0 … num_classes − 1; for text, both are ids of shape (n, length), or as its module says.
    """

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    num_classes: int
    input_shape: tuple[int, ...]
    train_groups: np.ndarray | None = None  # the natural client (a writer, a role) of each example, (n,)
    test_groups: np.ndarray | None = None  # (m,)
    train_coarse: np.ndarray | None = None  # the superclass of each training example, int32 (n,)
    vocabulary: np.ndarray | None = None  # the word of each id, for text
    counts: dict[str, int] | None = None  # numbers that the arrays do not show, such as snippets before they are cut
    class_names: tuple[str, ...] | None = None  # the name of each label; None: its number
    columns: tuple[str, ...] | None = None  # the names of a table's features
    schema: Schema | None = None  # the meaning of its columns


Load = Callable[[str | Path | None], Source]
"""Reads a data set from the folder of the data sets; see `fedoptax.data.files.find_data_dir`."""

ClientRows = tuple[Hashable, Mapping[str, np.ndarray]]
"""What tells a client from the others, such as its name, and its examples, `{field: array (n, …)}`."""


def holdout(source: Source, fraction: float, seed: int, by_client: bool = False) -> Source:
    """Move a random `fraction` of every client's training examples to the test part.

    Of nᵢ examples of a client fraction · nᵢ, to the nearest whole number, are moved, but at least one stays; a client
    with few may have none to test on. Data without clients are split as one. With `by_client` a client's choice does
    not depend on the examples of others, who may all be too small.

    It is a `UsageError` if `fraction` moves no example, or if there are test examples already.
    """
    if count := len(source.test["y"]):
        raise UsageError(f"test_fraction must be left out: there are {count} test examples, got {fraction}")
    n = len(source.train["y"])
    groups = np.zeros(n, np.int64) if source.train_groups is None else source.train_groups
    _, owner, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    moved = np.minimum(np.floor(fraction * sizes + 0.5).astype(np.int64), sizes - 1)
    if by_client and not moved.any():
        return source
    if not moved.any():
        wanted = "larger" if sizes.max() > 1 else "0"
        raise UsageError(f"test_fraction must be {wanted}: clients have at most {sizes.max()} examples, got {fraction}")
    shuffled = np.random.default_rng(seed).permutation(n)
    if by_client:
        rows = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
        # By the seed alone all clients of a size would move the same rows.
        seeds = [(seed, zlib.crc32(source.train["x"][part].data)) for part in rows]
        shuffled = np.concatenate([np.random.default_rng(own).permutation(part) for own, part in zip(seeds, rows)])
    by_owner = shuffled[np.argsort(owner[shuffled], kind="stable")]  # client after client, each in random order
    rank = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_test = np.zeros(n, bool)
    is_test[by_owner] = rank < np.repeat(moved, sizes)
    return source._replace(
        train={name: array[~is_test] for name, array in source.train.items()},
        test={name: array[is_test] for name, array in source.train.items()},
        train_groups=None if source.train_groups is None else groups[~is_test],
        test_groups=None if source.train_groups is None else groups[is_test],
    )


def rows_of_clients(paths: Iterable[Path], *parts: Iterable[ClientRows]) -> Rows:
    """Yield the arrays `<part>_<field>` and `<part>_groups`, int32 codes of the clients, for the cache.

    Codes number the clients as they come: those who train are 0 … N−1, others follow. Clients without examples are left
    out. Of training and test part `paths` are where the clients come from, for messages, and `parts` the clients.
    """
    codes: dict[Hashable, int] = {}
    for part, path, clients in zip(("train", "test"), paths, parts):
        total = 0
        for client, fields in clients:
            if size := len(next(iter(fields.values()))):
                groups = np.full(size, codes.setdefault(client, len(codes)), np.int32)
                yield from ((f"{part}_{field}", rows) for field, rows in {**fields, "groups": groups}.items())
                total += size
        if total == 0:
            raise DataError(f"{path} has no examples")


PAD, OOV, BOS, EOS = "<pad>", "<unknown>", "<begin>", "<end>"


class SpecialTokens(NamedTuple):
    """Ids that stand for no word or character: padding, out of vocabulary, beginning and end of a sequence."""

    pad: int
    oov: int
    bos: int
    eos: int


def special_tokens(vocabulary: int) -> SpecialTokens:
    """Return the special ids beside those of a vocabulary of V, 1 … V: V + 4 ids in all.

    Source: the released code of Reddi et al., "Adaptive Federated Optimization", 2021 (google-research/federated,
    `utils/datasets/shakespeare_dataset.py` and `stackoverflow_word_prediction.py`).
    """
    return SpecialTokens(pad=0, oov=vocabulary + 1, bos=vocabulary + 2, eos=vocabulary + 3)


def token_names(vocabulary: Sequence[str]) -> tuple[str, ...]:
    """Name all ids beside those of a vocabulary, which begin with 1; see `special_tokens`."""
    return (PAD, *vocabulary, OOV, BOS, EOS)


def next_token(sequences: np.ndarray) -> dict[str, np.ndarray]:
    """Make x, all tokens but the last, and y, all but the first, of ids (n, length + 1)."""
    return {"x": sequences[:, :-1], "y": sequences[:, 1:]}


class ClientFile:
    """The clients of an open file of that layout, with their `names`, sorted; see `open_clients`.

    Reading raises a `DataError` where the file is damaged.
    """

    def __init__(self, path: Path, examples: Any) -> None:
        self.path = path
        self.names: list[str] = sorted(examples)
        self._examples = examples

    def count(self, client: str, field: str) -> int:
        """Return how many examples the client has."""
        with self._reading(client, field):
            return len(self._examples[client][field])

    def numbers(self, client: str, field: str) -> np.ndarray:
        """Read a field of numbers, (n, …) in its stored type."""
        with self._reading(client, field):
            values = self._examples[client][field][:]
            if values.dtype.kind not in "fiu":
                raise ValueError(f"it must hold numbers, got {values.dtype}")
            return values

    def text(self, client: str, field: str, limit: int | None = None) -> list[bytes]:
        """Read a field of byte strings; the first `limit` of them."""
        with self._reading(client, field):
            strings = self._examples[client][field][:limit].tolist()
            if not all(isinstance(string, bytes) for string in strings):
                raise ValueError("it must hold one string per example")
            return strings

    def _reading(self, client: str, field: str) -> AbstractContextManager[None]:
        return reading(f"{self.path}: client {client!r}: field '{field}'", "examples")


@contextmanager
def open_clients(path: Path) -> Iterator[ClientFile]:
    """Open a file and list its clients; a `DataError` if it has another layout."""
    import h5py  # only here: it is slow to import, and cached data need no HDF5

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise damaged(path, error) from None
    with file:
        with reading(path, "clients in a group 'examples'"):
            clients = ClientFile(path, file["examples"])
        yield clients
