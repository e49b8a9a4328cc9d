"""A metric of a group over its rounds: what figures and the page draw."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedoptax.report.groups import Group
from fedoptax.report.load import CIRCUMSTANCES, Run
from fedoptax.storage.history import higher_is_better as by_name


@dataclass(frozen=True, eq=False)
class Curve:
    """One metric of one group at the rounds where any seed has it.

    Attributes:
      rounds: (P,) round numbers.
      megabytes: (P,) all that was sent and received up to then, in 10⁶ bytes, mean over seeds.
      seeds: (S, P) the values, NaN where a seed has none.
    """

    rounds: np.ndarray
    megabytes: np.ndarray
    seeds: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """(P,) mean over seeds; NaN where a seed is missing, so that no seed drops out of a mean unseen."""
        return self.seeds.mean(axis=0)

    @property
    def std(self) -> np.ndarray:
        """(P,) standard deviation over seeds (n − 1 below); NaN for a single seed."""
        if len(self.seeds) < 2:
            return np.full(self.rounds.shape, np.nan)
        return self.seeds.std(axis=0, ddof=1)


def curve(group: Group, metric: str) -> Curve | None:
    """The curve of a group's metric over the seeds that have it; None if none does."""
    columns = [_column(run, metric) for run in group.runs if has_metric(run, metric)]
    if not columns:
        return None
    rounds = np.unique(np.concatenate([at for at, _ in columns]))
    seeds = np.stack([_spread_out(rounds, at, values) for at, values in columns])
    sent = np.stack([_spread_out(rounds, *_sent(run)) for run in group.runs])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a round that no seed counted bytes for
        return Curve(rounds, np.nanmean(sent, axis=0), seeds)


def has_metric(run: Run, metric: str) -> bool:
    """Whether a run has any value of a metric."""
    return metric in run.rows and bool(run.rows[metric].notna().any())


def thin(full: Curve, points: int) -> Curve:
    """Every k-th point of a long curve, the first and last among them."""
    size = len(full.rounds)
    if size <= points:
        return full
    kept = np.unique(np.linspace(0, size - 1, points).round().astype(int))
    return Curve(full.rounds[kept], full.megabytes[kept], full.seeds[:, kept])


def metric_names(groups: Sequence[Group]) -> list[str]:
    """All metrics that any group has: primary ones first, then as in the files, then loss and circumstances."""
    found = [name for group in groups for run in group.runs for name in run.metrics]
    found = [
        name for name in dict.fromkeys(found) if any(has_metric(run, name) for group in groups for run in group.runs)
    ]
    primary = list(dict.fromkeys(group.metric for group in groups if group.metric in found))
    others = [name for name in found if name not in primary and name not in ("train_loss", *CIRCUMSTANCES)]
    rest = [name for name in ("train_loss", *CIRCUMSTANCES) if name in found and name not in primary]
    return primary + others + rest


def higher_is_better(groups: Sequence[Group], metric: str) -> bool:
    """What better means for a metric; from its name where no config says so."""
    for group in groups:
        if group.metric == metric:
            return group.higher_is_better
    return by_name(metric)


def limits(curves: Sequence[tuple[Group, Curve]], log: bool = False) -> tuple[float, float] | None:
    """Where a value axis should start and end.

    Groups that diverged are left out, if there are others, so that they do not flatten the rest.
    """
    steady = [c for group, c in curves if not group.diverged] or [c for _, c in curves]
    parts = [np.concatenate([c.mean, c.mean - c.std, c.mean + c.std]) for c in steady]
    values = np.concatenate(parts) if parts else np.array([])
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not values.size:
        return None
    low, high = float(values.min()), float(values.max())
    if log:
        return low / (high / low) ** 0.04, high * (high / low) ** 0.04 if high > low else high * 1.1
    margin = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _column(run: Run, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """The rounds where a run has the metric, and its values there."""
    values = run.rows[metric].to_numpy(float)
    there = np.isfinite(values)
    return run.rows["round"].to_numpy(int)[there], values[there]


def _sent(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """A run's rounds, and the megabytes sent both ways up to each."""
    columns = [name for name in ("bytes_up", "bytes_down") if name in run.rows]
    total = run.rows[columns].to_numpy(float).sum(axis=1) if columns else np.full(len(run.rows), np.nan)
    return run.rows["round"].to_numpy(int), total.cumsum() / 1e6


def _spread_out(rounds: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values given at some rounds as values at all `rounds`, NaN where there is none."""
    kept = np.isin(at, rounds)
    full = np.full(rounds.shape, np.nan)
    full[np.searchsorted(rounds, at[kept])] = values[kept]
    return full
