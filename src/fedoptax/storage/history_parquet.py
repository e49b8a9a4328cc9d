"""The history as a Parquet file: the same rows as history.jsonl, typed, for pandas, Polars, DuckDB or R."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from fedoptax.storage.folder import write_atomically
from fedoptax.storage.history import Row, to_json_line

WHOLE = ("round", "bytes_down", "bytes_up", "participants", "dropped", "late", "rejected")


def write_parquet(path: Path, rows: Sequence[Row]) -> None:
    """Writes all rows: counts as int64, all else as float64; null where a round has no value, or none that is finite.

    Raises:
      RunError: it cannot be written.
    """
    import pyarrow as pa
    from pyarrow import json as arrow_json
    from pyarrow import parquet

    names = dict.fromkeys(name for row in rows for name in row) or {"round": None}
    schema = pa.schema([(name, pa.int64() if name in WHOLE else pa.float64()) for name in names])
    table = pa.Table.from_batches([], schema)
    if rows:  # by way of JSON, as PyArrow loads pandas to read a list
        lines = "".join(map(to_json_line, rows)).encode()
        options = arrow_json.ParseOptions(explicit_schema=schema)
        table = arrow_json.read_json(io.BytesIO(lines), parse_options=options)
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    write_atomically(path, buffer.getvalue())
