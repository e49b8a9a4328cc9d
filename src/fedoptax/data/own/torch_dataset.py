"""One's own data as a map-style data set of PyTorch, which the caller has made; torch is not imported here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.own.columns import names, numbers
from fedoptax.data.own.images import stack
from fedoptax.data.own.source import MAX_BYTES, Examples, build
from fedoptax.data.sources import Source
from fedoptax.errors import DataError, UsageError


class MapDataset(Protocol):
    """What `torch.utils.data.Dataset` is to those who read it; an item is a pair (x, y)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


ClientOf = Callable[[int], Any] | ArrayLike
"""The client of each item, by its index: a function, or one value an item."""


def from_dataset(
    dataset: MapDataset,
    client_of: ClientOf | None = None,
    *,
    test: MapDataset | None = None,
    test_client_of: ClientOf | None = None,
    channels_first: bool = False,
    max_bytes: int = MAX_BYTES,
) -> Source:
    """Reads every item (x, y) of a data set once, in order, and keeps what it holds.

    Random transforms of the data set are thus applied once.

    Args:
      dataset: the training examples. x is a tensor, an array, a number or a Pillow image, of one shape for all; y is a
        whole number or text.
      client_of: the client id of each item, a whole number or text; None if the data says nothing of clients.
      test: the test examples, in the same form.
      test_client_of: of the test examples; needed if there are both `test` and `client_of`.
      channels_first: x is (channels, height, width), PyTorch's order of images; it becomes (height, width, channels).
      max_bytes: the most that the examples of one part may take in memory.

    Returns:
      x in its own type (but float64 as float32, int64 as int32), uint8 of images.

    Raises:
      DataError: an item is no such pair or has another shape than the first, or there is more than allowed.
      UsageError: `dataset` has no length or items, or `client_of` is not one value an item.
    """
    train = _examples("dataset", dataset, "client_of", client_of, channels_first, max_bytes)
    if test is None:
        return build("dataset", train, None)
    return build("dataset", train, _examples("test", test, "test_client_of", test_client_of, channels_first, max_bytes))


def _examples(
    where: str, dataset: MapDataset, argument: str, client_of: ClientOf | None, channels_first: bool, max_bytes: int
) -> Examples:
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UsageError(f"{where}: {type(dataset).__name__} given; a data set with a length and items is allowed")
    count = len(dataset)
    if count == 0:
        raise DataError(f"{where}: holds no examples; at least one is needed")
    labels: list[Any] = []

    def read(i: int) -> Any:
        item = dataset[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"{where}, item {i}: {type(item).__name__} given; a pair (x, y) is allowed")
        labels.append(_scalar(item[1]))
        return item[0]

    first = read(0)
    labels.clear()
    if hasattr(first, "getbands"):  # a Pillow image
        x = stack([(f"{where}, item {i}", partial(read, i)) for i in range(count)], count, None, max_bytes)
    else:
        x = _arrays(where, read, count, max_bytes)
        x = np.moveaxis(x, 1, -1) if channels_first and x.ndim > 2 else x
    client = None if client_of is None else names(argument, _clients(argument, client_of, count))
    return Examples(numbers(f"{where}: x", x), names(f"{where}: y", labels), client)


def _arrays(where: str, read: Callable[[int], Any], count: int, max_bytes: int) -> np.ndarray:
    x = np.empty(0)
    for i in range(count):
        row = _array(f"{where}, item {i}", read(i))
        if i == 0:
            if row.nbytes * count > max_bytes:
                raise DataError(
                    f"{where}: {count} items take {row.nbytes * count} bytes; at most {max_bytes} are allowed"
                )
            x = np.empty((count, *row.shape), row.dtype)
        if row.shape != x.shape[1:] or row.dtype != x.dtype:
            raise DataError(
                f"{where}, item {i}: x of {row.dtype}{list(row.shape)}, before {x.dtype}{list(x.shape[1:])}"
            )
        x[i] = row
    return x


def _array(where: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor on a GPU, or one that has a gradient
        raise DataError(f"{where}: no array can be made of it: {' '.join(str(error).split())}") from None


def _scalar(value: Any) -> Any:
    """A tensor or array of one value as Python's own; anything else as it is."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _clients(argument: str, client_of: ClientOf, count: int) -> list[Any] | np.ndarray:
    if callable(client_of):
        return [_scalar(client_of(i)) for i in range(count)]
    ids = _array(argument, client_of)
    if ids.shape != (count,):
        raise UsageError(f"{argument}: shape {ids.shape} given; one client id for each of the {count} items is allowed")
    return ids
