"""A search for hyper-parameters: a run folder a point, one compilation for all, and the best by one rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedoptax._progress import Update, bar
from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.aggregation import as_aggregator
from fedoptax.engine.evaluation import column_names, evaluation_data
from fedoptax.engine.program import Point
from fedoptax.errors import RunError, UsageError, check_int, unknown
from fedoptax.experiments.build import build, find_constructor
from fedoptax.experiments.grids import edges
from fedoptax.experiments.result import DivergedError, Interrupted
from fedoptax.experiments.run import check_names, check_options, run
from fedoptax.experiments.search import SEARCHES, Search, check_grid, grid_search, optuna_search
from fedoptax.experiments.selection import Rule, Tried, make_rule
from fedoptax.experiments.wrapping import wrap_as
from fedoptax.storage import folder as storage
from fedoptax.storage.checkpoint import rounds_of
from fedoptax.storage.finished import is_whole
from fedoptax.storage.history import Row, higher_is_better
from fedoptax.storage.stored import check_tuning
from fedoptax.tasks.task import Task, check_task
from fedoptax.trackers import Tracker

FILE = "tune.json"
OWN = ("rounds", "seed", "label", "hyperparameters", "out", "overwrite", "resume_from", "progress")
"""Options of `fedoptax.run` that a search gives each of its runs by itself."""


@dataclass(frozen=True)
class Tuning:
    """What is searched, as tune.json keeps it.

    Attributes:
      algorithm: its name.
      grid: values by hyper-parameter; with `search = "optuna"` the ends of a range.
      fixed: the other hyper-parameters.
      rule: how points are ranked.
      seed: of every run, and of the search.
      task: name and options of the task.
      options: of `fedoptax.run`, the same for all points.
      search: one of `SEARCHES`.
      trials: how many points, for a search that has no end of its own.
      command: that made it.
    """

    algorithm: str
    grid: dict[str, list[Any]]
    fixed: dict[str, Any]
    rule: Rule
    seed: int
    task: dict[str, Any]
    options: dict[str, Any]
    search: str = "grid"
    trials: int = 0
    command: str = ""

    def save(self, folder: Path) -> None:
        """Writes tune.json."""
        storage.write_json(folder / FILE, {"format": storage.FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Tuning:
        """Reads tune.json.

        Raises:
          RunError: it is missing, damaged or of another format.
        """
        stored = storage.read_json(folder / FILE)
        if stored.pop("format", None) != storage.FORMAT:
            raise RunError(f"'{folder / FILE}' is not of format {storage.FORMAT}")
        check_tuning(folder / FILE, stored)
        try:
            return cls.of(stored)
        except TypeError as error:
            raise RunError(f"'{folder / FILE}' is damaged: {error}") from error

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Tuning:
        """From what `asdict` makes of it."""
        return cls(**{**stored, "rule": Rule(**stored["rule"])})

    @property
    def size(self) -> int:
        """How many points there are in all."""
        if self.search != "grid":
            return self.trials
        product = 1
        for values in self.grid.values():
            product *= len(values)
        return product


@dataclass(frozen=True)
class Tuned:
    """The outcome of a search.

    Attributes:
      tuning: what was searched.
      tried: every point, in the order they were run.
      best: the best of them.
      edges: the hyper-parameters whose best value is the lowest or highest of the grid: name -> which.
    """

    tuning: Tuning
    tried: Sequence[Tried]
    best: Tried
    edges: Mapping[str, str] = field(default_factory=dict)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The best point's, with those that were fixed."""
        return {**self.tuning.fixed, **self.best.values}


class AllDiverged(RunError):
    """Not one point of a search came to its end."""

    def __init__(self, algorithm: str, points: int) -> None:
        super().__init__(f"{algorithm}: all {points} points of the search diverged; lower values are needed")
        self.algorithm, self.points = algorithm, points

    def __reduce__(self) -> tuple[Any, ...]:  # a process pool sends errors home by pickle
        return type(self), (self.algorithm, self.points)


