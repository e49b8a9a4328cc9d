"""One's own data as a table, CSV or Parquet: a column of labels, one of clients, the others numbers."""

from __future__ import annotations

import csv
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedoptax.data.own.columns import Names, checked, first_where, short
from fedoptax.data.own.source import MAX_BYTES, Examples, build
from fedoptax.data.sources import Source
from fedoptax.errors import DataError, UsageError

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_BYTES_A_CELL = 8  # in memory while it is read
_MAX_COLUMNS = 100_000
_CHUNK = 2**20
_FLOAT64 = 2**1023


def load(
    path: str | Path,
    *,
    label: str = "label",
    client: str | None = None,
    features: Sequence[str] | None = None,
    split: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Source:
    """Reads a table with one row an example: `.csv` or `.tsv` (UTF-8, with a header), or `.parquet`.

    Args:
      path: the file.
      label: the column of the classes, whole numbers or text.
      client: the column of the client ids, whole numbers or text; None takes `client` if it is there.
      features: the columns of x, in this order; None takes all others.
      split: a column that says `train` or `test` in every row; None if all rows are training examples.
      max_bytes: the most that the cells may take in memory.

    Returns:
      x float32 of shape (n, features); truth values are 0 and 1.

    Raises:
      DataError: the file cannot be read, lacks a column, holds more than allowed, or has a cell that is missing or
        no number; the message names the column and the row, counted from 1 below the header.
      UsageError: the name of the file has another ending.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (*_SEPARATORS, ".parquet"):
        raise UsageError(f"path: '{path}' given; a name that ends in .csv, .tsv or .parquet is allowed")
    if not path.is_file():
        raise DataError(f"{path}: not a file")
    of_names = [name for name in (label, client or "client", split) if name is not None]
    if suffix == ".parquet":
        frame = _read_parquet(path, of_names, max_bytes)
    else:
        frame = _read_csv(path, of_names, _SEPARATORS[suffix], max_bytes)
    client = "client" if client is None and "client" in frame.columns else client
    of_names = [name for name in (label, client, split) if name is not None]
    of_numbers = [name for name in frame.columns if name not in of_names] if features is None else list(features)
    if missing := [name for name in (*of_names, *of_numbers) if name not in frame.columns]:
        held = ", ".join(map(short, frame.columns[:20]))
        raise DataError(f"{path}: lacks the column {missing[0]!r} (the first it has: {held})")
    if not of_numbers:
        raise DataError(f"{path}: has no columns of features besides {', '.join(of_names)}")
    x = np.empty((len(frame), len(of_numbers)), np.float32)
    for place, name in enumerate(of_numbers):
        x[:, place] = _numbers(f"{path}: column {short(name)}", frame[name])
    columns = {name: _names(f"{path}: column {short(name)}", frame[name]) for name in of_names}
    is_test = np.zeros(len(frame), bool) if split is None else _is_test(f"{path}: column {split!r}", columns[split])
    whole = Examples(x, columns[label], None if client is None else columns[client])
    return build(str(path), _rows(whole, ~is_test), _rows(whole, is_test) if is_test.any() else None)


def _rows(examples: Examples, mask: np.ndarray) -> Examples:
    def some(column: Names) -> Names:
        return Names(column.values, column.codes[mask])

    return Examples(examples.x[mask], some(examples.y), None if examples.client is None else some(examples.client))


def _read_csv(path: Path, of_names: Sequence[str], separator: str, max_bytes: int) -> pd.DataFrame:
    try:
        _check_csv(path, separator, max_bytes)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # pandas only warns of rows that are too long
            return pd.read_csv(
                path,
                sep=separator,
                dtype=dict.fromkeys(of_names, str),
                index_col=False,
                keep_default_na=False,
                na_values=[""],
                encoding="utf-8-sig",
                compression=None,
                low_memory=False,
            )
    except (ValueError, OSError, MemoryError, Warning, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a table: {' '.join(str(error).split())}") from None


def _check_csv(path: Path, separator: str, max_bytes: int) -> None:
    """Refuses a table that would not fit before it is read: a short row still takes all its cells in memory."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(iter(lambda: file.readline(_CHUNK), ""), delimiter=separator), [])
    _check_columns(path, header)
    with path.open("rb") as raw:
        chunks = iter(lambda: raw.read(_CHUNK), b"")
        rows = sum(chunk.count(b"\n") + chunk.count(b"\r") - chunk.count(b"\r\n") for chunk in chunks)
    _check_size(path, max((rows + 1) * len(header) * _BYTES_A_CELL, path.stat().st_size), max_bytes)


def _read_parquet(path: Path, of_names: Sequence[str], max_bytes: int) -> pd.DataFrame:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UsageError(f"path: '{path}' given; .parquet needs pyarrow: pip install pyarrow") from None
    try:
        with pq.ParquetFile(path) as file:
            about, schema = file.metadata, file.schema_arrow
            _check_columns(path, schema.names)
            groups = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
            _check_size(path, max(groups, about.num_rows * about.num_columns * _BYTES_A_CELL), max_bytes)
        # Names are read as a dictionary and codes: a long one that repeats a million times stays small.
        of_text = [name for name in of_names if name in schema.names and pa.types.is_string(schema.field(name).type)]
        with pq.ParquetFile(path, read_dictionary=of_text) as file:
            return file.read().to_pandas(ignore_metadata=True)
    except (pa.ArrowException, ValueError, OSError, MemoryError) as error:
        raise DataError(f"{path}: cannot be read as a table: {' '.join(str(error).split())}") from None


def _check_columns(path: Path, header: Sequence[str]) -> None:
    if not 0 < len(header) <= _MAX_COLUMNS:
        raise DataError(f"{path}: has {len(header)} columns; 1 to {_MAX_COLUMNS} are allowed")
    if len(set(header)) < len(header):
        twice = Counter(header).most_common(1)[0][0]
        raise DataError(f"{path}: has two columns named {short(twice)}")


def _check_size(path: Path, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise DataError(f"{path}: its cells take {size} bytes; at most {max_bytes} (max_bytes) are allowed")


def _numbers(where: str, column: pd.Series) -> np.ndarray:
    if column.dtype.kind in "mM":
        raise DataError(f"{where}: holds {column.dtype}; numbers are allowed")
    try:
        values = column
        if values.dtype == object:  # there are whole numbers beyond 64 bits, which may be beyond floating point too
            values = values.map(lambda value: np.inf if isinstance(value, int) and abs(value) > _FLOAT64 else value)
        values = values if values.dtype.kind in "biuf" else pd.to_numeric(values, errors="coerce")
        with np.errstate(over="ignore"):
            array = values.to_numpy(np.float32, na_value=np.nan)
    except (TypeError, ValueError):
        raise DataError(f"{where}: holds {column.dtype}; numbers are allowed") from None
    if (row := first_where(~np.isfinite(array))) is not None:
        cell = column.iloc[row]
        given = (
            "it is missing" if column.isna().iloc[row] else f"{short(cell)} given; a number within float32 is allowed"
        )
        raise DataError(f"{where}, row {row + 1}: {given}")
    return array


def _names(where: str, column: pd.Series) -> Names:
    codes, different = pd.factorize(column)  # -1 for a missing cell
    for value in different:
        if not isinstance(value, str | int | np.integer | np.bool_) and codes.min() >= 0:
            raise DataError(f"{where}: {short(value)} given; a whole number or text is allowed")
    return checked(where, Names([str(value) for value in different], codes.astype(np.int64)))


def _is_test(where: str, column: Names) -> np.ndarray:
    if others := set(column.values) - {"train", "test"}:
        raise DataError(f"{where}: {short(min(others))} given; 'train' or 'test' is allowed")
    return np.array([value == "test" for value in column.values])[column.codes]
