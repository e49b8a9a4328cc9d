"""Searches for hyper-parameters read back from their folders: their points, heat maps, and profiles of one value."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedoptax.experiments.grids import can_zoom, is_number
from fedoptax.experiments.tuning import FILE, SearchResult, Trial
from fedoptax.report.load import find_folders, load_run
from fedoptax.report.words import format_number, format_setting, join_words, metric_title, metric_words

#: Preferred hyper-parameters for the axes of a heat map, vertical and horizontal.
AXES = (("client_lr", "server_lr"), ("lr", "alpha"))


def load_searches(root: Path) -> list[SearchResult]:
    """Load all searches at or below a folder, by name, with a RunError if one is damaged."""
    return [SearchResult.read(folder) for folder in sorted(p for p, mark, _ in find_folders(root) if mark == FILE)]


def tabulate_points(results: Sequence[SearchResult]) -> pd.DataFrame:
    """Tabulate every point of every search: algorithm, rank, values, score, metric, rounds done, status and folder."""
    rows = []
    for result in results:
        for rank, trial in enumerate(result.ranked, start=1):
            run = (of := load_run(trial.folder))._replace(rows=of.rows[: result.search.rounds])
            row = {"algorithm": result.search.algorithm, "rank": rank, **trial.values, "score": trial.score}
            values = run.rows.get(run.metric, pd.Series(dtype=float)) if run.is_complete else pd.Series(dtype=float)
            late = values.iloc[-result.search.rule.last :].dropna()
            row |= {run.metric: (late if len(late) else values.dropna().iloc[-1:]).mean(), "rounds": len(run.rows)}
            rows.append(row | {"status": trial.status, "folder": trial.folder.name})
    return pd.DataFrame(rows)


def describe_search(result: SearchResult) -> str:
    """Describe the search, its rule and its result."""
    search, best = result.search, result.best_or_none
    lost = sum(trial.status == "diverged" for trial in result.trials)
    text = f"{result.points_done} of {search.size} points" + (f", of which {lost} diverged" if lost else "")
    text += f", ranked by the {metric_words(search.rule.metric)} {_last_rounds(search.rule.last)}"
    ranges = [describe_values(name, values) for name, values in result.explored.items() if len(values) > 1]
    how = {"zoom": f"; coarse first, then finer around the best: {', '.join(ranges)}"}
    text += how.get(search.search, f": {', '.join(ranges)}") if ranges else ""
    if best is None:
        return f"{text}. None completed."
    values = join_words([f"{name} {format_setting(value)}" for name, value in best.values.items()])
    return f"{text}. Best: {values}, {metric_words(search.rule.metric)} {format_number(best.score)}."


def describe_values(name: str, values: Sequence[Any]) -> str:
    """Describe the number, the range and the smallest spacing of values."""
    if not can_zoom(values):
        return f"{name} {join_words(list(map(format_setting, values)), 'or')}"
    factor = min(high / low for low, high in pairwise(values))
    ends = f"{name} from {format_setting(values[0])} to {format_setting(values[-1])}"
    return f"{ends} ({len(values)} values, a factor {format_setting(float(f'{factor:.2g}'))} or more apart)"


def _last_rounds(last: int) -> str:
    return "in the last round" if last == 1 else f"averaged over the last {last} rounds"


def edge_warnings(result: SearchResult) -> list[str]:
    """Warn of every best value at an end of its searched range."""
    lines = []
    for name, end in result.edges.items():
        values = result.explored[name]
        ends = f"{format_setting(min(values))} to {format_setting(max(values))}"
        lines.append(f"The best {name} is the {end} that was searched ({ends}): a better one may lie beyond.")
    return lines


class HeatMap(NamedTuple):
    """The metric over two hyper-parameters (Reddi et al. 2021, Figure 2)."""

    result: SearchResult
    x: str  # the hyper-parameter of the columns
    y: str  # the hyper-parameter of the rows
    columns: Sequence[str]  # values of x
    rows: Sequence[str]  # values of y
    cells: Sequence[Sequence[Trial | None]]  # by row, the best trial of each cell; None where nothing was run
    others: Sequence[str]  # further hyper-parameters, over which each cell is the best

    @property
    def caption(self) -> str:
        """The caption of the map."""
        rule = self.result.search.rule
        text = f"{self.result.search.algorithm}: {metric_words(rule.metric)} {_last_rounds(rule.last)}"
        text += f", the best over {join_words(self.others)}" if self.others else ""
        return f"{text}. The frame marks the chosen point, × one without a score."


def make_heat_map(result: SearchResult) -> HeatMap | None:
    """Make the map of a search of two or more hyper-parameters; None for Optuna's."""
    grid = {name: values for name, values in result.explored.items() if len(values) > 1}
    if result.search.search == "optuna" or len(grid) < 2 or not result.trials:
        return None
    y, x = next((pair for pair in AXES if set(pair) <= set(grid)), tuple(grid)[:2])
    best: dict[tuple[Any, Any], Trial] = {}
    for trial in reversed(result.ranked):
        best[trial.values[x], trial.values[y]] = trial
    rows = list(reversed(grid[y]))
    cells = [[best.get((a, b)) for a in grid[x]] for b in rows]
    others = [name for name in grid if name not in (x, y)]
    return HeatMap(result, x, y, list(map(format_setting, grid[x])), list(map(format_setting, rows)), cells, others)


class Profile(NamedTuple):
    """The best metric against one hyper-parameter (Reddi et al. 2021, Figure 3), one line per algorithm."""

    name: str
    metric: str
    higher_is_better: bool
    is_grid: bool  # else one point per trial
    lines: Mapping[str, Sequence[tuple[float, float]]]  # (value, best metric over all else) by increasing value

    @property
    def metric_title(self) -> str:
        """The title of the axis of values."""
        return metric_title(f"best {self.metric}" if self.is_grid else self.metric)

    @property
    def caption(self) -> str:
        """The caption of the profile."""
        return f"{self.metric_title} against {self.name}; {'higher' if self.higher_is_better else 'lower'} is better"


def make_profiles(results: Sequence[SearchResult]) -> list[Profile]:
    """Make a profile for each hyper-parameter with three values or more in a grid, of all searches together."""
    profiles: dict[tuple[str, str, bool, bool], dict[str, list[tuple[float, float]]]] = {}
    for result in results:
        is_grid, rule = result.search.search == "grid", result.search.rule
        sign = 1 if rule.higher_is_better else -1
        for name, values in result.search.grid.items():
            if not all(map(is_number, values)) or (is_grid and len(values) < 3):
                continue
            trials = [trial for trial in result.trials if math.isfinite(trial.score)]
            trials.sort(key=lambda trial: (float(trial.values[name]), sign * trial.score))
            line = [(float(trial.values[name]), trial.score) for trial in trials]
            line = list(dict(line).items()) if is_grid else line  # of each value the last, which is the best
            if len(line) > 1:
                lines = profiles.setdefault((name, rule.metric, rule.higher_is_better, is_grid), {})
                label = result.search.algorithm
                while label in lines:
                    label += "′"
                lines[label] = line
    return [Profile(*key, lines) for key, lines in profiles.items()]