def rule_for(task: Task, metric: str, last: int | None, rounds: int) -> Rule:
    """The rule by a metric of the runs on a task.

    Raises:
      UsageError: there is no such metric, or `last` is out of range.
    """
    init = jax.eval_shape(task.init, jax.random.key(0))
    names = ["train_loss", *column_names(task, init, evaluation_data(task))]
    primary = f"test_{task.primary_metric}"
    directions = {n: higher_is_better(n) for n in names} | {primary: task.higher_is_better}
    return make_rule(metric, last, rounds, {name: directions[name] for name in names})


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
    progress: bool | None = None,
    **options: Any,
) -> Tuned:
    """Searches for the hyper-parameters of an algorithm; what is done in `out` already is not done again.

    Args:
      task: the task.
      algorithm: a name in `ALGORITHMS`, or `MODULE:FUNCTION`.
      grid: values by hyper-parameter; with `search="optuna"` the ends of a range.
      out: a folder: a run folder for each point and tune.json; `fedoptax.report.write_report(out)` draws it.
      fixed: the other hyper-parameters.
      select: the metric that ranks points, a column of the history.
      last: it is the mean over so many last rounds; None is 100, but at most a tenth of all.
      seed: of every run, so all start from the same parameters and see the same cohorts.
      search: `"grid"`, or `"optuna"` (extra `optuna`).
      trials: points of a search with Optuna.
      rounds: of every run.
      progress: show a bar on standard error; None shows it on a terminal.
      **options: further arguments of `fedoptax.run`, the same for all points. A tracker that is an object is told of
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
    if not isinstance(algorithm, str):
        raise UsageError(f"algorithm: {algorithm!r} given, allowed is a name, such as 'fedavg', or MODULE:FUNCTION")
    check_grid(grid)
    check_names(options, OWN)
    rounds, seed = check_int("rounds", rounds), check_int("seed", seed, 0, 2**32 - 1)
    trackers = [one for one in options.get("trackers") or () if not isinstance(one, str)]
    if search not in SEARCHES:
        unknown("search", search, SEARCHES)
    tuning = Tuning(
        algorithm,
        {name: [_plain(value) for value in values] for name, values in grid.items()},
        dict(fixed or {}),
        rule_for(task, select, last, rounds),
        seed,
        {"name": task.name, **task.spec},
        {"rounds": rounds, **_stored(options)},
        search,
        0 if search == "grid" else trials,
    )
    there = Path(out) / FILE
    if there.is_file() and replace(Tuning.read(Path(out)), command="") != Tuning.of(storage.read_back(asdict(tuning))):
        raise RunError(f"'{there}' is of another search; give another folder")
    with bar(f"{algorithm}: {tuning.size} points", tuning.size * rounds, enabled=progress) as update:
        return carry_out(task, tuning, Path(out), update, trackers=trackers)


def carry_out(
    task: Task, tuning: Tuning, out: Path, update: Update, new: bool = False, trackers: Sequence[Tracker] = ()
) -> Tuned:
    """Runs the points that are not yet done in `out`, in folders `point-001`, …, and ranks all.

    Every point starts from the same parameters and sees the same cohorts. One that diverges is stopped there.

    Args:
      task: the task.
      tuning: what is searched.
      out: the folder; it has a tune.json afterwards.
      update: is told the rounds done, of all points together, and the best score.
      new: there must be no results in `out` yet.
      trackers: objects that are told of every run, besides those that `tuning` names.

    Raises:
      UsageError: a point's value is refused by the algorithm, or an option by `fedoptax.run`; before anything is
        written.
      AllDiverged: every point did.
      RunError: `out` cannot be used.
      Interrupted: Ctrl-C or a signal; a further call goes on.
    """
    find_constructor(tuning.algorithm)
    search, make = _search(tuning), _maker(tuning)
    if tuning.search == "grid":
        tried: list[Tried] = []
        while (values := search(tried)) is not None:  # refuses what is out of range before anything runs
            _ = make(values).algorithm
            tried.append(Tried(values, 0.0, "", None))
    if not (out / FILE).is_file() and (values := search([])) is not None:
        check_options(task, make(values).algorithm, seed=tuning.seed, **tuning.options)
    told = {"trackers": [*tuning.options.get("trackers", ()), *trackers]} if trackers else {}
    running = replace(tuning, options={**tuning.options, **told})
    with storage.locked(out, new):
        tuning.save(out)
        tried = []
        while (values := search(tried)) is not None:
            tried.append(_try(task, running, make(values), values, out, tried, update))
    best = tuning.rule.best([one.score for one in tried])
    if best is None:
        raise AllDiverged(tuning.algorithm, len(tried))
    return Tuned(tuning, tried, tried[best], edges(_numeric(tuning.grid), tried[best].values))


def _stored(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as tune.json can hold them: aggregators and trackers by name; tracker objects have none."""
    stored = {name: _plain(value) for name, value in options.items() if name != "trackers"}
    if "aggregate" in stored:
        stored["aggregate"] = str(as_aggregator(stored["aggregate"]))
    names = [one for one in options.get("trackers") or () if isinstance(one, str)]
    return stored | ({"trackers": names} if names else {})


