"""Which algorithm ended best, and whether the seeds allow to say so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedoptax.report.tables import shown_rows
from fedoptax.report.words import in_sentence, listed, number, spread

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Verdict:
    """What the final values of one task's groups say.

    Attributes:
      leader: the group with the best mean.
      clear: whether its mean ± standard deviation overlaps with no other's.
      text: the same in one sentence.
    """

    leader: str
    clear: bool
    text: str


def verdicts(table: pd.DataFrame) -> list[Verdict]:
    """A verdict for each task on which at least two groups ended; runs that did not complete are not ranked."""
    rows = shown_rows(table)
    found = [
        _verdict([row for row in rows if row["problem"] == problem])
        for problem in dict.fromkeys(row["problem"] for row in rows)
    ]
    return [verdict for verdict in found if verdict is not None]


def _verdict(rows: Sequence[dict[str, Any]]) -> Verdict | None:
    ended = [row for row in rows if row["complete"] and math.isfinite(row["final"])]
    if len(ended) < 2:
        return None
    sign = 1 if ended[0]["higher_is_better"] else -1
    leader, *others = sorted(ended, key=lambda row: -sign * row["final"])
    name, metric = leader["algorithm"], in_sentence(leader["metric"])
    start = f"{name} has the best final {metric}, {spread(leader['final'], leader['final_std'])}"
    if any(math.isnan(row["final_std"]) for row in ended):
        why = "Each ran with one seed" if all(row["seeds"] == 1 for row in ended) else "Some ran with one seed"
        text = f"{start}. {why}, so how far chance moves these values is unknown."
        return Verdict(name, False, text)
    floor = sign * leader["final"] - leader["final_std"]
    near = [row for row in others if sign * row["final"] + row["final_std"] >= floor]
    if near:
        names = listed([row["algorithm"] for row in near[:4]]) if len(near) <= 4 else f"{len(near)} others"
        return Verdict(name, False, f"{start}; {names} {'is' if len(near) == 1 else 'are'} within the spread.")
    second = f"{others[0]['algorithm']} follows with {spread(others[0]['final'], others[0]['final_std'])}"
    gap = number(abs(leader["final"] - others[0]["final"]))
    return Verdict(name, True, f"{start}, clear of the spread of all others; {second}, {gap} behind.")
