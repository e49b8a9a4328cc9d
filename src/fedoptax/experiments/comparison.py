"""A comparison: several algorithms on one task over several seeds, in one folder, and its continuation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple, Self

from fedoptax._files import reading
from fedoptax._progress import bar, html_table
from fedoptax.algorithms import ALGORITHMS
from fedoptax.engine.personalization import with_rate
from fedoptax.engine.plan import make_plan
from fedoptax.errors import RunError, UsageError, check_choice, check_int
from fedoptax.experiments import tuning
from fedoptax.experiments.build import Algorithms, find_constructor, name_algorithms
from fedoptax.experiments.grids import RANGES, complete_grid, paper_grids, split_weighting
from fedoptax.experiments.presets import choose_settings, describe_rates
from fedoptax.experiments.record import split_options
from fedoptax.experiments.selection import make_watch
from fedoptax.experiments.workers import Job, run_jobs
from fedoptax.names import BASELINES
from fedoptax.storage.config import read_record, write_record
from fedoptax.storage.folder import ENDED
from fedoptax.storage.history import History, is_shown, read_run
from fedoptax.tasks.task import Task, check_task

FILE = "compare.json"


@dataclass(frozen=True)
class Comparison:
    """The arguments of `compare`, as in compare.json."""

    algorithms: list[str]
    hyperparameters: dict[str, dict[str, Any]]  # by algorithm; those of a search once it is finished
    seeds: list[int]
    task: dict[str, Any]  # name and options
    options: dict[str, Any]  # of `fedoptax.run`, with `rounds`
    command: str = ""
    tunings: dict[str, tuning.Search] = field(default_factory=dict)  # by algorithm, the search that comes first
    rates: dict[str, str] = field(default_factory=dict)  # by algorithm, where learning rates come from

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read compare.json."""
        with reading(f"'{folder / FILE}'", "a comparison", but=RunError):
            stored = read_record(folder / FILE)
            tunings = {name: tuning.Search.from_dict(search) for name, search in stored.pop("tunings", {}).items()}
            comparison = cls(**stored, tunings=tunings)
            for name in comparison.algorithms:
                dict(comparison.hyperparameters[name])
            for seed in comparison.seeds:
                check_int("seed", seed, 0)
            return comparison


class Compared(NamedTuple):
    """The outcome of a comparison: its arguments, its folder, and a line for each run or search that `diverged`."""

    comparison: Comparison  # with the results of searches, and without algorithms if all their points diverged
    folder: Path
    diverged: list[str]

    @property
    def histories(self) -> dict[str, list[History]]:
        """By algorithm, one per seed in their order, as the folder holds them."""
        return {name: [History(rows) for _, rows in runs] for name, runs in self._read().items()}

    def _read(self) -> dict[str, list[Any]]:
        of = self.comparison
        return {name: [read_run(_run_folder(self.folder, name, seed)) for seed in of.seeds] for name in of.algorithms}

    def _repr_html_(self) -> str:
        rows = []
        for name, runs in self._read().items():
            ended = [History(history) for summary, history in runs if summary["status"] in ENDED]
            row: dict[str, Any] = {"algorithm": name, "completed": f"{len(ended)} of {len(runs)}"}
            for column in dict.fromkeys(column for history in ended for column in history[-1]):
                values = [value for history in ended if (value := history.last(column)) is not None]
                if values and is_shown(column):
                    spread = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
                    row[column] = f"{fmean(values):.4g}{spread}"
            rows.append(row)
        return html_table(rows, f"{self.folder}: last values, mean ± standard deviation over completed seeds")