def _search(tuning: Tuning) -> Search:
    if tuning.search == "grid":
        return grid_search(tuning.grid)
    return optuna_search(tuning.grid, tuning.trials, tuning.rule, tuning.seed)


def _try(
    task: Task, tuning: Tuning, point: Point, values: dict[str, Any], out: Path, tried: Sequence[Tried], update: Update
) -> Tried:
    number, rounds = len(tried), int(tuning.options["rounds"])
    folder = out / f"point-{number + 1:03d}"
    before, best = number * rounds, tuning.rule.best([one.score for one in tried])
    note = "" if best is None else f"best {tuning.rule.metric} {tried[best].score:.4g}"
    if is_whole(folder):
        status = str(storage.read_status(folder))
        done = int(storage.read_json(folder / "summary.json")["rounds_done"])
        rows = storage.read_rows(folder, done)
    else:
        status, rows = _run(task, tuning, point, values, folder, lambda done, _: update(before + done, note))
    update(before + rounds, note)
    return Tried(values, tuning.rule.score(rows, status), status, folder)


def _run(
    task: Task, tuning: Tuning, point: Point, values: Mapping[str, Any], folder: Path, update: Update
) -> tuple[str, list[Row]]:
    source = folder if rounds_of(folder) else None
    try:
        result = run(
            task,
            point,
            seed=tuning.seed,
            label=tuning.algorithm,
            hyperparameters={**tuning.fixed, **values},
            out=folder,
            overwrite=source is None,
            resume_from=source,
            progress=update,
            **tuning.options,
        )
    except DivergedError as error:
        result = error.result
    if result.signal:  # it came in the last round or after it
        raise Interrupted(replace(result, message=f"stopped after {folder.name}"))
    return result.status, result.history.rows


def _maker(tuning: Tuning) -> Callable[[Mapping[str, Any]], Point]:
    """Makes points; those that differ in numbers alone share a constructor, and so a compilation."""
    made: dict[tuple[tuple[str, Any], ...], Callable[..., FedAlgorithm]] = {}
    wrappers = tuning.options.get("wrappers") or {}

    def constructor(chosen: Mapping[str, Any]) -> Callable[..., FedAlgorithm]:
        return lambda **free: wrap_as(build(tuning.algorithm, {**tuning.fixed, **chosen, **free}), wrappers)

    def make(values: Mapping[str, Any]) -> Point:
        free = {name: float(value) for name, value in values.items() if _is_number(value)}
        chosen = {name: value for name, value in values.items() if name not in free}
        key = tuple(sorted(chosen.items(), key=repr))
        if key not in made:
            made[key] = constructor(chosen)
        return Point(made[key], free)

    return make


def _plain(value: Any) -> Any:
    """A NumPy scalar as a number of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _numeric(grid: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[float]]:
    return {name: values for name, values in grid.items() if all(map(_is_number, values))}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
