"""The history of a run: a row per round in history.jsonl, and per round and client in clients.parquet."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax._files import reading, to_plain, write_atomically, writing
from fedoptax.data.readers import DataFrame
from fedoptax.errors import RunError, UsageError
from fedoptax.storage.folder import Status, read_summary
from fedoptax.tasks.metrics import Column

Row = dict[str, Any]
FILE = "history.jsonl"
CLIENTS = "clients.parquet"
COUNTS = ("round", "bytes_down", "bytes_up", "participants", "dropped", "late", "rejected", "evaluated")
"""The columns of whole numbers."""


class History:
    """The rows of a run, in order.

    Columns of every row:

    - `round`: 1, 2, …
    - `train_loss`: the cohort's weighted mean loss over its local steps; None in a round that changed nothing.
    - `test_*`, `val_*`: metrics; None in rounds that were not evaluated, and where not finite.
    - `bytes_down`, `bytes_up`: payload of all messages sent to clients, and of their uploads that came in time (in a
      deployment those in use; without the keys and shares of secure aggregation).
    - `seconds`: wall time of the round without compilation.

    And where they apply:

    - `worst_client`: at evaluated rounds, the name of the client with the worst primary metric, if clients have names.
    - `participants` (whose uploads count), `dropped`, `late`, `rejected`: with faults or a robust aggregator; they add
      up to the cohort.
    - `virtual_seconds`: how long the round lasted, with speeds, a deadline or asynchronous rounds.
    - `staleness`: in asynchronous rounds, the mean of the server's steps since the uploads' models were sent.
    - `epsilon`: spent up to this round, with an algorithm that accounts for privacy.
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
        """Return the last value of a column that is not None; None if there is none."""
        return next((row[column] for row in reversed(self.rows) if row.get(column) is not None), None)

    def column(self, name: str) -> list[float | None]:
        """Return all values of a column, None where a row has no value."""
        return [row.get(name) for row in self.rows]

    def to_pandas(self) -> DataFrame:
        """Return a DataFrame with one row per round; missing values are NaN."""
        import pandas as pd

        frame = pd.DataFrame(self.rows)
        return frame.astype({name: float for name in frame.columns if Column.parse(name)})

    def save(self, path: str | Path) -> Path:
        """Write the history as `.csv`, `.jsonl` or `.parquet`, by the path's ending.

        In a Parquet file counts are int64, names text, and all else float64; null means no value, or none that is
        finite. Another ending is a `UsageError`.
        """
        path = Path(path)
        if path.suffix == ".csv":
            data = self.to_pandas().to_csv(index=False).encode()
        elif path.suffix == ".jsonl":
            data = _encode(self.rows)
        elif path.suffix == ".parquet":
            frame = History(to_plain(self.rows)).to_pandas()
            dtypes = {name: "Int64" if name in COUNTS else float for name in frame.columns if name != "worst_client"}
            data = frame.astype(dtypes).to_parquet(index=False)
        else:
            raise UsageError(f"path must end in .csv, .jsonl or .parquet, got '{path.name}'")
        write_atomically(path, data)
        return path


def is_shown(name: str) -> bool:
    """Whether tables of results show the last value of a column: one of training or test examples."""
    column = Column.parse(name)
    return column is not None and column.split in ("train", "test")


class HistoryFile:
    """history.jsonl, or another such file, while a run writes it; it begins with `rows` and only grows."""

    def __init__(self, folder: Path, rows: list[Row], file: str = FILE) -> None:
        self._path = folder / file
        data = _encode(rows)
        write_atomically(self._path, data)
        self._length, self._hash = len(data), hashlib.sha256(data)

    def append(self, rows: list[Row]) -> None:
        """Add rows, all or none."""
        data = _encode(rows)
        with writing(self._path):
            try:
                with self._path.open("ab") as file:
                    file.write(data)
            except OSError:
                with suppress(OSError):  # a reader leaves out an unfinished last line
                    os.truncate(self._path, self._length)
                raise
        self._length += len(data)
        self._hash.update(data)

    def sync(self) -> dict[str, Any]:
        """Flush all rows to disk and return their length in bytes and SHA-256."""
        with writing(self._path), self._path.open("r+b") as file:
            os.fsync(file.fileno())
        return {"bytes": self._length, "sha256": self._hash.hexdigest()}


