"""The history as a Parquet file: the same rows as history.jsonl, typed, for pandas, Polars, DuckDB or R."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from fedoptax.history import Row
from fedoptax.storage import write_atomically

WHOLE = ("round", "bytes_down", "bytes_up", "participants", "dropped", "late", "rejected")


def write_parquet(path: Path, rows: Sequence[Row]) -> None:
    """Writes all rows: counts as int64, all else as float64; null where a round has no value.

    Raises:
      RunError: it cannot be written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    names = dict.fromkeys(name for row in rows for name in row) or {"round": None}
    columns = {
        name: pa.array([row.get(name) for row in rows], pa.int64() if name in WHOLE else pa.float64()) for name in names
    }
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer)
    write_atomically(path, buffer.getvalue())
