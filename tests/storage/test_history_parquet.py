"""The history's Parquet file holds its rows, to the bit."""

import math
import random
import subprocess
import sys
from pathlib import Path

from pyarrow import parquet

from fedoptax.storage.history_parquet import write_parquet


def read_back(path: Path, rows: list[dict[str, object]]) -> list[dict[str, object]]:
    write_parquet(path, rows)
    return parquet.read_table(path).to_pylist()


def test_rows_come_back_to_the_bit(tmp_path: Path) -> None:
    """Many of them (several megabytes), with values that come and go."""
    draw = random.Random(0)
    rows: list[dict[str, object]] = [
        {"round": i, "bytes_up": 2**53 + i, "loss": draw.random() * 10.0 ** draw.randint(-300, 300), "seconds": i}
        for i in range(1, 30_001)
    ]
    rows[5]["test_loss"], rows[7]["test_loss"], rows[8]["participants"] = -0.0, 1 / 3, 4
    names = {name: None for row in rows for name in row}
    assert read_back(tmp_path / "a.parquet", rows) == [names | row for row in rows]


def test_types_are_those_of_the_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [{"round": 1, "loss": 2, "late": None}])
    types = {field.name: str(field.type) for field in parquet.read_schema(tmp_path / "a.parquet")}
    assert types == {"round": "int64", "loss": "double", "late": "int64"}
    write_parquet(tmp_path / "b.parquet", [])
    assert str(parquet.read_schema(tmp_path / "b.parquet").field("round").type) == "int64"


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    rows = [{"round": 1, "loss": math.nan}, {"round": 2, "loss": -math.inf}, {"round": 3, "loss": 1.5}]
    assert [row["loss"] for row in read_back(tmp_path / "a.parquet", rows)] == [None, None, 1.5]


def test_pandas_is_not_loaded(tmp_path: Path) -> None:
    """It takes a third of a second, at the end of every run."""
    code = f"""
import sys
from pathlib import Path
from fedoptax.storage.history_parquet import write_parquet
write_parquet(Path({str(tmp_path / "a.parquet")!r}), [{{"round": 1, "loss": 0.5}}, {{"round": 2, "loss": None}}])
write_parquet(Path({str(tmp_path / "b.parquet")!r}), [])
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
