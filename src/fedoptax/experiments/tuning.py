"""A search for hyper-parameters: one run folder per point, one compilation for all, and the best by one rule."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedoptax._files import reading, to_plain
from fedoptax._progress import Update, bar, html_table
from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.personalization import with_rate
from fedoptax.engine.plan import make_plan
from fedoptax.engine.program import Point
from fedoptax.errors import RunError, UsageError, check_choice, check_int
from fedoptax.experiments import grids
from fedoptax.experiments.build import build, find_constructor, wrap
from fedoptax.experiments.grids import WEIGHTING, Zoom, can_zoom, check_grid, complete_grid, edges, is_number, points
from fedoptax.experiments.record import split_options
from fedoptax.experiments.result import Interrupted
from fedoptax.experiments.run import simulate
from fedoptax.experiments.selection import Rule, Trial, make_watch, rule_for
from fedoptax.experiments.workers import Job, run_jobs
from fedoptax.names import ALGORITHMS, BASELINES
from fedoptax.storage.checkpoint import rounds_of
from fedoptax.storage.config import plain_options, read_config, read_record, write_record
from fedoptax.storage.folder import ENDED, Status, is_finished, locked, prepare, read_summary
from fedoptax.storage.history import read_rows, read_run
from fedoptax.tasks.task import Task, check_task
from fedoptax.trackers import Tracker

FILE = "tune.json"
SINGLE = {"label", "hyperparameters", "rates", "out", "overwrite", "resume_from", "seed", "progress"}
"""Options of a single run."""
MAY_CHANGE = {"checkpoint_every", "save_every", "client_loop", "mesh", "client_states", "examples", "engine"}
"""The options that may change when a search or a comparison is resumed."""


@dataclass(frozen=True)
class Search:
    """The arguments of `tune`, as in tune.json."""

    algorithm: str
    grid: Mapping[str, Sequence[Any]]
    fixed: dict[str, Any]
    rule: Rule  # by which points are ranked
    seed: int
    task: dict[str, Any]  # name and options
    options: dict[str, Any]  # of `fedoptax.run`, with `rounds`
    search: str = "grid"  # all points; "zoom" (these, then finer around the best); or "optuna"
    trials: int = 0  # the number of points; 0 for a grid, which has an end of its own
    command: str = ""

    def __post_init__(self) -> None:
        check_grid(self.grid)
        check_choice("search", self.search, ("grid", "zoom", "optuna"))
        check_int("rounds", self.options["rounds"])
        if self.search == "zoom":
            if self.trials < (size := math.prod(map(len, self.grid.values()))):
                raise UsageError(f"{self.algorithm}: the grid alone has {size} points, the search only {self.trials}")
            if not any(map(can_zoom, self.grid.values())):
                raise UsageError(f"{self.algorithm}: a search beyond its grid needs numbers > 0 in it")
        object.__setattr__(self, "grid", to_plain(self.grid))

    @classmethod
    def of_grid(cls, algorithm: str, grid: Mapping[str, Any], fixed: Mapping[str, Any], **more: Any) -> Self:
        """Return the search that a grid asks for, every point or zooming; what it names is not `fixed`."""
        fixed = {name: value for name, value in fixed.items() if name not in grid}
        for value in grid.get(WEIGHTING, ()):
            check_choice(f"a searched {WEIGHTING}", value, ("examples", "uniform"))
        if WEIGHTING in grid and more["rule"].metric == "train_loss":
            raise UsageError("a searched weighting changes train_loss: select a metric of validation examples")
        if isinstance(grid, Zoom):
            more = {"search": "zoom", "trials": grid.budget, **more}
        return cls(algorithm, grid, fixed, **more)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read tune.json."""
        with reading(f"'{folder / FILE}'", "a search", but=RunError):
            return cls.from_dict(read_record(folder / FILE))

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Return the search that `dataclasses.asdict` made this dictionary of."""
        return cls(**{**stored, "rule": Rule(**stored["rule"])})

    @property
    def rounds(self) -> int:
        """The rounds of each run."""
        return int(self.options["rounds"])

    @property
    def size(self) -> int:
        """The number of points."""
        return self.trials if self.search != "grid" else math.prod(len(values) for values in self.grid.values())


class AllDiverged(RunError):
    """No point of a search has a score, as all diverged, or none has the metric."""


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search: all points (`trials`), in the order they were run, and where."""

    search: Search
    trials: Sequence[Trial]
    folder: Path

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a search and the points that it has so far."""
        search, trials = Search.read(folder), []
        places = [place for place in folder.glob("point-*") if (place / "config.json").is_file()]
        for place in sorted(places, key=lambda place: (len(place.name), place.name)):  # point-999 before point-1000
            config, (summary, rows) = read_config(place), read_run(place)
            values = {WEIGHTING: config.get(WEIGHTING), **config["algorithm"]["hyperparameters"]}
            score = search.rule.score(rows[: search.rounds], summary["status"])  # it may have been continued by itself
            trials.append(Trial({name: values.get(name) for name in search.grid}, score, summary["status"], place))
        return cls(search, trials, folder)

    @property
    def points_done(self) -> int:
        """How many points have ended; others are interrupted, or still run."""
        return sum(trial.status in (*ENDED, Status.DIVERGED) for trial in self.trials)

    @property
    def ranked(self) -> list[Trial]:
        """The points, best first."""
        return self.search.rule.ranked(self.trials)

    @property
    def best_or_none(self) -> Trial | None:
        """The best point; None if none has a score."""
        return self.search.rule.best(self.trials)

    @property
    def best(self) -> Trial:
        """The best point; `AllDiverged` is raised if no point has a score."""
        if self.best_or_none is None:
            name, count = self.search.algorithm, len(self.trials)
            if any(trial.status in ENDED for trial in self.trials):
                raise AllDiverged(f"{name}: no point has a value of {self.search.rule.metric}; select another metric")
            raise AllDiverged(f"{name}: all {count} points of the search diverged; lower values are needed")
        return self.best_or_none

    @property
    def explored(self) -> dict[str, list[Any]]:
        """The values of every hyper-parameter that was searched, numbers increasing; of a grid also those to come."""
        grid = self.search.grid if self.search.search == "grid" else {}
        explored = {}
        for name in self.search.grid:
            values = list(dict.fromkeys([*grid.get(name, ()), *(trial.values[name] for trial in self.trials)]))
            explored[name] = sorted(values) if all(map(is_number, values)) else values
        return explored

    @property
    def edges(self) -> dict[str, str]:
        """The hyper-parameters with the lowest or highest searched value as the best: name -> which."""
        return {} if self.best_or_none is None else edges(self.explored, self.best.values)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The best point's, with those that were fixed."""
        return {**self.search.fixed, **self.best.values}

    def _repr_html_(self) -> str:
        rule = self.search.rule
        rows = [{**trial.values, rule.metric: trial.score, "status": trial.status} for trial in self.ranked]
        rounds = "last round" if rule.last == 1 else f"mean of the last {rule.last} rounds"
        return html_table(rows, f"{self.search.algorithm}: {len(rows)} points by {rule.metric}, {rounds}")


