"""Runs read back from their folders, whether they are completed, interrupted or still running."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedoptax.errors import RunError, UsageError
from fedoptax.storage.config import read_config, read_record
from fedoptax.storage.folder import ENDED
from fedoptax.storage.history import read_run
from fedoptax.tasks.metrics import Column, higher_is_better

#: History columns that measure cost, not quality.
COST_COLUMNS = ("round", "bytes_up", "bytes_down", "seconds", "dropped", "late", "rejected", "evaluated")
#: Columns of runs with faults or privacy; curves show them after the metrics.
CIRCUMSTANCES = ("participants", "virtual_seconds", "staleness", "epsilon")

_LARGEST = 1e100  # squares and sums of smaller values are finite


class Run(NamedTuple):
    """A run as its folder describes it."""

    path: Path
    config: Mapping[str, Any]  # config.json
    rows: pd.DataFrame  # one row per round; values that are missing, not finite or above 1e100 are NaN
    summary: Mapping[str, Any]  # summary.json, with at least `status` and `rounds_done`
    command: str | None = None  # the command line that made the run, if it is known

    @property
    def metric(self) -> str:
        """The history column that the run is judged by."""
        return self.config.get("primary_metric") or "train_loss"

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher `metric` is better."""
        return self.is_higher_better(self.metric)

    def is_higher_better(self, column: str) -> bool:
        """Whether more is better in a column of `rows`."""
        primary, higher = Column.parse(self.config.get("primary_metric") or ""), self.config.get("higher_is_better")
        stated = {primary.metric: bool(higher)} if primary and higher is not None else {}
        stated |= {name: bool(one["higher_is_better"]) for name, one in self.config.get("metrics", {}).items()}
        return higher_is_better(column, stated)

    @property
    def is_share(self) -> bool:
        """Whether `metric` is a number from 0 to 1, of which differences are read in points."""
        column = Column.parse(self.metric)
        stated = self.config.get("metrics", {}).get(column and column.metric)
        return stated["format"] == "share" if stated else "accuracy" in self.metric

    @property
    def status(self) -> str:
        """`completed`, `stopped early`, `interrupted`, `diverged` or `running`."""
        return str(self.summary["status"])

    @property
    def is_complete(self) -> bool:
        """Whether it ended as it should, after all rounds or stopped early."""
        return self.status in ENDED

    def bytes_per_round(self) -> pd.Series:
        """Bytes sent both ways by all clients in each round; NaN where none were counted."""
        return self.rows.reindex(columns=["bytes_up", "bytes_down"]).sum(axis=1, min_count=1)

    @property
    def gradients_per_round(self) -> float:
        """A round's minibatch gradients, all of a cohort of average clients; NaN if the config does not say."""
        sizes = np.asarray((self.config.get("partition") or {}).get("sizes") or [np.nan])
        names = ("cohort_size", "batch_size", "local_epochs", "gradients_per_step")
        cohort, batch, epochs, each = (np.nan if (n := self.config.get(name)) is None else n for name in names)
        steps = self.config.get("local_steps") or np.ceil(sizes / batch).mean() * epochs
        return float(cohort * np.maximum(steps * each, 1))

    def cumulate_costs(self) -> pd.DataFrame:
        """What was spent up to each round, which is the index: megabytes (10⁶), gradients, seconds, virtual seconds."""
        each = self.rows.reindex(columns=["seconds", "virtual_seconds"])
        each = each.assign(megabytes=self.bytes_per_round() / 1e6, gradients=self.gradients_per_round)
        return each.set_index(self.rows["round"]).cumsum()


def load_runs(path: str | Path) -> list[Run]:
    """Load the runs at or below a folder, but not of searches, in the comparison's order; a `RunError` without any."""
    folders = find_folders(Path(path))
    runs = [load_run(folder, comparison) for folder, mark, comparison in folders if mark == "config.json"]
    if not runs:
        raise RunError(f"'{Path(path)}' has no run: there is no config.json in it or its subfolders besides searches")
    return runs


def find_folders(
    root: Path, comparison: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[tuple[Path, str, Mapping[str, Any]]]:
    """Find run and search folders: each, the file that marks it, and the record of its comparison, else nothing."""
    if not root.is_dir():
        raise UsageError(f"'{root}' is not a folder with runs")
    for mark in ("config.json", "tune.json"):
        if (root / mark).is_file():
            yield root, mark, comparison
            return
    first: list[str] = []
    if (root / "compare.json").is_file():
        comparison = read_record(root / "compare.json")
        first = [name.replace(":", ".") for name in comparison.get("algorithms") or []]
    children = [child for child in root.iterdir() if child.is_dir() and not child.name.startswith(".")]
    for child in sorted(children, key=lambda child: _sort_key(child.name, first)):
        yield from find_folders(child, comparison)


def _sort_key(name: str, first: list[str]) -> tuple[int, list[tuple[int, str]]]:
    """Sort the names in `first` to the front, and seed-2 before seed-10."""
    place = first.index(name) if name in first else len(first)
    return place, [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def load_run(folder: Path, comparison: Mapping[str, Any] = MappingProxyType({})) -> Run:
    """Load the run in a folder, with a RunError if it is damaged or of another format.

    Where the searches of its comparison ranked by a metric on validation examples, it is judged by the same on test
    examples, unless that is the loss.
    """
    config = read_config(folder)
    summary, rows = read_run(folder)
    numbers = pd.DataFrame(rows or {"round": []}).drop(columns="worst_client", errors="ignore")
    frame = numbers.apply(pd.to_numeric, errors="coerce").astype(float)
    frame = frame.where(frame.abs() < _LARGEST).astype({"round": int})
    for rule in (search["rule"] for search in (comparison.get("tunings") or {}).values()):
        metric = (Column.parse(rule["metric"]) or Column("", "loss")).metric
        if metric != "loss" and (name := str(Column("test", metric))) in frame:
            config |= {"primary_metric": name, "higher_is_better": None}
    return Run(folder, config, frame, summary, comparison.get("command") or config.get("command") or None)
