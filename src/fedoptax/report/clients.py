"""The clients' own metric: its spread over the rounds, and each client at the end."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedoptax.report import words
from fedoptax.report.groups import Group
from fedoptax.report.paired import compare_seeds
from fedoptax.storage.history import CLIENTS, column_of, read_clients
from fedoptax.tasks.metrics import Column

QUANTILES = np.array([0.1, 0.25, 0.5, 0.75, 0.9])  # of the metric over clients, in the bands of a group
LOCAL_BASELINE = "local"  # the baseline of clients that train alone


class ClientBands(NamedTuple):
    """Quantiles of a metric over the clients of a group, mean over seeds."""

    group: Group
    metric: str
    rounds: np.ndarray  # (n,)
    values: np.ndarray  # (n, quantiles)
    ends: pd.DataFrame  # at the last of these rounds, a row per client and a column per seed

    @property
    def end(self) -> pd.Series:
        """The mean over seeds of each client, by its name or else its number, at the last of these rounds."""
        return self.ends.mean(axis=1).dropna()


def find_client_bands(groups: Sequence[Group]) -> list[ClientBands]:
    """Find the bands of each group whose runs recorded the clients' metrics, by the metric that it is judged by."""
    bands = []
    for group in groups:
        judged = Column.parse(group.metric)
        metric = judged.metric if judged else ""
        column = column_of(metric)
        runs = [run for run in group.counted_runs if (run.path / CLIENTS).is_file()]
        tables = {run.config["seed"]: read_clients(run.path) for run in runs}
        tables = {seed: table for seed, table in tables.items() if column in table and len(table)}
        if tables:
            parts = [table.groupby("round")[column].quantile(QUANTILES).unstack() for table in tables.values()]
            mean = pd.concat(parts).groupby(level=0).mean()
            last = {seed: table[table["round"] == table["round"].max()] for seed, table in tables.items()}
            key = "name" if all("name" in table for table in last.values()) else "client"
            ends = pd.DataFrame({seed: table.set_index(key)[column] for seed, table in last.items()})
            bands.append(ClientBands(group, metric, mean.index.to_numpy(int), mean.to_numpy(float), ends))
    return bands


def tabulate_clients(bands: Sequence[ClientBands]) -> pd.DataFrame:
    """Tabulate each client at the end, in words, by increasing mean over the groups.

    Columns: the client's training examples and the share of the positive class among them, if the configs say, and for
    each group its metric with a 95 % interval over seeds and, beside the baseline `local`, the gain over it.
    """
    first = min(bands, key=lambda band: band.group.algorithm == "centralized")  # of one client
    config, ends = first.group.config, pd.DataFrame({place: band.end for place, band in enumerate(bands)})
    names, partition = config.get("client_names"), config.get("partition") or {}
    if bands[0].ends.index.name == "name" and names:  # also those without a metric
        ends = ends.reindex(ends.index.union(names))
    clients = ends.mean(axis=1).sort_values().index
    sizes, counts = (partition.get(name) or [] for name in ("sizes", "label_counts"))
    places = {name: place for place, name in enumerate(names or range(len(sizes)))}
    trained = [place if (place := places.get(client, len(sizes))) < len(sizes) else None for client in clients]
    columns = {"Training examples": ["none" if i is None else f"{sizes[i]:,}" for i in trained]}
    if counts and (positive := config.get("positive")):
        shares = [np.nan if i is None or i >= len(counts) else counts[i][positive[0]] / sizes[i] for i in trained]
        columns[f"Share of {positive[1]}"] = [words.format_number(share, 3) for share in shares]
    alone = next((band for band in bands if band.group.algorithm == LOCAL_BASELINE), None)
    for band in bands:
        columns[band.group.label] = [_write_mean(band, client) for client in clients]
        if alone is not None and band is not alone:
            gain = f"{band.group.label}, gain over {alone.group.label}"
            columns[gain] = [_write_mean(band, client, alone) for client in clients]
    return pd.DataFrame(columns, index=clients.rename("Client"))


def _write_mean(band: ClientBands, client: Any, other: ClientBands | None = None) -> str:
    """Write a client's mean over seeds, or its mean difference from the other group's, with the interval."""
    one, zero = (dict(of.ends.loc[client]) if client in of.ends.index else {} for of in (band, other or band))
    sign = 1 if other is None or band.group.higher_is_better else -1
    of_pairs = compare_seeds(*(one, dict.fromkeys(one, 0.0) if other is None else zero)[::sign])
    if np.isnan(of_pairs.difference):
        return words.DASH
    text = words.format_number(of_pairs.difference) if other is None else f"{of_pairs.difference:+.4f}"
    return text if np.isnan(of_pairs.low) else f"{text} [{of_pairs.low:.3f}, {of_pairs.high:.3f}]"
