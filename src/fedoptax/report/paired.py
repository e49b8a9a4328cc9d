"""Paired tests over seeds: methods that ran with the same seeds saw the same cohorts and started alike."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats

LEAST_PAIRS = 3
"""With fewer seeds in common nothing is tested."""
LEVEL = 0.05
POINT = 0.01
"""A percentage point of accuracy."""


class Paired(NamedTuple):
    """How far two methods are apart.

    Attributes:
      pairs: seeds in common.
      difference: mean of one − other over them.
      p_differs: of the paired t-test that the mean difference is 0.
      p_within_point: that it is a percentage point or more, either way (two one-sided tests); small says within.
    """

    pairs: int
    difference: float
    p_differs: float
    p_within_point: float


def compare_seeds(one: Mapping[int, float], other: Mapping[int, float]) -> Paired:
    """Compare final values by seed; the p-values are NaN for fewer than three seeds in common."""
    differences = np.array([one[seed] - other[seed] for seed in one.keys() & other.keys()])
    mean = float(differences.mean()) if len(differences) else math.nan
    if len(differences) < LEAST_PAIRS:
        return Paired(len(differences), mean, math.nan, math.nan)
    within = max(_test(differences, -POINT, "greater"), _test(differences, POINT, "less"))
    return Paired(len(differences), mean, _test(differences, 0, "two-sided"), within)


def _test(differences: np.ndarray, mean: float, alternative: str) -> float:
    """The p-value of a t-test; equal differences, of which t is infinite, decide it."""
    if np.ptp(differences) <= 1e-9 * np.abs(differences).max():
        gap = differences[0] - mean
        return float(gap == 0 if alternative == "two-sided" else gap <= 0 if alternative == "greater" else gap >= 0)
    return float(stats.ttest_1samp(differences, mean, alternative=alternative).pvalue)
