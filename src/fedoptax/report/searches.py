"""Searches for hyper-parameters read back from their folders: what was tried, heat maps, and profiles of one value."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedoptax.experiments import tuning as searching
from fedoptax.experiments.grids import edges, is_number
from fedoptax.report.load import Run, find_folders, load_run
from fedoptax.report.words import format_number, format_setting, join_words, metric_title, metric_words

#: Hyper-parameters that are tried first for the axes of a heat map, vertical and horizontal.
AXES = (("client_lr", "server_lr"), ("lr", "alpha"))


@dataclass(frozen=True, eq=False)
class Trial:
    """A point of a search that was run."""

    values: Mapping[str, Any]  # of the hyper-parameters that are searched
    score: float  # by the search's rule, NaN without one
    metric: float  # the run's own metric at its end, NaN if it did not complete
    run: Run


@dataclass(frozen=True, eq=False)
class Search:
    """A search for hyper-parameters: what was to be tried, and what was, in that order."""

    folder: Path
    tuning: searching.Search
    trials: Sequence[Trial]

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return self.tuning.algorithm

    @property
    def ranked(self) -> list[Trial]:
        """The trials, best first, those without a score last."""
        sign = -1 if self.tuning.rule.higher_is_better else 1
        return sorted(self.trials, key=lambda trial: (math.isnan(trial.score), sign * trial.score))

    @property
    def best(self) -> Trial | None:
        """The best trial; None if none completed."""
        return next((trial for trial in self.ranked if not math.isnan(trial.score)), None)

    @property
    def edges(self) -> dict[str, str]:
        """The hyper-parameters whose best value is the lowest or the highest of the grid."""
        return edges(self.tuning.grid, self.best.values) if self.best is not None else {}


def load_searches(root: Path) -> list[Search]:
    """Load all searches at or below a folder, by name.

    Raises:
      RunError: one is damaged.
    """
    return [_load(folder) for folder in sorted(path for path, mark, _ in find_folders(root) if mark == "tune.json")]


def _load(folder: Path) -> Search:
    tuning = searching.Search.read(folder)
    places = [place for place in folder.glob("point-*") if (place / "config.json").is_file()]
    places.sort(key=lambda place: (len(place.name), place.name))  # point-999 before point-1000
    return Search(folder, tuning, [_trial(tuning, load_run(place, tuning.command or None)) for place in places])


def _trial(tuning: searching.Search, run: Run) -> Trial:
    values = run.config["algorithm"].get("hyperparameters") or {}
    rows = run.rows.astype(object).where(run.rows.notna(), None).to_dict("records")
    score = tuning.rule.score([{str(name): value for name, value in row.items()} for row in rows], run.status)
    return Trial({name: values.get(name) for name in tuning.grid}, score, _last_mean(run, tuning.rule.last), run)


def _last_mean(run: Run, last: int) -> float:
    """The run's own metric as a mean over the last rounds; NaN if it did not complete."""
    if not run.is_complete or run.metric not in run.rows:
        return math.nan
    values = run.rows[run.metric]
    late = values.iloc[-last:].dropna()
    return float((late if len(late) else values.dropna().iloc[-1:]).mean())


def tabulate_points(searches: Sequence[Search]) -> pd.DataFrame:
    """Tabulate every point of every search: algorithm, rank, values, score, metric, rounds done, status and folder."""
    return pd.DataFrame(
        {"algorithm": search.algorithm, "rank": rank, **trial.values, "score": trial.score}
        | {trial.run.metric: trial.metric, "rounds": len(trial.run.rows), "status": trial.run.status}
        | {"folder": trial.run.path.name}
        for search in searches
        for rank, trial in enumerate(search.ranked, start=1)
    )


def describe_search(search: Search) -> str:
    """Say what was searched, by which rule, and what was found."""
    rule, best = search.tuning.rule, search.best
    lost = sum(trial.run.status == "diverged" for trial in search.trials)
    text = f"{len(search.trials)} of {search.tuning.size} points" + (f", of which {lost} diverged" if lost else "")
    text += f", ranked by the {metric_words(rule.metric)} {_last_rounds(rule.last)}"
    if best is None:
        return f"{text}. None completed."
    values = join_words([f"{name} {format_setting(value)}" for name, value in best.values.items()])
    return f"{text}. Best: {values}, {metric_words(rule.metric)} {format_number(best.score)}."


def _last_rounds(last: int) -> str:
    return "in the last round" if last == 1 else f"averaged over the last {last} rounds"


