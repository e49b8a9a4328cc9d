"""Which point of a search is best: the mean of a column over the last rounds, of the runs that came to their end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedoptax.errors import UsageError, unknown
from fedoptax.storage.history import Row

LAST = 100
"""Rounds that the rule of Reddi et al. 2021 (Section 5) averages over."""


@dataclass(frozen=True)
class Rule:
    """How points are ranked.

    Reddi et al. 2021 choose by the mean training loss over the last 100 rounds: test examples have no say in it.

    Attributes:
      metric: a column of the history.
      last: the mean is over the evaluated ones of so many last rounds.
      higher_is_better: what better means.
    """

    metric: str = "train_loss"
    last: int = LAST
    higher_is_better: bool = False

    def score(self, rows: Sequence[Row], status: str) -> float:
        """The mean of the metric over the last rounds; NaN for a run that did not end or never measured it."""
        if status != "completed" or not rows:
            return math.nan
        values = [row.get(self.metric) for row in rows[-self.last :]]
        if not any(value is not None for value in values):  # rounds between evaluations: the last one there is
            values = [value for row in rows if (value := row.get(self.metric)) is not None][-1:]
        given = [value for value in values if value is not None]
        return math.fsum(given) / len(given) if given else math.nan

    def best(self, scores: Sequence[float]) -> int | None:
        """The place of the best score, the first of equals; None if there is none."""
        there = [i for i, score in enumerate(scores) if math.isfinite(score)]
        sign = -1 if self.higher_is_better else 1
        return min(there, key=lambda i: sign * scores[i]) if there else None


@dataclass(frozen=True)
class Tried:
    """A point that was run.

    Attributes:
      values: its hyper-parameters, those that were searched.
      score: by the rule; NaN if it diverged.
      status: of its run.
      folder: of its run.
    """

    values: Mapping[str, Any]
    score: float
    status: str
    folder: Path | None


def make_rule(metric: str, last: int | None, rounds: int, directions: Mapping[str, bool]) -> Rule:
    """The rule that a user asked for.

    Args:
      metric: a column.
      last: rounds, or None for `LAST`, but at most a tenth of all and at least one.
      rounds: of a run.
      directions: the columns that there will be, and whether more of them is better.

    Raises:
      UsageError: no such column, or a number out of range.
    """
    if metric not in directions:
        unknown("--select", metric, directions)
    if last is not None and not 1 <= last <= rounds:
        raise UsageError(f"--last: {last} given, allowed is 1 to {rounds}, the number of rounds")
    return Rule(metric, last or max(1, min(LAST, rounds // 10)), directions[metric])
