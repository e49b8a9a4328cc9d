"""Each client's metrics at every evaluated round, in clients.parquet: in memory, and written with each checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedoptax._files import write_atomically
from fedoptax.errors import RunError, shorten

if TYPE_CHECKING:
    import pandas

FILE = "clients.parquet"


class ClientsFile:
    """clients.parquet while a run writes it: one row per evaluated round and client that has held-out examples.

    Its columns are `round` and `client`, int32, and the metrics, float32, by `column_of`. It begins with those of the
    first `done` rounds in the folder of the run that is continued.
    """

    def __init__(self, folder: Path, source: str | Path | None = None, done: int = 0) -> None:
        self._path = folder / FILE
        tables = [read_clients(Path(source))] if source is not None and done else []
        self._parts = [table[table["round"] <= done] for table in tables]

    def add(self, round: int, values: Mapping[str, np.ndarray]) -> None:
        """Add a round's metrics, (clients,) each; NaN in all is a client without held-out examples."""
        import pandas as pd

        clients = np.flatnonzero(~np.all([np.isnan(value) for value in values.values()], axis=0))
        rows = {column_of(name): np.asarray(value, np.float32)[clients] for name, value in sorted(values.items())}
        at = {"round": np.full(len(clients), round, np.int32), "client": clients.astype(np.int32)}
        self._parts.append(pd.DataFrame(at | rows))

    def write(self) -> None:
        """Write what was added so far."""
        import pandas as pd

        table = pd.concat(self._parts, ignore_index=True) if self._parts else pd.DataFrame({"round": [], "client": []})
        write_atomically(self._path, table.to_parquet(index=False))


def column_of(metric: str) -> str:
    """Return the column of a metric: its name, but `round_` or `client_` where that would be another column."""
    return f"{metric}_" if metric in ("round", "client") else metric


def read_clients(folder: Path) -> pandas.DataFrame:
    """Read a run's clients.parquet; raise a `RunError` if it is missing or damaged."""
    import pandas as pd

    try:
        table = pd.read_parquet(folder / FILE)
        table[["round", "client"]]
    except Exception as error:  # a damaged file fails in many ways
        raise RunError(f"'{folder / FILE}' cannot be read: {shorten(error)}") from error
    return table
