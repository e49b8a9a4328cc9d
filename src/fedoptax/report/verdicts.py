"""Which algorithm ended best, and whether the seeds allow to say so."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from fedoptax.report.tables import Row, table_rows
from fedoptax.report.words import format_number, format_spread, join_words, metric_words


@dataclass(frozen=True)
class Verdict:
    """What the final values of one task's groups say."""

    leader: str  # the label of the group with the best mean
    is_clear: bool  # whether its mean ± standard deviation overlaps with no other's
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
    floor = sign * leader["final"] - leader["final_std"]
    near = [row["algorithm"] for row in others if sign * row["final"] + row["final_std"] >= floor]
    if near:
        names = join_words(near) if len(near) <= 4 else f"{len(near)} others"
        return Verdict(name, False, f"{start}; {names} {'is' if len(near) == 1 else 'are'} within the spread.")
    second = f"{others[0]['algorithm']} follows with {format_spread(others[0]['final'], others[0]['final_std'])}"
    gap = format_number(abs(leader["final"] - others[0]["final"]))
    return Verdict(name, True, f"{start}, clear of the spread of all others; {second}, {gap} behind.")
