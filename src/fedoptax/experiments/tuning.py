"""A search for hyper-parameters: one run folder per point, one compilation for all, and the best by one rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax

from fedoptax._files import to_plain, using
from fedoptax._html import html_table
from fedoptax._progress import Update, bar
from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.evaluation import column_names, evaluation_data
from fedoptax.engine.personalization import with_rate
from fedoptax.engine.plan import make_plan
from fedoptax.engine.program import Point
from fedoptax.errors import RunError, UsageError, check_choice, check_int
from fedoptax.experiments.baselines import find_simulation
from fedoptax.experiments.build import build, wrap
from fedoptax.experiments.grids import check_grid, edges, is_number, points, suggest_by_optuna
from fedoptax.experiments.run import run_in_folder, split_options
from fedoptax.experiments.selection import is_higher_better, make_watch
from fedoptax.storage.config import plain_options, read_record, write_record
from fedoptax.storage.folder import ENDED, locked, prepare
from fedoptax.storage.history import Row, read_rows
from fedoptax.tasks.task import Task, check_task
from fedoptax.trackers import Tracker

FILE = "tune.json"
SEARCHES = ("grid", "optuna")
SINGLE = {
    "label", "description", "hyperparameters", "rates", "out", "overwrite", "resume_from", "seed", "progress"
}  # fmt: skip
"""Options of a single run."""
LAST = 100
"""Rounds that the rule of Reddi et al. 2021 (Section 5) averages over."""


@dataclass(frozen=True)
class Rule:
    """How points are ranked: by the mean of `metric`, a column of the history, over the `last` rounds.

    Reddi et al. 2021 choose by the training loss of the last 100, so that test examples have no say.
    """

    metric: str = "train_loss"
    last: int = LAST
    higher_is_better: bool = False

    def score(self, rows: Sequence[Row], status: str) -> float:
        """Return the mean of the metric over the last rounds; NaN for a run that did not end or never measured it."""
        if status not in ENDED or not rows:
            return math.nan
        late, earlier = (
            [value for row in part if (value := row.get(self.metric)) is not None]
            for part in (rows[-self.last :], rows[: -self.last])
        )
        values = late or earlier[-1:]  # where no late round was evaluated, the last that was
        return math.fsum(values) / len(values) if values else math.nan

    def best(self, tried: Sequence[Tried]) -> Tried | None:
        """Return the point with the best score, the first of equals; None if none has a score."""
        finite = [one for one in tried if math.isfinite(one.score)]
        sign = -1 if self.higher_is_better else 1
        return min(finite, key=lambda one: sign * one.score, default=None)


def rule_for(task: Task, metric: str, last: int | None, rounds: int) -> Rule:
    """Return the rule by a metric of runs on a task; `last` is by default `LAST`, but at most a tenth of all rounds."""
    init = jax.eval_shape(task.init, jax.random.key(0))
    names = ["train_loss", *column_names(task, init, evaluation_data(task))]
    check_choice("select", metric, names)
    last = max(1, min(LAST, rounds // 10)) if last is None else check_int("last", last, 1, rounds)
    return Rule(metric, last, is_higher_better(task, metric))


@dataclass(frozen=True)
class Tuning:
    """What is searched, as tune.json keeps it: the arguments of `tune`.

    Attributes:
      rule: how points are ranked.
      task: name and options of the task.
      options: of `fedoptax.run`, with `rounds`.
      trials: the number of points; 0 for a grid, which has an end of its own.
    """

    algorithm: str
    grid: Mapping[str, Sequence[Any]]
    fixed: dict[str, Any]
    rule: Rule
    seed: int
    task: dict[str, Any]
    options: dict[str, Any]
    search: str = "grid"
    trials: int = 0
    command: str = ""

    def __post_init__(self) -> None:
        check_grid(self.grid)
        check_choice("search", self.search, SEARCHES)
        check_int("rounds", self.options["rounds"])
        object.__setattr__(self, "grid", to_plain(self.grid))

    @classmethod
    def read(cls, folder: Path) -> Tuning:
        """Read tune.json."""
        stored = read_record(folder / FILE)
        with using(folder / FILE):
            return cls.from_dict(stored)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Tuning:
        """Return the search that `dataclasses.asdict` made this dictionary of."""
        return cls(**{**stored, "rule": Rule(**stored["rule"])})

    @property
    def size(self) -> int:
        """The number of points."""
        return self.trials if self.search != "grid" else math.prod(len(values) for values in self.grid.values())


@dataclass(frozen=True)
class Tried:
    """A point that was run: the values that were searched, its score by the rule (NaN if it diverged), and its run."""

    values: Mapping[str, Any]
    score: float
    status: str
    folder: Path | None


class AllDiverged(RunError):
    """All points of a search diverged."""

    def __init__(self, algorithm: str, points: int) -> None:
        super().__init__(f"{algorithm}: all {points} points of the search diverged; lower values are needed")
        self.algorithm, self.points = algorithm, points

    def __reduce__(self) -> tuple[Any, ...]:  # a process pool sends errors home by pickle
        return type(self), (self.algorithm, self.points)


@dataclass(frozen=True)
class Tuned:
    """The outcome of a search.

    Attributes:
      tuning: what was searched.
      tried: every point, in the order they were run.
    """

    tuning: Tuning
    tried: Sequence[Tried]

    @property
    def best(self) -> Tried:
        """The best point.

        Raises:
          AllDiverged: every point did.
        """
        best = self.tuning.rule.best(self.tried)
        if best is None:
            raise AllDiverged(self.tuning.algorithm, len(self.tried))
        return best

    @property
    def edges(self) -> dict[str, str]:
        """The hyper-parameters whose best value is the lowest or highest of the grid: name -> which."""
        return edges(self.tuning.grid, self.best.values)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The best point's, with those that were fixed."""
        return {**self.tuning.fixed, **self.best.values}

    def _repr_html_(self) -> str:
        rule = self.tuning.rule
        sign = -1 if rule.higher_is_better else 1
        ranked = sorted(self.tried, key=lambda one: (math.isnan(one.score), sign * one.score))
        rows = [{**one.values, rule.metric: one.score, "status": one.status} for one in ranked]
        rounds = "last round" if rule.last == 1 else f"mean of the last {rule.last} rounds"
        return html_table(rows, f"{self.tuning.algorithm}: {len(rows)} points by {rule.metric}, {rounds}")


