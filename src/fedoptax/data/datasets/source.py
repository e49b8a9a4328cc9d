"""A data set before it is divided among clients; a test part for one without; writing natural clients to the cache."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedoptax.data.cache import ArrayWriter
from fedoptax.data.schema import Schema
from fedoptax.errors import DataError, UsageError, check_int, check_number


class Source(NamedTuple):
    """A data set before it is divided among clients: n examples to train on, m to test on.

    Attributes:
      train, test: `"x"` of shape (n, *input_shape) in its stored type, `"y"` int32 of shape (n,), 0 … num_classes − 1;
        for text, both are ids of shape (n, length), or as its module says.
      train_groups, test_groups: the natural client (a writer, a role) of each example, (n,) and (m,).
      train_coarse: the superclass of each training example, int32 of shape (n,).
      vocabulary: the word of each id, for text.
      counts: numbers that the arrays do not show, such as snippets before they are cut.
      class_names: what each label is called; None: its number.
      columns, schema: the names of a table's features, and what its columns mean.
    """

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    num_classes: int
    input_shape: tuple[int, ...]
    train_groups: np.ndarray | None = None
    test_groups: np.ndarray | None = None
    train_coarse: np.ndarray | None = None
    vocabulary: np.ndarray | None = None
    counts: dict[str, int] | None = None
    class_names: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    schema: Schema | None = None


Load = Callable[[str | Path | None], Source]
"""Reads a data set from the folder of the data sets; see `fedoptax.data.files.find_data_dir`."""

Client = tuple[Hashable, Mapping[str, np.ndarray]]
"""What tells a client from the others, such as its name, and its examples, `{field: array (n, …)}`."""


def holdout(source: Source, fraction: float, seed: int, by_client: bool = False) -> Source:
    """Move a random `fraction` of every client's training examples to the test part.

    Of nᵢ examples of a client fraction · nᵢ, to the nearest whole number, are moved, but at least one stays; a client
    with few may have none to test on. Data without clients are split as one. With `by_client` a client's choice does
    not depend on the examples of others, who may all be too small.

    It is a `UsageError` if `fraction` is not in (0, 1) or moves no example, or if there are test examples already.
    """
    check_number("fraction", fraction, 0, 1, open_low=True)
    check_int("seed", seed, 0, 2**63 - 1)
    if len(source.test["y"]):
        raise UsageError(f"fraction must be left out: there are {len(source.test['y'])} test examples, got {fraction}")
    n = len(source.train["y"])
    groups = np.zeros(n, np.int64) if source.train_groups is None else source.train_groups
    _, owner, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    moved = np.minimum(np.floor(fraction * sizes + 0.5).astype(np.int64), sizes - 1)
    if by_client and not moved.any():
        return source
    if not moved.any():
        raise UsageError(f"fraction must be larger, as no client has more than {sizes.max()} examples, got {fraction}")
    shuffled = np.random.default_rng(seed).permutation(n)
    if by_client:
        rows = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
        shuffled = np.concatenate([np.random.default_rng(seed).permutation(part) for part in rows])
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


def cached_groups(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the groups that `write_clients` wrote, as attributes of `Source`."""
    return {name: arrays[name] for name in ("train_groups", "test_groups")}


def write_clients(writer: ArrayWriter, parts: Mapping[str, tuple[Path, Iterable[Client]]]) -> None:
    """Write the arrays `<part>_<field>` and `<part>_groups`, int32 codes of the clients.

    Codes number the clients as they come: those who train are 0 … N−1, others follow. Clients without examples are left
    out. `parts` is `"train"`, then `"test"` -> where the clients come from, for messages, and the clients one by one.
    """
    codes: dict[Hashable, int] = {}
    for part, (path, clients) in parts.items():
        total = 0
        for name, fields in clients:
            if size := len(next(iter(fields.values()))):
                groups = np.full(size, codes.setdefault(name, len(codes)), np.int32)
                for field, rows in {**fields, "groups": groups}.items():
                    writer.append(f"{part}_{field}", rows)
                total += size
        if total == 0:
            raise DataError(f"{path} has no examples")
