"""Comparing run folders."""

import json
from pathlib import Path
from typing import Any

import numpy as np


def rows_without_time(folder: Path) -> list[dict[str, Any]]:
    """Return the history of a run folder without the columns that no seed determines."""
    lines = (folder / "history.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def assert_same_results(a: Path, b: Path, params: str = "params.npz") -> None:
    """Check that parameters are equal bit for bit, and histories but for the time."""
    with np.load(a / params) as left, np.load(b / params) as right:
        assert sorted(left) == sorted(right)
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])
    assert rows_without_time(a) == rows_without_time(b)
