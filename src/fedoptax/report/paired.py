"""Paired tests over seeds: methods that ran with the same seeds saw the same cohorts and started alike."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

LEAST_PAIRS = 3  # with fewer seeds in common nothing is tested
LEVEL = 0.05
POINT = 0.01  # a percentage point of accuracy


class Paired(NamedTuple):
    """How far two methods are apart; `low` to `high` is the 95 % interval of the difference, by Student's t."""

    pairs: int  # seeds in common
    difference: float  # mean of one − other over them
    low: float
    high: float
    p_differs: float  # of the paired t-test that the mean difference is 0
    p_within_point: float  # that it is a point or more, either way (two one-sided tests); small says within


def compare_seeds(one: Mapping[int, float], other: Mapping[int, float]) -> Paired:
    """Compare values by seed; without three differences, all finite, there are neither intervals nor p-values."""
    pairs = np.array([(one[seed], other[seed]) for seed in one.keys() & other.keys()]).reshape(-1, 2)
    differences, degrees = pairs[:, 0] - pairs[:, 1], len(pairs) - 1
    mean = float(differences.mean()) if len(pairs) else math.nan
    if len(pairs) < LEAST_PAIRS or not np.isfinite(differences).all():
        return Paired(len(pairs), mean, *[math.nan] * 4)
    noise = 2.0**-21 * np.abs(pairs).max()  # of values that were computed in float32
    if np.ptp(differences) <= noise:  # equal, t is infinite: sign tests
        differs = 2.0**-degrees if abs(mean) > noise else 1.0
        return Paired(len(pairs), mean, mean, mean, differs, 1.0 if abs(mean) >= POINT else 2.0 ** -len(pairs))
    error = float(differences.std(ddof=1)) / math.sqrt(len(pairs))
    half = float(stdtrit(degrees, 1 - LEVEL / 2)) * error
    differs, within = float(2 * stdtr(degrees, -abs(mean) / error)), float(stdtr(degrees, (abs(mean) - POINT) / error))
    return Paired(len(pairs), mean, mean - half, mean + half, differs, within)


def adjust_by_holm(p: Sequence[float]) -> list[float]:
    """Adjust the p-values of one family of tests (Holm 1979); NaN, where nothing was tested, stays.

    Examples:
      >>> adjust_by_holm([0.01, 0.04, float("nan"), 0.03])
      [0.03, 0.06, nan, 0.06]
    """
    adjusted, largest = list(p), 0.0
    tested = sorted((i for i, value in enumerate(p) if not math.isnan(value)), key=lambda i: p[i])
    for place, i in enumerate(tested):
        largest = max(largest, min(1.0, p[i] * (len(tested) - place)))
        adjusted[i] = largest
    return adjusted


def compare_groups(rows: Sequence[dict[str, Any]]) -> None:
    """Compare each group that completed with the one of its task of the best mean, by paired tests over common seeds.

    Adds to every row, for final values and, with `early_` and `rounds_` before the name, for early values and rounds to
    the target: `standing` (of the first one: `best` if every other is significantly behind, else `highest` or
    `lowest`), `pairs`, `behind` (the mean distance), its 95 % interval `low` to `high`, and `p`; for final shares
    `p_within_point` of equivalence. Final values, equivalence and early progress are a family of tests each, over all
    tasks, with p-values adjusted by Holm's method. The values choose the first one, so the family has all pairs of
    methods: without these, 23 percent of tables of 31 equal methods had a significant difference (LOG.md).
    """
    problems = [[row for row in rows if row["problem"] == name] for name in dict.fromkeys(r["problem"] for r in rows)]
    found = [_compare_with_best(of_one) for of_one in problems]
    for family in (("p",), ("p_within_point",), ("early_p", "rounds_p")):
        places = [(row, name) for row in rows for name in family]
        between = [p for of_one in found for name in family for p in of_one.get(name, ())]
        for (row, name), p in zip(places, adjust_by_holm([*(row[name] for row, name in places), *between])):
            row[name] = p
    for of_one, prefix in product(problems, ("", "early_")):
        leaders = [row for row in of_one if row[f"{prefix}standing"]]
        others = [row for row in of_one if row["finals"] and not row[f"{prefix}standing"]]
        if leaders and all(other[f"{prefix}p"] < LEVEL for other in others):
            leaders[0][f"{prefix}standing"] = "best"


def _compare_with_best(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Compare the rows of a task with the best one; return the p-values between the others, by name."""
    between = {}
    for prefix, values, sign in (("", "finals", 0), ("early_", "earlies", 0), ("rounds_", "arrivals", -1)):
        for row in rows:
            row |= {f"{prefix}{name}": math.nan for name in ("behind", "low", "high", "p", "p_within_point")}
            row |= {f"{prefix}pairs": 0, f"{prefix}standing": ""}
        complete = [row for row in rows if row["complete"] and row[values]]
        ended = [row for row in complete if np.isfinite(list(row[values].values())).all()]
        if prefix == "early_":  # means over fewer rounds do not compare
            most = max(set().union(*(row["early_rounds"] for row in ended)), key=len, default=())
            ended = [row for row in ended if row["early_rounds"] == {most}]
        if len(ended) < 2:
            continue
        sign = sign or (1 if rows[0]["higher_is_better"] else -1)
        common = set.intersection(*(set(row[values]) for row in ended))
        seeds = [common if len(common) >= LEAST_PAIRS else row[values] for row in ended]
        means = [float(np.mean([row[values][seed] for seed in own])) for row, own in zip(ended, seeds)]
        leader = ended[int(np.argmax(sign * np.array(means)))]
        for row in ended:
            paired = compare_seeds(*(leader[values], row[values])[::sign])
            names = ("pairs", "behind", "low", "high", "p", "p_within_point")
            row |= dict(zip((f"{prefix}{name}" for name in names), paired)) if row is not leader else {}
            row["p_within_point"] = row["p_within_point"] if row["is_share"] else math.nan
        pairs = combinations([row[values] for row in ended if row is not leader], 2)
        between[f"{prefix}p"] = [compare_seeds(one, other).p_differs for one, other in pairs]
        standing = "first" if prefix == "rounds_" else "highest" if sign > 0 else "lowest"
        leader |= {f"{prefix}behind": 0.0, f"{prefix}standing": standing}
    return between
