"""What a report is called."""

from __future__ import annotations

from collections.abc import Sequence

from fedoptax.report.groups import group_runs
from fedoptax.report.load import Run
from fedoptax.report.words import count, listed


def title_of(runs: Sequence[Run]) -> str:
    """A heading: the algorithms, or how many, and the tasks."""
    names = list(dict.fromkeys(group.config["algorithm"]["name"] for group in group_runs(runs)))
    tasks = list(dict.fromkeys(str(run.config["task"]["name"]) for run in runs))
    where = listed(tasks) if len(tasks) <= 3 else count(len(tasks), "task")
    if len(names) == 1:
        return f"{names[0]} on {where}"
    return f"{listed(names) if len(names) <= 3 else count(len(names), 'algorithm')} on {where}"