def tune(
    task: Task,
    algorithm: str,
    grid: Mapping[str, Sequence[Any]],
    out: str | Path,
    *,
    fixed: Mapping[str, Any] | None = None,
    select: str = "train_loss",
    last: int | None = None,
    seed: int = 0,
    search: str = "grid",
    trials: int = 25,
    rounds: int = 100,
    overwrite: bool = False,
    progress: bool | None = None,
    command: str = "",
    **options: Any,
) -> Tuned:
    """Search for the hyper-parameters of an algorithm; points that are done in `out` are not run again.

    Args:
      task: the task.
      algorithm: a name in `ALGORITHMS`, or `MODULE:FUNCTION`.
      grid: values by hyper-parameter; with `search="optuna"` the ends of a range.
      out: a folder: a run folder for each point and tune.json; `fedoptax.report.write_report(out)` draws it.
      fixed: the other hyper-parameters.
      select: the metric that ranks points, a column of the history.
      last: the number of last rounds over which its mean is taken; None is 100, but at most a tenth of all.
      seed: of every run, so all start from the same parameters and see the same cohorts.
      search: `"grid"`, or `"optuna"` (extra `optuna`).
      trials: points of a search with Optuna.
      rounds: of every run.
      overwrite: remove an earlier search in `out` instead of continuing it.
      progress: show a bar on standard error; None shows it on a terminal.
      command: that reports show as the way to reproduce them.
      **options: further arguments of `fedoptax.run`, the same for all points. A tracker that is an object follows
        every run, and a further call may bring another.

    Returns:
      All points, and the best.

    Raises:
      UsageError: a name or value is refused; before anything runs.
      AllDiverged: every point did.
      RunError: `out` holds another search, or cannot be used.
      Interrupted: Ctrl-C or a signal; a further call goes on.
    """
    check_task(task)
    check_shared(options)
    options = {"rounds": rounds, **options}
    split_options(options)
    folder = Path(out)
    tuning = Tuning(
        algorithm,
        grid,
        dict(fixed or {}),
        rule_for(task, select, last, rounds),
        check_int("seed", seed, 0, 2**32 - 1),
        {"name": task.name, **task.spec},
        plain_options(options),
        search,
        0 if search == "grid" else check_int("trials", trials),
        command,
    )
    if (folder / FILE).is_file() and not overwrite:
        there = Tuning.read(folder)
        if to_plain(asdict(there)) != to_plain(asdict(replace(tuning, command=there.command))):
            raise RunError(f"'{folder / FILE}' is of another search; give another folder")
    else:
        check_search(task, tuning)
        prepare(folder, overwrite)
    tuned = run_search(task, tuning, folder, progress, options.get("trackers"))
    _ = tuned.best  # of which there may be none
    return tuned


