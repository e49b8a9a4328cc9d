"""Examples of many clients as flat arrays with offsets: client i holds rows offsets[i]:offsets[i+1] of every array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.cache import Rows, open_arrays, write_arrays
from fedoptax.errors import DataError, check_type, shorten

_FIELD, _OFFSETS = "field-", "offsets"  # names of the arrays on disk
_CHECKED_ROWS = 4096  # checked at once, so that a check takes little memory
_NO_CLIENTS = "clients must be at least one, got none"


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The examples of N clients, client after client, so that clients of unequal size need no padding.

    Attributes:
      examples: field name -> array (total, …); all fields have the same number of rows.
      offsets: int64 (N + 1,), increasing from 0 to total.
    """

    examples: dict[str, np.ndarray]
    offsets: np.ndarray

    @classmethod
    def from_clients(cls, clients: Sequence[Mapping[str, Any]]) -> FederatedData:
        """Join one mapping per client, `{field: array (n_i, …)}`, with the same fields for every client.

        No clients, an empty one, fields, shapes or dtypes that differ, and NaN or infinity are a `DataError`.
        """
        rows = list(_fields_of_clients(clients))
        examples = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        return cls(examples, np.cumsum([0, *map(_length, rows)]))

    @classmethod
    def from_parts(cls, examples: Mapping[str, np.ndarray], parts: Sequence[ArrayLike]) -> FederatedData:
        """Split a central data set: client i holds the rows `parts[i]` of each array, row numbers or a mask (n,).

        It is a `DataError` as in `from_clients`, and for rows out of range.
        """
        fields = as_fields("examples", examples)
        rows = as_parts("parts", parts, _length(fields))
        order = np.concatenate([np.empty(0, np.int64), *rows])
        return cls({name: array[order] for name, array in fields.items()}, np.cumsum([0, *map(len, rows)]))

    @staticmethod
    def write(folder: str | Path, clients: Iterable[Mapping[str, Any]]) -> None:
        """Write clients, as in `from_clients`, to a folder, for a federation larger than memory; see `open`.

        The folder is written completely or not at all, and replaces an earlier federation. Of a generator only one
        client at a time is in memory. It is a `DataError` as in `from_clients`, and if the folder cannot be written, or
        holds other files.
        """
        earlier, own = Path(folder), (_FIELD, _OFFSETS)
        if earlier.is_file() or (earlier.is_dir() and not all(path.name.startswith(own) for path in earlier.iterdir())):
            raise DataError(f"'{folder}' is not a federation of `write`; choose another folder")

        def rows() -> Rows:
            sizes = [0]
            for fields in _fields_of_clients(clients):
                sizes.append(_length(fields))
                yield from ((_FIELD + name, array) for name, array in fields.items())
            yield _OFFSETS, np.cumsum(sizes)

        write_arrays(Path(folder), rows())

    @classmethod
    def open(cls, folder: str | Path) -> FederatedData:
        """Open a federation of `write`, memory-mapped: floats are read once, to be checked, then only the used rows.

        It is a `DataError` if it is missing, incomplete or damaged, or holds NaN or infinity.
        """
        arrays = open_arrays(Path(folder))
        examples = {name.removeprefix(_FIELD): array for name, array in arrays.items() if name.startswith(_FIELD)}
        if _OFFSETS not in arrays:
            raise DataError(f"'{folder}' is not a federation: it has no offsets")
        return cls(examples, np.array(arrays[_OFFSETS]))

    def __post_init__(self) -> None:
        offsets = np.asarray(self.offsets, np.int64)
        sizes = np.diff(offsets)
        if not len(sizes):
            raise DataError(_NO_CLIENTS)
        if np.any(sizes < 1):
            raise DataError(f"client {np.argmax(sizes < 1)} has no examples; every client needs at least one")
        examples = as_fields("examples", self.examples)
        if (total := _length(examples)) != offsets[-1] or offsets[0] != 0:
            raise DataError(f"offsets must be 0 to {total}, the rows of examples, got {offsets[0]} to {offsets[-1]}")
        object.__setattr__(self, "examples", examples)
        object.__setattr__(self, "offsets", offsets)

    @property
    def num_clients(self) -> int:
        """The number of clients, N."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        """The number of examples per client, int64 (N,)."""
        return np.diff(self.offsets)

    def split(self, fraction: float, seed: int) -> tuple[FederatedData, dict[str, np.ndarray], np.ndarray]:
        """Take a share of each client's examples out, at random by the seed; each client keeps at least one.

        Returns what is left, the examples that were taken, client after client, and the client of each, int64 (m,).
        """
        sizes = self.sizes
        owners, starts = np.repeat(np.arange(self.num_clients), sizes), np.repeat(self.offsets[:-1], sizes)
        order = np.lexsort((np.random.default_rng(seed).random(len(owners)), owners))  # shuffled within each client
        counts = np.minimum(np.rint(fraction * sizes).astype(np.int64), sizes - 1)
        is_taken = np.zeros(len(owners), bool)
        is_taken[order[np.arange(len(owners)) - starts < counts[owners]]] = True
        left = {name: array[~is_taken] for name, array in self.examples.items()}
        taken = {name: array[is_taken] for name, array in self.examples.items()}
        return FederatedData(left, np.concatenate([[0], np.cumsum(sizes - counts)])), taken, owners[is_taken]

    def check_held_out(self, name: str, examples: Any, owners: Any) -> None:
        """Check examples to evaluate on, `{field: array (n, …)}`, and their clients, (n,); each may be None.

        Other arrays, or fields of other axes than the clients', or floats beside others, are a `DataError`.
        """
        if examples is None:
            return
        fields = as_fields(name, examples)
        for field, array in fields.items():
            like = self.examples.get(field, array)
            if (array.ndim, array.dtype.kind == "f") != (like.ndim, like.dtype.kind == "f"):
                wanted, got = (f"{one.ndim} axes of {one.dtype}" for one in (like, array))
                raise DataError(f"{name}: field '{field}' must have {wanted} as the clients' has, got {got}")
        n, numbers = _length(fields), None if owners is None else np.asarray(owners)
        if numbers is not None and (numbers.shape != (n,) or numbers.dtype.kind not in "iu" or numbers.min() < 0):
            kind = f"{numbers.dtype}{list(numbers.shape)}"
            raise DataError(f"{name}_owners must be {n} numbers >= 0 of clients, got {kind}")

    def client(self, i: int) -> dict[str, np.ndarray]:
        """Return the examples of client i, `{field: array (n_i, …)}` (views; do not write to them)."""
        return {name: array[self.offsets[i] : self.offsets[i + 1]] for name, array in self.examples.items()}


def as_parts(name: str, parts: Any, total: int | None = None) -> list[np.ndarray]:
    """Return the parts of a partition of `total` examples, row numbers in range or masks (total,), as int64 rows."""
    check_type(name, parts, Iterable)
    arrays = []
    for i, part in enumerate(parts):
        rows = np.asarray(part)
        if rows.dtype == bool and rows.ndim == 1 and total in (len(rows), None):
            rows = np.flatnonzero(rows)
        elif (
            rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu") or (2 < len(rows) == total and rows.max() < 2)
        ):
            raise DataError(
                f"{name}[{i}] must hold row numbers or be a boolean mask, got {rows.dtype}{list(rows.shape)}"
            )
        arrays.append(rows.astype(np.int64, copy=False))
    rows = np.concatenate([np.empty(0, np.int64), *arrays])
    if total is not None and len(rows) and not 0 <= rows.min() <= rows.max() < total:
        raise DataError(f"{name} must hold rows from 0 to {total - 1}, got {rows.min()} to {rows.max()}")
    return arrays


def as_fields(where: str, examples: Any) -> dict[str, np.ndarray]:
    """Return the examples of a client or an argument `where` as arrays, `{field: array (n, …)}`.

    What is no such array of n ≥ 1 finite numbers, or is called `mask` as in a batch, is a `DataError`.
    """
    if not isinstance(examples, Mapping) or not examples:
        raise DataError(f"{where} must be a mapping {{field: array (n, …)}}, got {shorten(repr(examples), 80)}")
    fields: dict[str, np.ndarray] = {}
    for name, value in examples.items():
        field = f"{where}: field '{name}'"
        if name == "mask":
            raise DataError(f"{field} must have another name: batches use this one for padding")
        try:
            array = fields[name] = np.asanyarray(value)
        except (TypeError, ValueError, RuntimeError) as error:  # rows of unequal length, a tensor with a gradient
            raise DataError(f"{field} must be an array: {shorten(error)}") from error
        # of kind V are bfloat16 and other floats that NumPy does not know
        is_real = array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat", "float"))
        if (not is_real and array.dtype.kind not in "biu") or np.ma.is_masked(array) or not array.dtype.isnative:
            raise DataError(f"{field} must hold native numbers or booleans, none masked, got {array.dtype}")
        if (is_real or array.itemsize > 4) and (row := _first_unusable_row(array)) is not None:
            raise DataError(f"{field}, row {row + 1}: holds NaN, infinity or a whole number beyond 32 bits")
    lengths = {name: len(array) if array.ndim else 0 for name, array in fields.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise DataError(f"{where}: fields must have equal lengths and at least one example, got {lengths}")
    return fields


def _fields_of_clients(clients: Any) -> Iterator[dict[str, np.ndarray]]:
    """Yield each client's examples as arrays; fields, shapes and types must be those of client 0."""
    check_type("clients", clients, Iterable)
    first: dict[str, str] = {}
    for i, client in enumerate(clients):
        fields = as_fields(f"client {i}", client)
        forms = {name: f"{array.dtype}{list(array.shape[1:])}" for name, array in fields.items()}
        first = first or forms
        if forms != first:
            raise DataError(f"client {i}: fields must be {first} as for client 0, got {forms}")
        yield fields
    if not first:
        raise DataError(_NO_CLIENTS)


def _first_unusable_row(array: np.ndarray) -> int | None:
    """Return the first row with NaN, infinity or a whole number that JAX's 32 bits would wrap, or None."""
    array = np.atleast_1d(array)
    for start in range(0, len(array), _CHECKED_ROWS):
        rows = array[start : start + _CHECKED_ROWS]
        is_usable = rows == rows.astype(f"{rows.dtype.kind}4") if rows.dtype.kind in "iu" else np.isfinite(rows)
        if not is_usable.all():
            return start + int(np.argwhere(~is_usable)[0][0])
    return None


def _length(fields: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(fields.values())))
