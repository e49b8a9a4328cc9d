"""One row a round: what happened, what it cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedoptax.errors import UsageError

if TYPE_CHECKING:
    import pandas

Row = dict[str, Any]


class History:
    """The rows of a run, in order.

    A row holds `round` (1, 2, …), `train_loss` (the cohort's weighted mean loss over its local steps), `test_*` metrics
    (None in rounds that were not evaluated, and where not finite), `bytes_down` and `bytes_up` (all messages of the
    round, payload only), and `seconds` (wall time of the round without compilation). With faults or a robust
    aggregator: `participants` (whose uploads count), `dropped`, `late` and `rejected`, which add up to the cohort, and
    with a deadline `virtual_seconds`; then `train_loss` is None in a round that changed nothing, and `bytes_up` are of
    the uploads that came in time. With an algorithm that accounts for privacy: `epsilon`, spent up to this round.
    """

    def __init__(self, rows: list[Row] | None = None) -> None:
        self.rows: list[Row] = rows or []

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def last(self, column: str) -> float | None:
        """The last value of a column that is not None; None if there is none."""
        return next((row[column] for row in reversed(self.rows) if row.get(column) is not None), None)

    def column(self, name: str) -> list[float | None]:
        """All values of a column, None where there is none."""
        return [row.get(name) for row in self.rows]

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row a round; missing values are NaN."""
        import pandas as pd

        frame = pd.DataFrame(self.rows)
        metrics = [name for name in frame.columns if name == "train_loss" or name.startswith("test_")]
        return frame.astype(dict.fromkeys(metrics, float))

    def save(self, path: str | Path) -> Path:
        """Writes the history as `.csv`, `.jsonl` or `.parquet`, by the path's ending.

        Raises:
          UsageError: another ending.
        """
        path = Path(path)
        if path.suffix == ".csv":
            self.to_pandas().to_csv(path, index=False)
        elif path.suffix == ".jsonl":
            path.write_text("".join(map(to_json_line, self.rows)), encoding="utf-8")
        elif path.suffix == ".parquet":
            from fedoptax.storage.history_parquet import write_parquet

            write_parquet(path, self.rows)
        else:
            raise UsageError(f"path: '{path.name}' given, allowed endings are .csv, .jsonl and .parquet")
        return path


LOWER = ("loss", "error", "perplexity", "nll", "distance", "excess", "spread", "seconds", "epsilon")
"""Words in names of columns of which less is better."""


def higher_is_better(column: str) -> bool:
    """What better means for a column of which only the name is known."""
    return not any(word in column.lower() for word in LOWER)


def to_json_line(row: Mapping[str, Any]) -> str:
    """A row as one line of strict JSON; numbers that are not finite become null."""
    return json.dumps({name: finite_or_none(value) for name, value in row.items()}, allow_nan=False) + "\n"


def finite_or_none(value: Any) -> Any:
    """The value, or None for a float that is NaN or infinite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
