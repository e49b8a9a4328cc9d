"""The history, in memory and on disk."""

import math
from typing import Any

import pytest
from pyarrow import parquet

import fedoptax as fx
from fedoptax.storage.history import History, HistoryFile, begins_with, read_rows
from full_disks import largest_file
from refusals import refused

ROWS: list[dict[str, Any]] = [
    {"round": 1, "train_loss": 0.5, "test_nll": None, "bytes_up": 2**53 + 1, "seconds": 1},
    {"round": 2, "train_loss": math.nan, "test_nll": 1 / 3, "bytes_up": 7, "seconds": 0.25, "participants": 4},
    {"round": 3, "train_loss": -math.inf, "test_nll": -0.0, "bytes_up": 7, "seconds": 1e-300},
]
FINITE = [{k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in row.items()} for row in ROWS]


def test_parquet_has_typed_columns_and_the_same_values(tmp_path):
    table = parquet.read_table(History(ROWS).save(tmp_path / "a.parquet"))
    names = dict.fromkeys(name for row in ROWS for name in row)
    assert table.to_pylist() == [names | row for row in FINITE]
    types = {field.name: str(field.type) for field in table.schema}
    assert types == dict.fromkeys(names, "double") | dict.fromkeys(("round", "bytes_up", "participants"), "int64")
    assert parquet.read_table(History().save(tmp_path / "b.parquet")).num_rows == 0


def test_an_unfinished_last_line_of_a_killed_process_is_left_out(tmp_path):
    HistoryFile(tmp_path, ROWS[:1]).append(ROWS[1:])
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"round": 4, "tra')
    assert read_rows(tmp_path, 3) == FINITE
    assert read_rows(tmp_path, 2) == FINITE[:2]
    refused(lambda: read_rows(tmp_path, 4), "history.jsonl' has 3 of 4 rounds")


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"round": 5}', b"\xff", b"[" * 100_000])
def test_a_damaged_row_is_one_line_that_names_the_file(tmp_path, line):
    (tmp_path / "history.jsonl").write_bytes(b'{"round": 1}\n' + line + b"\n")
    refused(lambda: read_rows(tmp_path, 2), "history.jsonl")


def test_a_full_disk_keeps_complete_rows(tmp_path):
    history = HistoryFile(tmp_path, [{"round": 1}])
    before = history.sync()
    with largest_file(20), pytest.raises(fx.RunError, match=r"history.jsonl' cannot be written: File too large"):
        history.append([{"round": 2}, {"round": 3}])
    assert (tmp_path / "history.jsonl").read_bytes() == b'{"round": 1}\n' and history.sync() == before
    history.append([{"round": 2}])
    assert begins_with(tmp_path, history.sync()) and begins_with(tmp_path, before)
    assert read_rows(tmp_path, 2) == [{"round": 1}, {"round": 2}]
