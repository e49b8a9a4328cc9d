"""How a metric is spread over the clients, round after round, where runs recorded it per client."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedoptax.report.groups import Group
from fedoptax.storage.history import CLIENTS, column_of, read_clients
from fedoptax.tasks.metrics import Column

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, eq=False)
class ClientBands:
    """Quantiles of a metric over the clients of a group, mean over seeds."""

    group: Group
    metric: str
    rounds: np.ndarray  # (n,)
    values: np.ndarray  # (n, quantiles)


def find_client_bands(groups: Sequence[Group]) -> list[ClientBands]:
    """Find the bands of each group whose runs recorded the clients' metrics, by the metric that it is judged by."""
    bands = []
    for group in groups:
        tables = [read_clients(run.path) for run in group.runs if (run.path / CLIENTS).is_file()]
        judged = Column.parse(group.metric)
        metric = judged.metric if judged else ""
        parts = [
            table.groupby("round")[column].quantile(np.array(QUANTILES)).unstack()
            for table in tables
            if (column := column_of(metric)) in table and len(table)
        ]
        if parts:
            mean = pd.concat(parts).groupby(level=0).mean()
            bands.append(ClientBands(group, metric, mean.index.to_numpy(int), mean.to_numpy(float)))
    return bands