def edge_warnings(search: Search) -> list[str]:
    """Warn of every best value at an end of its grid."""
    lines = []
    for name, end in search.edges.items():
        values = search.tuning.grid[name]
        ends = f"{format_setting(min(values))} to {format_setting(max(values))}"
        lines.append(f"The best {name} is the {end} of its grid ({ends}): a better one may lie beyond.")
    return lines


@dataclass(frozen=True, eq=False)
class HeatMap:
    """The metric over two hyper-parameters (Reddi et al. 2021, Figure 2)."""

    search: Search
    x: str  # the hyper-parameter of the columns
    y: str  # the hyper-parameter of the rows
    columns: Sequence[str]  # values of x
    rows: Sequence[str]  # values of y
    cells: Sequence[Sequence[Trial | None]]  # by row, the best trial of each cell; None where nothing was run
    others: Sequence[str]  # further hyper-parameters, over which each cell is the best

    @property
    def caption(self) -> str:
        """What the map shows."""
        rule = self.search.tuning.rule
        text = f"{self.search.algorithm}: {metric_words(rule.metric)} {_last_rounds(rule.last)}"
        text += f", the best over {join_words(self.others)}" if self.others else ""
        return f"{text}. The frame marks the chosen point, × one that diverged."


def make_heat_map(search: Search) -> HeatMap | None:
    """Make the map of a grid with two or more hyper-parameters; None for other searches."""
    grid = {name: values for name, values in search.tuning.grid.items() if len(values) > 1}
    if search.tuning.search != "grid" or len(grid) < 2 or not search.trials:
        return None
    y, x = next((pair for pair in AXES if set(pair) <= set(grid)), tuple(grid)[:2])
    sign = 1 if search.tuning.rule.higher_is_better else -1

    def worth(trial: Trial) -> tuple[bool, float]:
        return trial is search.best, sign * trial.score if math.isfinite(trial.score) else -math.inf

    best: dict[tuple[Any, Any], Trial] = {}
    for trial in sorted(search.trials, key=worth):
        best[trial.values[x], trial.values[y]] = trial
    rows = list(reversed(grid[y]))
    cells = [[best.get((a, b)) for a in grid[x]] for b in rows]
    others = [name for name in grid if name not in (x, y)]
    return HeatMap(search, x, y, list(map(format_setting, grid[x])), list(map(format_setting, rows)), cells, others)


@dataclass(frozen=True)
class Profile:
    """The best metric against one hyper-parameter (Reddi et al. 2021, Figure 3), one line per algorithm.

    A line holds (value, best metric over all else) by increasing value; without a grid, one point per trial.
    """

    name: str
    metric: str
    higher_is_better: bool
    lines: Mapping[str, Sequence[tuple[float, float]]]
    is_grid: bool

    @property
    def metric_title(self) -> str:
        """The title of the axis of values."""
        return metric_title(f"best {self.metric}" if self.is_grid else self.metric)

    @property
    def caption(self) -> str:
        """What the profile shows."""
        return f"{self.metric_title} against {self.name}; {'higher' if self.higher_is_better else 'lower'} is better"

    @property
    def is_log(self) -> bool:
        """Whether the axis of the hyper-parameter should be logarithmic."""
        return min(x for line in self.lines.values() for x, _ in line) > 0


def make_profiles(searches: Sequence[Search]) -> list[Profile]:
    """Make a profile for each hyper-parameter with at least three values, of all searches that have it together."""
    profiles: dict[tuple[str, str, bool, bool], dict[str, list[tuple[float, float]]]] = {}
    for search in searches:
        is_grid, rule = search.tuning.search == "grid", search.tuning.rule
        sign = 1 if rule.higher_is_better else -1
        for name, values in search.tuning.grid.items():
            if not all(map(is_number, values)) or (is_grid and len(values) < 3):
                continue
            trials = [trial for trial in search.trials if math.isfinite(trial.score)]
            trials.sort(key=lambda trial: (float(trial.values[name]), sign * trial.score))
            line = [(float(trial.values[name]), trial.score) for trial in trials]
            line = list(dict(line).items()) if is_grid else line  # of each value the last, which is the best
            if len(line) > 1:
                lines = profiles.setdefault((name, rule.metric, rule.higher_is_better, is_grid), {})
                label = search.algorithm
                while label in lines:
                    label += "′"
                lines[label] = line
    return [
        Profile(name, metric, higher, lines, is_grid) for (name, metric, higher, is_grid), lines in profiles.items()
    ]
