"""Which algorithm ended best, and whether the seeds allow to say so."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from fedoptax.report.paired import LEAST_PAIRS, LEVEL
from fedoptax.report.tables import Row, table_rows
from fedoptax.report.words import format_number, format_spread, join_words, metric_words


@dataclass(frozen=True)
class Verdict:
    """What the final values of one task's groups say."""

    leader: str  # the label of the group with the best mean
    is_clear: bool  # whether a paired t-test over the seeds tells it from each other, with Bonferroni's correction
    text: str  # the same in one sentence


def find_verdicts(table: pd.DataFrame) -> list[Verdict]:
    """Judge each task on which at least two groups completed; other groups are not ranked."""
    ended = [row for row in table_rows(table) if row["complete"] and math.isfinite(row["final"])]
    problems = dict.fromkeys(row["problem"] for row in ended)
    rivals = [[row for row in ended if row["problem"] == problem] for problem in problems]
    return [_judge(rows) for rows in rivals if len(rows) > 1]


def _judge(rows: Sequence[Row]) -> Verdict:
    sign = 1 if rows[0]["higher_is_better"] else -1
    leader, *others = sorted(rows, key=lambda row: -sign * row["final"])
    name, metric = leader["algorithm"], metric_words(leader["metric"])
    start = f"{name} has the best final {metric}, {format_spread(leader['final'], leader['final_std'])}"
    if any(math.isnan(row["final_std"]) for row in rows):
        why = "Each ran with one seed" if all(row["seeds"] == 1 for row in rows) else "Some ran with one seed"
        return Verdict(name, False, f"{start}. {why}, so how far chance moves these values is unknown.")
    if any(row["pairs"] < LEAST_PAIRS for row in others):
        return Verdict(name, False, f"{start}; too few seeds in common for a paired test, which takes {LEAST_PAIRS}.")
    p = {row["algorithm"]: min(1.0, row["p_behind"] * len(others)) for row in others}  # Bonferroni
    near = [label for label in p if p[label] >= LEVEL]
    if near:
        names = join_words(near) if len(near) <= 4 else f"{len(near)} others"
        close = [row["algorithm"] for row in others if row["p_within_point"] * len(others) < LEVEL]
        within = f" Within a percentage point of it: {join_words(close)}." if close else ""
        least = f"p {min(p[label] for label in near):.2g}"
        text = f"{start}; a paired test over seeds does not tell it from {names} ({least}).{within}"
        return Verdict(name, False, text)
    second = f"{others[0]['algorithm']} follows with {format_spread(others[0]['final'], others[0]['final_std'])}"
    gap = format_number(abs(leader["final"] - others[0]["final"]))
    tested = f"a paired test over seeds tells it from all others (p {max(p.values()):.2g})"
    return Verdict(name, True, f"{start}; {tested}; {second}, {gap} behind.")