def tune(
    task: Task, algorithm: str, grid: Mapping[str, Sequence[Any]] | str | None, out: str | Path, *,
    fixed: Mapping[str, Any] | None = None, select: str = "train_loss", last: int | None = None, seed: int = 0,
    search: str | None = None, trials: int | None = None, overwrite: bool = False, progress: bool | None = None,
    command: str = "", executor: Any = None, **options: Any,
) -> SearchResult:  # fmt: skip
    """Search for the hyper-parameters of an algorithm; points that are done in `out` are not run again.

    Args:
      algorithm: a name in `ALGORITHMS`, or `MODULE:FUNCTION`.
      grid: values by hyper-parameter, also of `weighting`; with `search="optuna"` the ends of a range; None, or words
        alone, searches every learning rate that is not in `fixed`. `"paper"` or `"paper:NAME"` is a paper's grid.
      out: a folder: a run folder for each point and tune.json; `fedoptax.report.write_report(out)` draws it.
      fixed: the other hyper-parameters.
      select: the metric that ranks points, a column of the history.
      last: the number of last rounds over which its mean is taken; None is 100, but at most a tenth of all.
      seed: of every run, so all start from the same parameters and see the same cohorts.
      search: `"grid"`, every point; `"zoom"`, these and then finer ones around the best, the default with `trials` or
        without numbers in `grid`; or `"optuna"` (extra `optuna`).
      trials: the number of points of a search that is no grid, by default 16.
      overwrite: remove an earlier search in `out` instead of continuing it.
      progress: show a bar on standard error; None shows it on a terminal.
      command: that reports show as the way to reproduce them.
      executor: whose workers run the points that do not depend on others, a `concurrent.futures.Executor`; None runs
        them one after another. Results are the same.
      **options: further arguments of `fedoptax.run`, the same for all points; `weighting` is by default by examples,
        uniform with privacy. A tracker that is an object follows every run, and a further call may bring another.

    Returns:
      All points, and the best.

    Raises:
      UsageError: a name or value is refused, or `out` has other files; before anything runs.
      AllDiverged: no point has a score.
      RunError: `out` holds another search, or cannot be written.
      Interrupted: Ctrl-C or a signal; calling it again continues.
    """
    check_task(task)
    folder, shared = Path(out), shared_options(options)
    rule, seed = rule_for(task, select, last, shared["rounds"]), check_int("seed", seed, 0, 2**32 - 1)
    fixed, budget = dict(fixed or {}), None if trials is None else check_int("trials", trials)
    grid = grids.paper_grids(task.name, grid, [algorithm])[algorithm] if isinstance(grid, str) else grid
    if grid is not None:
        check_grid(grid)
    if search == "grid" and budget is not None:
        raise UsageError("trials needs search zoom or optuna")
    if search == "grid" and (grid is None or isinstance(grid, Zoom)):
        raise UsageError("search grid needs grid, the values of all points")
    if search != "grid" and not isinstance(grid, Zoom) and isinstance(algorithm, str):
        grid = complete_grid(find_constructor(algorithm), grid or {}, fixed, None if search == "optuna" else budget)
    if search == "optuna" and isinstance(grid, Zoom):
        grid = {name: grids.RANGES.get(name, values) for name, values in grid.items()}
    more: dict[str, Any] = {"rule": rule, "seed": seed, "task": {"name": task.name, **task.spec}, "options": shared}
    if search not in (None, "grid"):
        more |= {"search": search, "trials": budget or grids.BUDGET}
    spec = Search.of_grid(algorithm, grid or {}, fixed, **more, command=command)
    if (folder / FILE).is_file() and not overwrite:
        stored = Search.read(folder)
        check_same(folder / FILE, stored, replace(spec, command=stored.command), "search")
    how = Execution(progress, options.get("trackers"), overwrite, executor)
    (result,) = run_searches(task, {folder: spec}, folder, how)
    _ = result.best  # of which there may be none
    return result


