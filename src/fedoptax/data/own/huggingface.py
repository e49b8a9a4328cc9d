"""One's own data as a data set of Hugging Face's `datasets`, which the caller has loaded; it is not imported here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedoptax.data.own.columns import Names, checked, names, numbers
from fedoptax.data.own.images import stack
from fedoptax.data.own.source import MAX_BYTES, Examples, build
from fedoptax.data.sources import Source
from fedoptax.errors import DataError, UsageError

_BATCH = 1000


def from_dataset(
    dataset: Any,
    *,
    x: str | Sequence[str] | None = None,
    label: str = "label",
    client: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    max_bytes: int = MAX_BYTES,
) -> Source:
    """Takes the columns of a `datasets.Dataset`, or of the splits `train` and `test` of a `datasets.DatasetDict`.

    Args:
      dataset: map-style, not streaming. Other splits are left out.
      x: the column of the examples: images, or numbers and nested lists of one shape; or several columns of one number
        each, which become (n, columns). None takes all but those of the labels and the clients.
      label: the column of the labels: a `ClassLabel`, whose order of the classes is kept, whole numbers or text.
      client: the column of the client ids, whole numbers, text or a `ClassLabel`; None takes `client` if it is there.
      image_size: the height and width to resize images to, one number for a square; None if all are of one size.
      max_bytes: the most that the examples of one split may take in memory.

    Returns:
      x uint8 (n, height, width, 1 or 3) of images, float32 (n, columns) of several columns, else as stored (but float64
      as float32, int64 as int32).

    Raises:
      DataError: a split or column is missing, cannot be used, or holds more than allowed.
      UsageError: `dataset` is no such data set, or `image_size` no size.
    """
    parts = _splits(dataset)
    held = list(parts["train"].column_names)
    client = "client" if client is None and "client" in held else client
    others = [name for name in held if name not in (label, client)]
    columns = others if x is None else [x] if isinstance(x, str) else list(x)
    for split, part in parts.items():
        if missing := [name for name in (*columns, label, client) if name and name not in part.column_names]:
            raise DataError(f"dataset: split '{split}' lacks the column '{missing[0]}' (it has: {', '.join(held)})")
    if not columns:
        raise DataError("dataset: has no columns besides those of the labels and the clients")
    if any(type(parts["train"].features[name]).__name__ == "Image" for name in columns):
        examples = _images(parts, columns, image_size, max_bytes)
    else:
        examples = {split: _numbers(split, part, columns, max_bytes) for split, part in parts.items()}
    train, *test = [
        Examples(examples[split], _names(split, part, label), None if client is None else _names(split, part, client))
        for split, part in parts.items()
    ]
    return build("dataset", train, test[0] if test else None, getattr(parts["train"].features[label], "names", None))


def _splits(dataset: Any) -> dict[str, Any]:
    """The splits that are used and hold examples, `train` first."""
    splits = dataset if isinstance(dataset, Mapping) else {"train": dataset}
    if "train" not in splits:
        raise DataError(f"dataset: lacks the split 'train' (it has: {', '.join(map(str, splits))})")
    parts = {name: splits[name] for name in ("train", "test") if name in splits}
    for part in parts.values():
        if not all(hasattr(part, name) for name in ("column_names", "features", "select_columns", "__len__")):
            raise UsageError(f"dataset: {type(part).__name__} given; a datasets.Dataset or DatasetDict is allowed")
    if len(parts["train"]) == 0:
        raise DataError("dataset: holds no training examples; at least one is needed")
    return {name: part for name, part in parts.items() if len(part)}


def _images(
    parts: Mapping[str, Any], columns: Sequence[str], image_size: int | tuple[int, int] | None, max_bytes: int
) -> dict[str, np.ndarray]:
    if len(columns) > 1:
        raise DataError(f"dataset: columns {', '.join(columns)} of which one holds images; name that one with x=")
    opened = []
    for split, part in parts.items():
        rows = part.select_columns(list(columns)).with_format(None)
        opened += [(f"{_where(split, columns[0])}, row {i + 1}", partial(_cell, rows, i)) for i in range(len(part))]
    array = stack(opened, len(opened), image_size, max_bytes)
    n = len(parts["train"])
    return {split: array[:n] if split == "train" else array[n:] for split in parts}


def _cell(rows: Any, i: int) -> Any:
    return next(iter(rows[i].values()))


def _numbers(split: str, part: Any, columns: Sequence[str], max_bytes: int) -> np.ndarray:
    """(n, …) of one column, float32 (n, columns) of several."""
    if len(columns) == 1:
        return numbers(_where(split, columns[0]), _column(split, part, columns[0], max_bytes))
    several = [numbers(_where(split, name), _column(split, part, name, max_bytes)) for name in columns]
    for name, column in zip(columns, several):
        if column.shape[1:] != (1,):
            raise DataError(f"{_where(split, name)}: {column.shape[1:]} an example; of several columns one number each")
    return np.concatenate([column.astype(np.float32) for column in several], axis=1)


def _column(split: str, part: Any, name: str, max_bytes: int) -> np.ndarray:
    batches: list[np.ndarray] = []
    size = 0
    for batch in part.select_columns([name]).with_format("numpy").iter(batch_size=_BATCH):
        batches.append(_filled(np.asarray(batch[name])))
        size += batches[-1].nbytes
        if size > max_bytes:
            raise DataError(f"{_where(split, name)}: more than {max_bytes} bytes (max_bytes)")
        if batches[-1].shape[1:] != batches[0].shape[1:] or batches[-1].dtype == object:
            raise DataError(f"{_where(split, name)}: numbers of one shape for every example are needed")
    return np.concatenate(batches)


def _filled(batch: np.ndarray) -> np.ndarray:
    """Numbers with NaN where one is missing, which older versions of `datasets` give as objects, None among them."""
    if batch.dtype == object and all(value is None or isinstance(value, int | float) for value in batch.tolist()):
        return batch.astype(np.float64)
    return batch


def _names(split: str, part: Any, name: str) -> Names:
    where = _where(split, name)
    values: list[Any] = []
    for batch in part.select_columns([name]).with_format("numpy").iter(batch_size=_BATCH):
        values += batch[name].tolist()
    of_codes = getattr(part.features[name], "names", None)
    if of_codes is None:
        return names(where, values)
    codes = np.array([-1 if value is None or value != value else value for value in values], np.int64)
    return checked(where, Names(list(of_codes), codes))


def _where(split: str, name: str) -> str:
    return f"dataset: split '{split}', column '{name}'"