def compare(
    task: Task, algorithms: Algorithms, out: str | Path, *, seeds: int | Sequence[int] = 3,
    hyperparameters: Mapping[str, Mapping[str, Any]] | None = None,
    grids: Mapping[str, Mapping[str, Sequence[Any]]] | str | None = None, budget: int | None = None,
    rates: Mapping[str, str] | None = None, select: str = "train_loss", last: int | None = None,
    overwrite: bool = False, progress: bool | None = None, command: str = "", executor: Any = None, **options: Any,
) -> Compared:  # fmt: skip
    """Run several algorithms on one task over seeds; runs that are done in `out` are not run again.

    All algorithms of one seed start from the same parameters and see the same cohorts. One that diverges is saved up to
    its last finite state, and the others go on.

    Args:
      algorithms: names in `ALGORITHMS`, `MODULE:FUNCTION`, or functions that make an algorithm; or by name any of
        these, or an algorithm itself: `{"mine": fx.fedavg(0.1)}`.
      out: a folder: a run folder for each algorithm and seed; `fedoptax.report.write_report(out)` draws it.
      seeds: how many, counted from 0, or which.
      hyperparameters: by algorithm; one that is not named has those of the task's preset.
      grids: values by algorithm and hyper-parameter, or `"paper"`; searched first, with a seed that is not compared.
      budget: the number of points that are searched first for every algorithm: its grid's, else coarse ones of all its
        learning rates that `hyperparameters` do not name, then finer ones around the best.
      rates: by algorithm, where its learning rates come from, for the report.
      select, last: how the points of the searches are ranked, as in `tune`.
      overwrite: remove an earlier comparison in `out` instead of continuing it.
      progress, command, executor: as in `tune`.
      **options: further arguments of `fedoptax.run`, the same for all runs; `weighting` as in `tune`.

    Returns:
      The histories, and which runs diverged.

    Raises:
      UsageError: a name or value is refused, or `out` has other files; before anything runs.
      RunError: `out` holds another comparison, or cannot be written.
      Interrupted: Ctrl-C or a signal; calling it again continues.
    """
    check_task(task)
    wanted_seeds = range(check_int("seeds", seeds)) if isinstance(seeds, int) else seeds
    chosen = [check_int("seeds", seed, 0) for seed in wanted_seeds]
    names = name_algorithms(algorithms)
    own = [name for name in names if ":" not in name and name not in (*ALGORITHMS, *BASELINES)]
    if own and executor is not None:
        raise UsageError(f"executor needs algorithms by name or MODULE:FUNCTION, got {', '.join(own)}")
    if not names or not chosen or len(set(chosen)) < len(chosen):
        raise UsageError("algorithms and seeds must not be empty, and seeds must be different")
    grids = paper_grids(task.name, grids, names) if isinstance(grids, str) else grids
    for argument, values_by_name in (("hyperparameters", hyperparameters), ("grids", grids), ("rates", rates)):
        for name in values_by_name or ():
            check_choice(argument, name, names)
    folder, stored = Path(out), tuning.shared_options(options)
    settings = choose_settings(task.name, names, model=task.spec.get("model"))
    explicit = {name: dict(one) for name, one in (hyperparameters or {}).items()}
    values = {name: explicit.get(name, settings.hyperparameters[name]) for name in names}
    grids = dict(grids or {})
    for name in names if budget is not None and check_int("budget", budget) else ():
        grids[name] = complete_grid(find_constructor(name), grids.get(name, {}), explicit.get(name, ()), budget)
    spec, rule = {"name": task.name, **task.spec}, tuning.rule_for(task, select, last, stored["rounds"])
    more: dict[str, Any] = {"rule": rule, "seed": max(chosen) + 1, "task": spec, "options": stored}
    searched = {name: grid for name, grid in grids.items() if grid or not budget}
    tunings = {name: tuning.Search.of_grid(name, grid, values[name], **more) for name, grid in searched.items()}
    origins = settings.rates | {name: describe_rates(name, values[name], (), "user") for name in explicit}
    origins |= {**(rates or {}), **{name: "tuned" for name, grid in searched.items() if grid.keys() & RANGES.keys()}}
    comparison = Comparison(names, values, chosen, spec, stored, command, tunings, origins)
    if (folder / FILE).is_file() and not overwrite:
        earlier = Comparison.read(folder)
        values |= {name: one for name, one in earlier.hyperparameters.items() if name in tunings}  # once it is finished
        comparison = replace(comparison, hyperparameters=values, command=earlier.command, rates=earlier.rates)
        tuning.check_same(folder / FILE, earlier, comparison, "comparison")
    how = tuning.Execution(progress, options.get("trackers"), overwrite, executor)
    return run_comparison(task, comparison, folder, how)


def run_comparison(task: Task, comparison: Comparison, out: Path, how: tuning.Execution) -> Compared:
    """Run what is unfinished in `out`: every algorithm's search, if any, then all algorithms over every seed."""
    _check(task, comparison)
    values, names, diverged = dict(comparison.hyperparameters), list(comparison.algorithms), []
    options = comparison.options | ({"trackers": how.trackers} if how.trackers else {})
    with tuning.opened(out, FILE, comparison, how.overwrite):
        searches = {
            out / "tuning" / name.replace(":", "."): replace(search, options=comparison.options)
            for name, search in comparison.tunings.items()
        }
        for found in tuning.run_searches(task, searches, out, how) if searches else ():
            name = found.search.algorithm
            try:
                values[name] = found.hyperparameters
            except tuning.AllDiverged as error:
                diverged.append(str(error))
                names.remove(name)
        comparison = replace(comparison, hyperparameters=values)
        write_record(out / FILE, comparison)
        rounds = int(options["rounds"])
        makers = {name: tuning.PointMaker(name, values[name], options) for name in names}
        jobs: list[Job] = []
        count = len(comparison.seeds) * len(names)
        for seed, name in product(comparison.seeds, names):  # so that one that is stopped has all algorithms early
            about = {**options, "seed": seed, "rates": comparison.rates.get(name, "")}
            arguments: Any = name, {}, _run_folder(out, name, seed), about
            jobs.append(Job(tuning.run_point, arguments, rounds, f"{name}, seed {seed}", len(jobs), count))
        with bar("comparison", len(jobs) * rounds, enabled=how.progress, each=rounds) as update:
            summaries = run_jobs(task, makers, jobs, out, update, how.executor)
        diverged += [summary["message"] for summary in summaries if summary["status"] == "diverged"]
    return Compared(replace(comparison, algorithms=names), out, diverged)


def _check(task: Task, comparison: Comparison) -> None:
    rounds = split_options(comparison.options)[0]
    make_watch(task, rounds)
    for name in comparison.algorithms:
        if name in comparison.tunings:
            tuning.check_search(task, comparison.tunings[name])
        else:
            values = comparison.hyperparameters[name]
            with_rate(rounds, task, split_weighting(values)["hyperparameters"])
            make_plan(rounds, task, tuning.PointMaker(name, values, comparison.options)({}).algorithm, name)


def _run_folder(out: Path, name: str, seed: int) -> Path:
    return out / name.replace(":", ".") / f"seed-{seed}"
