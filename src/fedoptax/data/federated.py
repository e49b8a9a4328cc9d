"""Examples of many clients as flat arrays with offsets: client i holds rows offsets[i]:offsets[i+1] of every array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax.data.store import StoreWriter, open_store, write_store
from fedoptax.errors import DataError

_FIELD, _OFFSETS = "field-", "offsets"  # names of the arrays in a store
_CHECKED_ROWS = 4096  # looked at together, so that a check takes no memory


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
        """Joins one mapping a client, `{field: array (n_i, …)}`, with the same fields for every client.

        Raises:
          DataError: no clients, an empty client, fields, shapes or dtypes that differ, or NaN or infinity in the data.
        """
        if not clients:
            raise DataError("clients: none given, at least one is needed")
        rows = [{name: np.asarray(value) for name, value in client.items()} for client in clients]
        sizes = [_client_size(i, row, rows[0]) for i, row in enumerate(rows)]
        examples = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        return cls._checked(examples, np.concatenate([[0], np.cumsum(sizes)]))

    @classmethod
    def from_parts(cls, examples: Mapping[str, np.ndarray], parts: Sequence[np.ndarray]) -> FederatedData:
        """Splits a central data set: client i holds the rows `parts[i]` of each array.

        Raises:
          DataError: no clients, an empty client, rows that are not there, arrays of unequal length, or NaN or infinity.
        """
        if not len(parts):
            raise DataError("parts: none given, at least one is needed")
        least = min((len(array) for array in examples.values()), default=0)
        for i, part in enumerate(parts):
            if len(part) == 0:
                raise DataError(f"client {i}: it holds no examples; every client needs at least one")
            if np.min(part) < 0 or np.max(part) >= least:
                raise DataError(f"client {i}: rows {np.min(part)} to {np.max(part)} given, there are 0 to {least - 1}")
        if len({len(array) for array in examples.values()}) > 1:
            raise DataError(f"fields of lengths {[len(array) for array in examples.values()]} given")
        order = np.concatenate(parts)
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        return cls._checked({name: array[order] for name, array in examples.items()}, offsets)

    @classmethod
    def from_groups(cls, examples: Mapping[str, np.ndarray], groups: np.ndarray) -> FederatedData:
        """A central data set whose rows lie client after client: `groups` (n,) is the client of each, never decreasing.

        Nothing is copied, so arrays that are mapped from files stay there.

        Raises:
          DataError: `groups` has another shape or decreases, or is not as long as the arrays, or there is NaN or
            infinity in the data.
        """
        if groups.ndim != 1 or len(groups) == 0 or np.any(groups[1:] < groups[:-1]):
            raise DataError("groups: one a row, never decreasing, at least one is needed")
        starts = np.flatnonzero(groups[1:] != groups[:-1]) + 1
        return cls._checked(dict(examples), np.concatenate([[0], starts, [len(groups)]]))

    @staticmethod
    def write(folder: str | Path, clients: Iterable[Mapping[str, Any]]) -> None:
        """Writes clients one by one to a new folder of files, for a federation larger than memory; see `open`.

        Args:
          folder: is made whole or not at all; an earlier one there is replaced.
          clients: one mapping a client, as in `from_clients`; a generator holds only one of them at a time.

        Raises:
          DataError: as in `from_clients`, or the folder cannot be written.
        """

        def fill(writer: StoreWriter) -> None:
            offsets, first = [0], None
            for i, client in enumerate(clients):
                row = {name: np.asarray(value) for name, value in client.items()}
                first = {name: value[:1] for name, value in row.items()} if first is None else first
                offsets.append(offsets[-1] + _client_size(i, row, first))
                for name, value in row.items():
                    if _first_not_finite(value) is not None:
                        raise DataError(f"client {i}: field '{name}' holds NaN or infinity")
                    writer.append(_FIELD + name, value)
            if first is None:
                raise DataError("clients: none given, at least one is needed")
            writer.append(_OFFSETS, np.asarray(offsets, np.int64))

        write_store(Path(folder), fill)

    @classmethod
    def open(cls, folder: str | Path) -> FederatedData:
        """The federation that `write` wrote, mapped from its files: what is not asked for is not read.

        Raises:
          DataError: it is missing, incomplete or damaged, or holds NaN or infinity.
        """
        arrays = open_store(Path(folder))
        examples = {name.removeprefix(_FIELD): array for name, array in arrays.items() if name.startswith(_FIELD)}
        offsets = np.array(arrays.get(_OFFSETS, ()), np.int64)
        total = {len(array) for array in examples.values()}
        if len(offsets) < 2 or offsets[0] != 0 or np.any(np.diff(offsets) < 1) or total != {int(offsets[-1])}:
            raise DataError(f"'{folder}' is no federation: fields of {sorted(total)} rows, {len(offsets)} offsets")
        return cls._checked(examples, offsets)

    @classmethod
    def _checked(cls, examples: dict[str, np.ndarray], offsets: np.ndarray) -> FederatedData:
        lengths = {name: len(array) for name, array in examples.items()}
        if set(lengths.values()) != {int(offsets[-1])}:
            raise DataError(f"fields of lengths {lengths} given for {offsets[-1]} rows of {len(offsets) - 1} clients")
        check_fields(examples)
        for name, array in examples.items():
            if (row := _first_not_finite(array)) is not None:
                client = int(np.searchsorted(offsets, row, side="right")) - 1
                raise DataError(f"client {client}: field '{name}' holds NaN or infinity")
        return cls(examples, offsets.astype(np.int64))

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Examples a client, int64 (N,)."""
        return np.diff(self.offsets)

    def client(self, i: int) -> dict[str, np.ndarray]:
        """The examples of client i, `{field: array (n_i, …)}` (views, not copies)."""
        return {name: array[self.offsets[i] : self.offsets[i + 1]] for name, array in self.examples.items()}


