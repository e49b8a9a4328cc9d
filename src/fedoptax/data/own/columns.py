"""Columns of one's own data: numbers that a model can take, and the names of classes and clients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedoptax.errors import DataError

_MAX_NAME = 200  # characters of a client's or a class's name: an array of text is as wide as the longest
_INT32 = np.iinfo(np.int32)


class Names(NamedTuple):
    """The names of n examples, each different one once.

    Attributes:
      values: the k different names, in any order.
      codes: int64 (n,), the place in `values` of each example's name.
    """

    values: list[str]
    codes: np.ndarray


def names(where: str, values: Any) -> Names:
    """Labels or client ids: whole numbers, truth values or text, (n,).

    Args:
      where: the file and the column, for messages.
      values: what the column holds, an array or a list.

    Raises:
      DataError: another shape, numbers with a fraction, a missing, empty or overlong name.
    """
    if isinstance(values, list):
        return _of_list(where, values)
    array = np.asarray(values)
    if array.ndim == 1 and array.dtype == object:
        return _of_list(where, array.tolist())
    if array.ndim != 1 or array.dtype.kind not in "iubUS":
        raise DataError(
            f"{where}: {array.dtype}{list(array.shape[1:])} an example given; a whole number or text is allowed"
        )
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: text that is not UTF-8: {error.reason}") from None
    different, codes = np.unique(array, return_inverse=True)
    return checked(where, Names([str(value) for value in different], codes.astype(np.int64)))


def _of_list(where: str, values: list[Any]) -> Names:
    """As `names`, of Python's own text and numbers; never as an array of text, which one long cell would blow up."""
    place: dict[str, int] = {}
    codes = np.empty(len(values), np.int64)
    for row, value in enumerate(values):
        if not isinstance(value, str | int):
            raise DataError(f"{where}, row {row + 1}: {short(value)} given; a whole number or text is allowed")
        codes[row] = place.setdefault(str(value), len(place))
    return checked(where, Names(list(place), codes))


def checked(where: str, column: Names) -> Names:
    """The same column, all of whose names can be used.

    Raises:
      DataError: a row has no name (its code is negative or the name empty), or a name is too long.
    """
    usable = np.array([0 < len(name) <= _MAX_NAME for name in column.values] + [False])  # the last is for code -1
    if (row := first_where(~usable[column.codes])) is not None:
        code = int(column.codes[row])
        name = "" if code < 0 else column.values[code]
        reason = f"a name of {len(name)} characters; at most {_MAX_NAME} are allowed" if name else "it is missing"
        raise DataError(f"{where}, row {row + 1}: {reason}")
    return column


def numbers(where: str, values: Any) -> np.ndarray:
    """Features, (n, …), as they are trained on: float64 becomes float32, whole numbers fit int32, (n,) becomes (n, 1).

    Args:
      where: the file and the column, for messages.
      values: what was found there.

    Raises:
      DataError: no numbers, none for an example, NaN or infinity, or whole numbers beyond int32.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: {array.dtype} given; numbers, as many for every example, are allowed")
    if array.ndim == 0 or 0 in array.shape[1:]:
        raise DataError(f"{where}: shape {array.shape} given; (examples, …) with a number at least is allowed")
    array = np.ascontiguousarray(_narrow(where, array))
    if array.dtype.kind == "f":
        finite = np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
        if (row := first_where(~finite)) is not None:
            raise DataError(f"{where}, row {row + 1}: holds NaN, infinity or a number beyond float32")
    return array if array.ndim > 1 else array[:, None]


def _narrow(where: str, array: np.ndarray) -> np.ndarray:
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "b":
        return array.astype(np.uint8)
    if kind == "f" and size > 4:
        with np.errstate(over="ignore"):  # infinity is found afterwards
            return array.astype(np.float32)
    if kind in "iu" and size > 4:
        if array.size and (array.min() < _INT32.min or array.max() > _INT32.max):
            raise DataError(f"{where}: {array.min()} to {array.max()} given; {_INT32.min} to {_INT32.max} is allowed")
        return array.astype(np.int32)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def first_where(mask: np.ndarray) -> int | None:
    """The first place where `mask` (n,) is true; None if there is none."""
    return int(np.argmax(mask)) if mask.any() else None


def short(value: Any) -> str:
    """How a message shows a value that comes from a file."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else f"{text[:40]}…"
