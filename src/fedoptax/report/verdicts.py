"""Which algorithm ended best and which was ahead early, and whether the seeds allow to say so."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from fedoptax.report.paired import LEAST_PAIRS, LEVEL
from fedoptax.report.tables import Row, table_rows
from fedoptax.report.words import format_count, format_number, format_spread, join_words, metric_words


@dataclass(frozen=True)
class Verdict:
    """The verdict on the groups of one task."""

    leader: str  # the label of the group with the best mean of final values
    is_clear: bool  # whether its distance from each other group is significant
    text: str


def find_verdicts(table: pd.DataFrame) -> list[Verdict]:
    """Judge each task on which at least two groups completed; other groups are not ranked."""
    ended = [row for row in table_rows(table) if row["complete"] and math.isfinite(row["final"])]
    problems = dict.fromkeys(row["problem"] for row in ended)
    rivals = [[row for row in ended if row["problem"] == problem] for problem in problems]
    return [_judge(rows) for rows in rivals if len(rows) > 1]


def _judge(rows: Sequence[Row]) -> Verdict:
    (leader,) = [row for row in rows if row["standing"]]
    name, metric = leader["algorithm"], metric_words(leader["metric"])
    text = f"{name} has the {leader['standing']} final {metric}, {format_spread(leader['final'], leader['final_std'])}"
    if math.isfinite(leader["commonest"]):
        text += f", where the commonest class is {format_number(leader['commonest'])}"
    if any(math.isnan(row["final_std"]) for row in rows):
        why = "Each ran with one seed" if all(row["seeds"] == 1 for row in rows) else "Some ran with one seed"
        return Verdict(name, False, f"{text}. {why}, so how far chance moves these values is unknown.")
    if any(row["pairs"] < LEAST_PAIRS for row in rows if row is not leader):
        text += f"; too few seeds in common for a paired test, which needs {LEAST_PAIRS}."
        return Verdict(name, False, text)
    text = f"{text} ({format_count(leader['seeds'], 'seed')}); {_describe_tests(rows, '', leader['higher_is_better'])}."
    close = [row["algorithm"] for row in rows if row["p_within_point"] < LEVEL]
    text += f" Equivalent within a percentage point: {join_words(close)}." if close else ""
    early = [row for row in rows if row["early_standing"]]
    if early and any(math.isfinite(row["early_p"]) for row in rows):
        text += f" Early, as the mean of the first {format_count(early[0]['early_window'], 'round')}, "
        text += f"{early[0]['algorithm']} has the {early[0]['early_standing']}, {format_number(early[0]['early'])}; "
        text += f"{_describe_tests(rows, 'early_', leader['higher_is_better'])}."
    return Verdict(name, leader["standing"] == "best", f"{text} Tests are paired over seeds, with Holm's correction.")


def _describe_tests(rows: Sequence[Row], prefix: str, higher_is_better: bool) -> str:
    """Say of which others the leader's distance is significant, with the next one's or the smallest p."""
    others = [row for row in rows if not row[f"{prefix}standing"]]
    near = [row for row in others if not row[f"{prefix}p"] < LEVEL]
    if near:
        names = join_words([row["algorithm"] for row in near]) if len(near) <= 4 else f"{len(near)} others"
        return f"the difference from {names} is not significant (p ≥ {min(row[f'{prefix}p'] for row in near):.2g})"
    second = min(others, key=lambda row: row[f"{prefix}behind"])
    gap, low, high = (format_number(second[f"{prefix}{name}"], 2) for name in ("behind", "low", "high"))
    worse = "lower" if higher_is_better else "higher"
    p = f"p ≤ {max(row[f'{prefix}p'] for row in others):.2g}"
    if len(others) == 1:
        return f"{second['algorithm']} is significantly {worse}, by {gap} [{low}, {high}] ({p.replace('≤ ', '')})"
    return f"all others are significantly {worse} ({p}); {second['algorithm']} follows, {gap} {worse} [{low}, {high}]"