class Execution(NamedTuple):
    """How several runs are carried out, see `tune`; without `trackers` those that the record names follow every run."""

    progress: bool | Update | None = None  # or a function of the rounds done, of all runs together, and a note
    trackers: Sequence[str | Tracker] | None = None
    overwrite: bool = False
    executor: Any = None


def run_searches(task: Task, searches: Mapping[Path, Search], folder: Path, how: Execution) -> list[SearchResult]:
    """Run the points of several searches that are not done yet, each in `point-001`, … of its folder; see `tune`.

    The searches have equal options. Workers share the points of all; without workers one search follows another, and
    each is compiled once. `folder` is that of the search, or of the comparison.
    """
    trials: dict[Path, list[Trial]] = {out: [] for out in searches}
    makers: dict[str, PointMaker] = {}
    count, rounds = sum(search.size for search in searches.values()), next(iter(searches.values())).rounds
    with ExitStack() as stack:
        for out, search in searches.items():
            check_search(task, search)
            makers[search.algorithm] = PointMaker(search.algorithm, search.fixed, search.options)
            stack.enter_context(opened(out, FILE, search, how.overwrite))
        update = stack.enter_context(bar("search", count * rounds, enabled=how.progress, each=rounds))
        while (done := sum(map(len, trials.values()))) < count:
            runs = (one for out in searches for one in _next_runs(searches[out], trials[out], out, how))
            following = list(islice(runs, 1 if how.executor is None else None))
            jobs = [job._replace(place=place, size=count) for place, job in enumerate(following, done)]
            summaries = run_jobs(task, makers, jobs, folder, update, how.executor)
            for job, summary in zip(jobs, summaries):
                _, values, place, _ = job.arguments
                rows = read_rows(place, min(rounds, summary["rounds_done"]))
                score = searches[place.parent].rule.score(rows, summary["status"])
                trials[place.parent].append(Trial(values, score, summary["status"], place))
    return [SearchResult(search, trials[out], out) for out, search in searches.items()]


def _next_runs(search: Search, trials: Sequence[Trial], out: Path, how: Execution) -> list[Job]:
    """Return the next runs of a search, which do not depend on each other."""
    best = search.rule.best(trials)
    note = search.algorithm + ("" if best is None else f", best {search.rule.metric} so far {best.score:.4g}")
    options = search.options | {"seed": search.seed} | ({"trackers": how.trackers} if how.trackers else {})
    following = _next_points(search, trials, 1 if how.executor is None else search.size)
    return [
        Job(run_point, (search.algorithm, values, out / f"point-{number:03d}", options), search.rounds, note)
        for number, values in enumerate(following, len(trials) + 1)
    ]


def run_point(
    task: Task, makers: "Mapping[str, PointMaker]", name: str, values: Mapping[str, Any], folder: Path,
    options: Mapping[str, Any], progress: Any,
) -> dict[str, Any]:  # fmt: skip
    """Do one of several runs in its folder, from its last checkpoint if any, unless it is finished.

    Return its summary.json; raise `Interrupted` if a signal came, perhaps in the last round: no other should begin.
    """
    if not is_finished(folder):
        source, maker = folder if rounds_of(folder) else None, makers[name]
        where = {"label": name, "out": folder, "overwrite": source is None, "resume_from": source}
        where["wrappers"] = maker.wrappers  # a baseline has none
        options = {**options, **grids.split_weighting({**maker.fixed, **values}), **where, "progress": progress}
        result = simulate(task, maker(values, options.get("seed", 0)), *split_options(options), name)
        if result.signal:
            raise Interrupted(replace(result, message=result.message or f"stopped after {folder}"))
    return read_summary(folder)