def run_search(
    task: Task,
    tuning: Tuning,
    out: Path,
    progress: bool | Update | None = None,
    trackers: Sequence[str | Tracker] | None = None,
) -> Tuned:
    """Run the points that are not yet done in `out`, in folders `point-001`, …; see `tune`.

    One that diverges is stopped there. `progress` may be a function; it is called with the rounds done, of all points
    together, and a note. Without `trackers` those that `tuning` names follow every run.
    """
    check_search(task, tuning)
    make, rounds = _point_maker(tuning), int(tuning.options["rounds"])
    options = tuning.options | {"seed": tuning.seed} | ({"trackers": trackers} if trackers else {})
    tried: list[Tried] = []
    title = f"{tuning.algorithm}: {tuning.size} points"
    with bar(title, tuning.size * rounds, enabled=progress) as update, locked(out):
        write_record(out / FILE, tuning)
        while len(tried) < tuning.size:
            values = _next_point(tuning, tried)
            folder, before = out / f"point-{len(tried) + 1:03d}", len(tried) * rounds
            best = tuning.rule.best(tried)
            note = "" if best is None else f"best {tuning.rule.metric} {best.score:.4g}"
            described = {"label": tuning.algorithm, "hyperparameters": {**tuning.fixed, **values}}
            shown = {"progress": lambda done, _, before=before, note=note: update(before + done, note)}
            summary = run_in_folder(
                task, make(values), folder, options | described | shown, find_simulation(tuning.algorithm)
            )
            update(before + rounds, note)
            score = tuning.rule.score(read_rows(folder, summary["rounds_done"]), summary["status"])
            tried.append(Tried(values, score, summary["status"], folder))
    return Tuned(tuning, tried)


def check_shared(options: Mapping[str, Any]) -> None:
    """Check that options hold none that each run of a search or a comparison gets of its own."""
    for name in SINGLE & options.keys():
        raise UsageError(f"option {name} cannot be shared by several runs")


def check_search(task: Task, tuning: Tuning) -> None:
    """Check that a search can be carried out."""
    make = _point_maker(tuning)
    rounds = split_options(tuning.options)[0]
    for point in points(tuning.grid) if tuning.search == "grid" else [_next_point(tuning, [])]:
        algorithm = make(point).algorithm
        with_rate(rounds, task, {**tuning.fixed, **point})
    make_plan(rounds, task, algorithm, tuning.algorithm)
    make_watch(task, rounds)


def _point_maker(tuning: Tuning) -> Callable[[Mapping[str, Any]], Point]:
    """Return a maker of points; those that differ in numbers alone share a constructor, and so a compilation."""
    wrappers = tuning.options.get("wrappers") or {}

    @cache
    def constructor(chosen: tuple[tuple[str, Any], ...]) -> Callable[..., FedAlgorithm]:
        return lambda **free: wrap(build(tuning.algorithm, {**tuning.fixed, **dict(chosen), **free}), **wrappers)

    def make(values: Mapping[str, Any]) -> Point:
        free = {name: float(value) for name, value in values.items() if is_number(value)}
        return Point(constructor(tuple((name, value) for name, value in values.items() if name not in free)), free)

    return make


def _next_point(tuning: Tuning, tried: Sequence[Tried]) -> dict[str, Any]:
    """Return the next point: a function of what was tried, so an interrupted search goes on."""
    if tuning.search == "grid":
        return points(tuning.grid)[len(tried)]
    known = [(one.values, one.score) for one in tried]
    return suggest_by_optuna(tuning.grid, known, tuning.rule.higher_is_better, tuning.seed)
