"""What every format of one's own data becomes: checked arrays, classes 0 … C−1, and the client of each example."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedoptax.data.own.columns import Names
from fedoptax.data.sources import Source
from fedoptax.errors import DataError

MAX_BYTES = 2**32
"""The most that the examples may take in memory, in bytes, if no other number is given: 4 GiB."""

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")  # whole numbers as int64 prints them; "007" is a name


class Examples(NamedTuple):
    """The training or the test part, as the reader of a format found it.

    Attributes:
      x: (n, …), as from `fedoptax.data.own.columns.numbers`.
      y: the labels of n examples.
      client: the clients of n examples, or None.
    """

    x: np.ndarray
    y: Names
    client: Names | None


def build(where: str, train: Examples, test: Examples | None, class_names: Sequence[str] | None = None) -> Source:
    """Makes the source of what a reader found.

    Classes are numbered in sorted order: by value if all names are whole numbers, else as text. Client ids become
    int64 if all of them, of both parts, are whole numbers. So the same data is the same source in every format.

    Args:
      where: the file, for messages.
      train: at least one example.
      test: of the same form; None if there is none.
      class_names: the order of the classes, where the data states it; all labels are among them.

    Raises:
      DataError: the parts do not fit together, or there is nothing to train on.
    """
    if len(train.x) == 0:
        raise DataError(f"{where}: holds no training examples; at least one is needed")
    test = test or _empty_like(train)
    for name, part in (("training", train), ("test", test)):
        _check_lengths(where, name, part)
    if (test.x.shape[1:], test.x.dtype) != (train.x.shape[1:], train.x.dtype):
        raise DataError(
            f"{where}: test examples of {test.x.dtype}{list(test.x.shape[1:])}, "
            f"training examples of {train.x.dtype}{list(train.x.shape[1:])}"
        )
    classes = _ordered(train.y.values, test.y.values) if class_names is None else list(class_names)
    if other := set(train.y.values).union(test.y.values).difference(classes):
        raise DataError(f"{where}: class {min(other)!r} is not one of the {len(classes)} that the training part states")
    place = {name: code for code, name in enumerate(classes)}
    groups = _groups(where, train.client, test.client)
    return Source(
        train={"x": train.x, "y": _translate(train.y, place).astype(np.int32)},
        test={"x": test.x, "y": _translate(test.y, place).astype(np.int32)},
        num_classes=len(classes),
        input_shape=train.x.shape[1:],
        train_groups=groups[0],
        test_groups=groups[1],
        class_names=tuple(classes),
    )


def _empty_like(part: Examples) -> Examples:
    nothing = Names([], np.empty(0, np.int64))
    return Examples(part.x[:0], nothing, None if part.client is None else nothing)


def _check_lengths(where: str, name: str, part: Examples) -> None:
    for what, column in (("labels", part.y), ("clients", part.client)):
        if column is not None and len(column.codes) != len(part.x):
            raise DataError(f"{where}: {len(column.codes)} {what} for the {len(part.x)} {name} examples")


def _groups(where: str, train: Names | None, test: Names | None) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
    """The client ids of both parts, (n,) and (m,), of one type."""
    if train is None and test is None:
        return None, None
    if train is None or test is None:
        raise DataError(f"{where}: clients are given for one of the training and the test examples, not for both")
    names = _ordered(train.values, test.values)
    place = {name: code for code, name in enumerate(names)}
    ids = np.array([int(name) for name in names], np.int64) if _all_whole(names) else np.array(names)
    return ids[_translate(train, place)], ids[_translate(test, place)]


def _translate(column: Names, place: Mapping[str, int]) -> np.ndarray:
    """The new number of each example's name, int64 (n,)."""
    return np.array([place[name] for name in column.values], np.int64)[column.codes]


def _ordered(*values: Sequence[str]) -> list[str]:
    names = set().union(*values)
    return sorted(names, key=int) if _all_whole(names) else sorted(names)


def _all_whole(names: Iterable[str]) -> bool:
    return all(_WHOLE.fullmatch(name) for name in names)