def shared_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `fedoptax.run` that several runs share, with `rounds`, as JSON keeps them; all are checked."""
    for name in SINGLE & options.keys():
        raise UsageError(f"option {name} cannot be shared by several runs")
    return {"rounds": split_options(options)[0].rounds, **plain_options(options), WEIGHTING: common_weighting(options)}


def common_weighting(options: Mapping[str, Any]) -> str:
    """Return the one weighting of all methods; by default it is examples, or uniform with privacy."""
    return options.get(WEIGHTING) or ("uniform" if "privacy" in (options.get("wrappers") or {}) else "examples")


@contextmanager
def opened(folder: Path, file: str, record: Any, overwrite: bool) -> Iterator[None]:
    """Open the folder of a search or a comparison, new or to be continued, and write its record there."""
    if overwrite or not (folder / file).is_file():
        prepare(folder, overwrite)
    with locked(folder):
        write_record(folder / file, record)
        yield


def check_same(path: Path, stored: Any, wanted: Any, kind: str) -> None:
    """Check that the record in a file, of a search or a comparison, is the one that is wanted."""
    old, new = to_plain(asdict(stored)), to_plain(asdict(wanted))
    for record in (old, new):
        for one in (record, *record.get("tunings", {}).values()):
            one["options"] = {name: value for name, value in one["options"].items() if name not in MAY_CHANGE}
    if old != new:
        raise RunError(f"'{path}' belongs to another {kind}; choose another folder")
    names, task = new.get("algorithms") or [new["algorithm"]], new["task"]
    own = sorted({*names} - {*ALGORITHMS, *BASELINES})
    if own := own + ([f"task '{task['name']}'"] if len(task) == 1 else []):  # they are known by name alone
        note = "note: runs in '%s' are not repeated; if %s was changed, pass overwrite=True"
        logging.getLogger("fedoptax").warning(note, path.parent, ", ".join(own))


def check_search(task: Task, search: Search) -> None:
    """Check that a search can be carried out."""
    make = PointMaker(search.algorithm, search.fixed, search.options)
    rounds = split_options(search.options)[0]
    for point in _next_points(search, [], search.size):
        algorithm = make(point).algorithm
        weighted = replace(rounds, weighting=point.get(WEIGHTING, rounds.weighting))
        with_rate(weighted, task, {**search.fixed, **point})
        make_plan(weighted, task, algorithm, search.algorithm)
    make_watch(task, rounds)


class PointMaker:
    """Makes algorithms as points; those that only differ in numbers share a constructor, and so a compilation."""

    def __init__(self, algorithm: str, fixed: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self.algorithm, self.fixed = algorithm, fixed
        self.wrappers = {} if algorithm in BASELINES else options.get("wrappers") or {}
        self._constructors: dict[tuple[Any, ...], Callable[..., FedAlgorithm]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.algorithm, self.fixed, {"wrappers": self.wrappers})

    def __call__(self, values: Mapping[str, Any], seed: int = 0) -> Point:
        """Return the point of these values in runs of a seed, which matters with privacy."""
        free = {name: float(value) for name, value in values.items() if is_number(value)}
        words = {name: value for name, value in values.items() if name not in {*free, WEIGHTING}}
        fixed = {**grids.split_weighting(self.fixed)["hyperparameters"], **words}

        def make(**numbers: Any) -> FedAlgorithm:
            return wrap(build(self.algorithm, {**fixed, **numbers}), **self.wrappers, seed=seed)

        key = *words.items(), seed if "privacy" in self.wrappers else 0
        return Point(self._constructors.setdefault(key, make), free)

    def allows(self, values: Mapping[str, Any]) -> bool:
        """Return whether the algorithm takes these values."""
        with suppress(UsageError):
            return self(values).algorithm is not None
        return False


def _next_points(search: Search, trials: Sequence[Trial], most: int) -> list[dict[str, Any]]:
    """Return the next points, at most so many: a function of the earlier ones, so an interrupted search goes on."""
    if len(trials) == search.size:
        return []
    if search.search != "optuna" and (rest := points(search.grid)[len(trials) :]):
        return rest[:most]
    known = [(trial.values, trial.score) for trial in trials]
    if search.search == "zoom":
        make = PointMaker(search.algorithm, search.fixed, search.options)
        return [grids.suggest_by_zoom(search.grid, known, search.rule.higher_is_better, make.allows)]
    return [grids.suggest_by_optuna(search.grid, known, search.rule.higher_is_better, search.seed)]