def begins_with(folder: Path, part: Mapping[str, Any]) -> bool:
    """Return whether a run's history begins with the rows of a `HistoryFile.sync`."""
    with (folder / FILE).open("rb") as file:
        return hashlib.sha256(file.read(part["bytes"])).hexdigest() == part["sha256"]


def read_lines(folder: Path, file: str = FILE) -> list[str]:
    """Return the complete lines of a run's history; an unfinished last line of a killed process is left out."""
    path = folder / file
    with reading(f"'{path}'", "text"):
        return path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []


def read_rows(folder: Path, rounds: int | None = None) -> list[Row]:
    """Return the first `rounds` rows of a run's history, by default all."""
    path = folder / FILE
    rows: list[Row] = []
    for number, line in enumerate(read_lines(folder)[:rounds], start=1):
        with reading(f"'{path}', line {number},", f"the row of round {number}"):
            rows.append(json.loads(line))
            if rows[-1]["round"] != number:
                raise ValueError(f"it has another round: {line}")
    if rounds is not None and len(rows) < rounds:
        raise RunError(f"'{path}' has {len(rows)} of {rounds} rounds")
    return rows


def read_run(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """Return a run's summary and the rows that it counts, or all so far while the run goes on; none may be missing."""
    summary = {"status": Status.RUNNING, "message": None} | read_summary(folder)
    rows = read_rows(folder, None if summary["status"] == Status.RUNNING else summary["rounds_done"])
    return summary | {"rounds_done": len(rows)}, rows


def _encode(rows: list[Row]) -> bytes:
    return "".join(json.dumps(to_plain(row), allow_nan=False) + "\n" for row in rows).encode()


class ClientsFile:
    """clients.parquet while a run writes it: one row per evaluated round and client that has held-out examples.

    Its columns are `round` and `client`, int32, the client's `name` if clients have `names`, and the metrics, float32,
    by `column_of`. It begins with those of the first `done` rounds in the folder of the run that is continued.
    """

    def __init__(
        self, folder: Path, source: str | Path | None = None, done: int = 0, names: Sequence[str] | None = None
    ) -> None:
        self._path, self._names = folder / CLIENTS, names
        tables = [read_clients(Path(source))] if source is not None and done else []
        self._parts = [table[table["round"] <= done] for table in tables]

    def add(self, round: int, values: Mapping[str, np.ndarray]) -> None:
        """Add a round's metrics, (clients,) each; NaN in all is a client without held-out examples."""
        import pandas as pd

        clients = np.flatnonzero(~np.all([np.isnan(value) for value in values.values()], axis=0))
        rows = {column_of(name): np.asarray(value, np.float32)[clients] for name, value in sorted(values.items())}
        at = {"round": np.full(len(clients), round, np.int32), "client": clients.astype(np.int32)}
        named = {} if self._names is None else {"name": [self._names[client] for client in clients.tolist()]}
        self._parts.append(pd.DataFrame(at | named | rows))

    def write(self) -> None:
        """Write what was added so far."""
        import pandas as pd

        none = pd.DataFrame({"round": [], "client": []}, dtype=np.int32)
        table = pd.concat(self._parts, ignore_index=True) if self._parts else none
        write_atomically(self._path, table.to_parquet(index=False))


def column_of(metric: str) -> str:
    """Return the column of a metric: its name, but `round_`, `client_` or `name_` where that is another column."""
    return f"{metric}_" if metric in ("round", "client", "name") else metric


def read_clients(folder: Path) -> DataFrame:
    """Read a run's clients.parquet; raise a `RunError` if it is missing or damaged."""
    import pandas as pd

    with reading(f"'{folder / CLIENTS}'", "metrics of clients"):
        return pd.read_parquet(folder / CLIENTS).set_index(["round", "client"]).reset_index()  # which must be there
