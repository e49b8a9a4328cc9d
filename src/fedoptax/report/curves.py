"""A metric of a group over the rounds, as figures and the page draw it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedoptax.report.groups import Group
from fedoptax.report.load import CIRCUMSTANCES, COST_COLUMNS

POINTS = 2000  # points a curve has at most where it is drawn


class Axis(NamedTuple):
    """The horizontal axis of curves."""

    name: str
    label: str  # in the choice of axes
    title: str
    hover: str  # a d3 format


AXES = (
    Axis("round", "rounds", "Round", "Round %{x}"),
    Axis("megabytes", "MB sent", "Sent by and to all clients (MB)", "%{x:,.4~r} MB sent"),
    Axis("gradients", "gradients", "Minibatch gradients of all clients", "%{x:,.4~r} gradients"),
    Axis("seconds", "wall time", "Wall time without compilation (s)", "%{x:,.4~r} s"),
    Axis("virtual_seconds", "virtual time", "Virtual time (s)", "%{x:,.4~r} virtual s"),
)


class Curve(NamedTuple):
    """One metric of one group at the rounds where any seed has it."""

    group: Group
    places: pd.DataFrame  # (P, …) one column per axis: the round, and costs up to then, mean over seeds
    seeds: np.ndarray  # (S, P) the values, NaN where a seed has none

    def along(self, axis: str) -> np.ndarray:
        """(P,) the positions on an axis, NaN if the history has none."""
        return self.places[axis].to_numpy()

    @property
    def mean(self) -> np.ndarray:
        """(P,) mean over seeds; NaN where a seed is missing, so that none leaves the mean unnoticed."""
        return self.seeds.mean(axis=0)

    @property
    def std(self) -> np.ndarray:
        """(P,) standard deviation over seeds (n − 1 below); NaN for a single seed."""
        return pd.DataFrame(self.seeds).std(skipna=False).to_numpy()

    def thinned(self, points: int) -> "Curve":
        """Take at most `points` evenly spaced points, the first and last among them."""
        shown = np.unique(np.linspace(0, len(self.places) - 1, points).round().astype(int))
        return Curve(self.group, self.places.iloc[shown], self.seeds[:, shown])


class MetricCurves(NamedTuple):
    """A history column with the curves of all groups that have it, in the order of the groups."""

    name: str
    higher_is_better: bool
    curves: Sequence[Curve]


def find_metrics(groups: Sequence[Group]) -> list[MetricCurves]:
    """All metrics that any group has: primary ones first, then as in the files, then loss and circumstances."""
    columns = dict.fromkeys(str(name) for group in groups for run in group.runs for name in run.rows)
    names = [name for name in columns if name not in COST_COLUMNS]
    primary = dict.fromkeys(group.metric for group in groups)
    last = ("train_loss", *CIRCUMSTANCES)
    ordered = [*primary, *(name for name in names if name not in last), *last]
    metrics = []
    for name in dict.fromkeys(ordered):
        curves = [curve for curve in (make_curve(group, name) for group in groups) if curve is not None]
        if curves:
            judged = next((group for group in groups if group.metric == name), curves[0].group)
            metrics.append(MetricCurves(name, judged.runs[0].is_higher_better(name), curves))
    return metrics


def make_curve(group: Group, metric: str) -> Curve | None:
    """Make the curve of a group's metric over the seeds that have it; None if none has."""
    by_round = [run.rows.set_index("round") for run in group.runs if metric in run.rows]
    columns = [column for rows in by_round if len(column := rows[metric].dropna())]
    if not columns:
        return None
    seeds = pd.concat(columns, axis=1).sort_index()
    costs = pd.concat([run.cumulate_costs() for run in group.runs]).groupby("round").mean()
    return Curve(group, costs.loc[seeds.index].reset_index(), seeds.to_numpy(float).T)


def find_axes(metrics: Sequence[MetricCurves]) -> list[Axis]:
    """Choose the axes on which any curve has a place."""
    curves = [curve for metric in metrics for curve in metric.curves]
    return [axis for axis in AXES if any(np.isfinite(curve.along(axis.name)).any() for curve in curves)]


def axis_limits(curves: Sequence[Curve], log: bool = False) -> tuple[float, float] | None:
    """Choose the ends of a value axis, without diverged groups if there are others, which they would flatten."""
    steady = [curve for curve in curves if not curve.group.is_diverged] or curves
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
