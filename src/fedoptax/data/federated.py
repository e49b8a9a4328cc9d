"""Examples of many clients as flat arrays with offsets: client i holds rows offsets[i]:offsets[i+1] of every array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax.data.cache import ArrayWriter, open_arrays, write_arrays
from fedoptax.errors import DataError, check_type

_FIELD, _OFFSETS = "field-", "offsets"  # names of the arrays on disk
_CHECKED_ROWS = 4096  # checked at once, so that a check takes little memory


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

        Raises:
          DataError: no clients, an empty client, fields, shapes or dtypes that differ, or NaN or infinity in the data.
        """
        for i, client in enumerate(clients):
            check_type(f"clients: client {i}", client, Mapping)
        rows = [{name: np.asarray(value) for name, value in client.items()} for client in clients]
        sizes = [_client_size(i, row, rows[0]) for i, row in enumerate(rows)]
        examples = {name: np.concatenate([row[name] for row in rows]) for name in (rows or [{}])[0]}
        return cls._checked(examples, np.concatenate([[0], np.cumsum(sizes)]))

    @classmethod
    def from_parts(cls, examples: Mapping[str, np.ndarray], parts: Sequence[np.ndarray]) -> FederatedData:
        """Split a central data set: client i holds the rows `parts[i]` of each array.

        Raises:
          DataError: no clients, an empty client, rows out of range, arrays of unequal length, or NaN or infinity.
        """
        order = np.concatenate([np.empty(0, np.int64), *parts])
        rows = min((len(array) for array in examples.values()), default=0)
        if len(order) and not 0 <= order.min() <= order.max() < rows:
            raise DataError(f"parts must hold rows from 0 to {rows - 1}, got {order.min()} to {order.max()}")
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        return cls._checked({name: array[order] for name, array in examples.items()}, offsets)

    @classmethod
    def from_groups(cls, examples: Mapping[str, np.ndarray], groups: np.ndarray) -> FederatedData:
        """Take a central data set whose rows lie client after client; nothing is copied.

        Raises:
          DataError: `groups`, the client of each row, (n,), decreases or has another shape; or NaN or infinity.
        """
        if groups.ndim != 1 or len(groups) == 0 or np.any(groups[1:] < groups[:-1]):
            raise DataError("groups must be one per row, never decreasing, and at least one")
        starts = np.flatnonzero(groups[1:] != groups[:-1]) + 1
        return cls._checked(dict(examples), np.concatenate([[0], starts, [len(groups)]]))

    @staticmethod
    def write(folder: str | Path, clients: Iterable[Mapping[str, Any]]) -> None:
        """Write clients one by one to a folder, for a federation larger than memory; see `open`.

        Args:
          folder: is written completely or not at all; an earlier one there is replaced.
          clients: one mapping per client, as in `from_clients`; of a generator only one client at a time is in memory.

        Raises:
          DataError: as in `from_clients`, or the folder cannot be written.
        """

        def build(writer: ArrayWriter) -> None:
            sizes: list[int] = []
            first: dict[str, np.ndarray] = {}
            for i, client in enumerate(clients):
                rows = {name: np.asarray(value) for name, value in client.items()}
                first = first or {name: value[:1] for name, value in rows.items()}
                sizes.append(_client_size(i, rows, first))
                for name, value in rows.items():
                    if _first_not_finite(value) is not None:
                        raise DataError(f"client {i}: field '{name}' holds NaN or infinity")
                    writer.append(_FIELD + name, value)
            if not sizes:
                raise DataError("clients must be at least one, got none")
            writer.append(_OFFSETS, np.concatenate([[0], np.cumsum(sizes)]))

        write_arrays(Path(folder), build)

    @classmethod
    def open(cls, folder: str | Path) -> FederatedData:
        """Open the federation that `write` wrote, mapped from its files: only what is used is read.

        Raises:
          DataError: it is missing, incomplete or damaged, or holds NaN or infinity.
        """
        arrays = open_arrays(Path(folder))
        examples = {name.removeprefix(_FIELD): array for name, array in arrays.items() if name.startswith(_FIELD)}
        if _OFFSETS not in arrays:
            raise DataError(f"'{folder}' is no federation: it has no offsets")
        return cls._checked(examples, np.array(arrays[_OFFSETS]))

    @classmethod
    def _checked(cls, examples: dict[str, np.ndarray], offsets: np.ndarray) -> FederatedData:
        sizes = np.diff(offsets)
        if not len(sizes):
            raise DataError("clients must be at least one, got none")
        if np.any(sizes < 1):
            raise DataError(f"client {np.argmax(sizes < 1)} holds no examples; every client needs at least one")
        lengths = {name: len(array) for name, array in examples.items()}
        if set(lengths.values()) != {int(offsets[-1])}:
            raise DataError(f"fields must hold the {offsets[-1]} rows of {len(offsets) - 1} clients, got {lengths}")
        check_fields(examples)
        for name, array in examples.items():
            if (row := _first_not_finite(array)) is not None:
                client = int(np.searchsorted(offsets, row, side="right")) - 1
                raise DataError(f"client {client}: field '{name}' holds NaN or infinity")
        return cls(examples, offsets.astype(np.int64))

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

        Returns:
          What is left, the examples that were taken, client after client, and the client of each, int64 (m,).
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

    def client(self, i: int) -> dict[str, np.ndarray]:
        """Return the examples of client i, `{field: array (n_i, …)}` (views, not copies)."""
        return {name: array[self.offsets[i] : self.offsets[i + 1]] for name, array in self.examples.items()}


def check_fields(examples: Mapping[str, np.ndarray]) -> None:
    """Check the names and types of fields.

    Raises:
      DataError: a field is called `mask`, which tells examples from padding in a batch, or holds no numbers.
    """
    for name, array in examples.items():
        if name == "mask":
            raise DataError("field 'mask' must have another name: batches use it to tell examples from padding")
        if array.dtype.kind not in "biu" and not _is_real(array.dtype):
            raise DataError(f"field '{name}' must hold numbers or booleans, got {array.dtype}")


def _is_real(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of this type may be NaN or infinite, also for bfloat16, which NumPy does not know."""
    return dtype.kind in "fc" or dtype.name.startswith(("bfloat", "float"))


def _first_not_finite(array: np.ndarray) -> int | None:
    """Return the first row of `array` with NaN or infinity, or None."""
    if not _is_real(array.dtype):
        return None
    for start in range(0, len(array), _CHECKED_ROWS):
        rows = array[start : start + _CHECKED_ROWS]
        if not np.isfinite(rows).all():
            return start + int(np.argwhere(~np.isfinite(rows))[0][0])
    return None


def _client_size(i: int, row: Mapping[str, np.ndarray], first: Mapping[str, np.ndarray]) -> int:
    if not row:
        raise DataError(f"client {i} has no fields")
    if row.keys() != first.keys():
        raise DataError(f"client {i}: fields must be {sorted(first)} as for client 0, got {sorted(row)}")
    lengths = {name: array.shape[0] if array.ndim else 0 for name, array in row.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise DataError(f"client {i}: fields must be of one length, and hold at least one example, got {lengths}")
    for name, array in row.items():
        if array.shape[1:] != first[name].shape[1:] or array.dtype != first[name].dtype:
            raise DataError(
                f"client {i}: field '{name}' must be {first[name].dtype}{list(first[name].shape[1:])} as for client 0, "
                f"got {array.dtype}{list(array.shape[1:])}"
            )
    return next(iter(lengths.values()))