def check_fields(examples: Mapping[str, np.ndarray]) -> None:
    """Checks names and types of fields.

    Raises:
      DataError: a field is called `mask`, the name of what tells real examples from padding, or holds no numbers.
    """
    for name, array in examples.items():
        if name == "mask":
            raise DataError("field 'mask' given; batches have one of that name, for padding: another name is needed")
        if array.dtype.kind not in "biu" and not _is_real(array.dtype):
            raise DataError(f"field '{name}' is of type {array.dtype}; numbers or booleans are needed")


def _is_real(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of this type may be NaN or infinite; bfloat16 and its like are of no kind that NumPy knows."""
    return dtype.kind in "fc" or dtype.name.startswith(("bfloat", "float"))


def _first_not_finite(array: np.ndarray) -> int | None:
    """The first row of `array` with NaN or infinity; None if there is none."""
    if not _is_real(array.dtype):
        return None
    for start in range(0, len(array), _CHECKED_ROWS):
        rows = array[start : start + _CHECKED_ROWS]
        if not np.isfinite(rows).all():
            return start + int(np.argwhere(~np.isfinite(rows))[0][0])
    return None


def _client_size(i: int, row: Mapping[str, np.ndarray], first: Mapping[str, np.ndarray]) -> int:
    if not row:
        raise DataError(f"client {i}: it has no fields")
    if row.keys() != first.keys():
        raise DataError(f"client {i}: fields {sorted(row)} given, client 0 has {sorted(first)}")
    lengths = {name: array.shape[0] if array.ndim else 0 for name, array in row.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"client {i}: fields of unequal length {lengths}")
    size = next(iter(lengths.values()))
    if size == 0:
        raise DataError(f"client {i}: it holds no examples; every client needs at least one")
    for name, array in row.items():
        if array.shape[1:] != first[name].shape[1:] or array.dtype != first[name].dtype:
            raise DataError(
                f"client {i}: field '{name}' has examples of {array.dtype}{list(array.shape[1:])}, "
                f"client 0 of {first[name].dtype}{list(first[name].shape[1:])}"
            )
    return size
