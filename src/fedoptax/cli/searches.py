"""`fedoptax compare` and `fedoptax tune`."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from fedoptax._files import to_plain
from fedoptax.cli.options import CompareForm, TuneForm
from fedoptax.cli.printing import warn_if_loss_increased
from fedoptax.cli.report import report_comparison, report_search
from fedoptax.cli.runs import errors_name
from fedoptax.cli.setup import command_line, note_rates, set_up
from fedoptax.engine.options import RunOptions, options_of
from fedoptax.errors import UsageError
from fedoptax.experiments import comparison, tuning
from fedoptax.experiments.build import build, by_algorithm
from fedoptax.experiments.grids import RANGES, choose_grids, split_weighting
from fedoptax.experiments.presets import Settings, find_grid
from fedoptax.experiments.workers import open_executor
from fedoptax.names import split_algorithms
from fedoptax.tasks.task import Task


def _grid(options: CompareForm | TuneForm, names: Sequence[str]) -> dict[str, str]:
    """Return the values to search: those of --grid, which replace entries of the paper's grid if requested."""
    typed = dict(options.grid)
    paper = typed.pop("paper", None)
    if "weighting" in typed and "weighting" in options.run:
        raise UsageError("grid: weighting already has a value in `weighting`")
    grid = {} if paper is None else find_grid(options.task, options.preset, paper, names)
    return {name: text for name, text in grid.items() if name.rpartition(".")[2] not in typed} | typed


def compare(options: CompareForm) -> None:
    """Run a comparison and write its report."""
    names = split_algorithms(options.algorithms)
    typed = [name for name in ("budget", "grid", "select", "last") if getattr(options, name) not in (None, {})]
    if typed and not options.tune:
        raise UsageError(f"{typed[0]} needs --tune")
    chosen = choose_grids(_grid(options, names), options.set_, names, options.budget) if options.tune else {}
    grids = {name: grid for name, grid in chosen.items() if grid}  # the others have nothing to search
    task, settings, run = set_up(options, names, "compare")
    compared = tuning.shared_options({key: value for key, value in run.items() if key not in ("out", "overwrite")})
    seeds = list(map(int, options.seeds.split(",")))
    seeds = seeds if len(seeds) > 1 else list(range(*seeds))
    tuned = _best_of_searches(options, names, task, settings, compared | {"seeds": seeds})
    if twice := [key for key in options.grid if key.rpartition(".")[0] in tuned]:
        raise UsageError(f"grid: {twice[0]} is of an algorithm that `from` has searched")
    grids = {name: grid for name, grid in grids.items() if name not in tuned}
    searched = [name for name, grid in grids.items() if grid.keys() & RANGES.keys()]
    rates = settings.rates | dict.fromkeys([*filter(tuned.get, tuned), *searched], "tuned")
    if len(set(rates.values())) > 1:
        origins = "; ".join(f"{name}: {origin}" for name, origin in rates.items())
        warning = f"learning rates differ in source ({origins}); --tune searches {', '.join(RANGES)} with equal budgets"
        print(f"warning: {warning}", file=sys.stderr)
    note_rates(options.task, rates)
    _note_weighting(names, settings, tuning.common_weighting(run))
    run |= {"seeds": seeds, "hyperparameters": settings.hyperparameters, "grids": grids, "rates": rates}
    with errors_name(run["out"]), open_executor(options.workers, run["out"]) as executor:
        done = comparison.compare(task, names, executor=executor, **run | _shared(options))
    ends = {name: [history.last("train_loss") for history in seeds] for name, seeds in done.histories.items()}
    worst = {name: max(filter(None, losses), default=None) for name, losses in ends.items()}
    warn_if_loss_increased(task, worst, run)
    report_comparison(done, options.json)


def tune(options: TuneForm) -> None:
    """Run a search and write its report."""
    name = options.algorithm
    budget = None if options.search == "optuna" else options.trials
    grid = choose_grids(_grid(options, [name]), options.set_, [name], budget)[name]
    if not grid:
        raise UsageError(f"grid is needed for {name}: it has none of {', '.join(RANGES)} left to search")
    task, settings, run = set_up(options, [name], f"tune-{name}")
    run["fixed"] = {key: value for key, value in settings.hyperparameters[name].items() if key not in grid}
    run |= {"search": options.search, "trials": options.trials}
    executor = open_executor(options.workers, run["out"])
    with errors_name(run["out"]), executor as workers, suppress(tuning.AllDiverged):  # `report_search` raises it again
        tuning.tune(task, name, grid, executor=workers, **run | _shared(options))
    report_search(tuning.SearchResult.read(run["out"]), options.json)


def _best_of_searches(
    options: CompareForm, names: list[str], task: Task, settings: Settings, compared: Mapping[str, Any]
) -> dict[str, bool]:
    """Put the best points of searches into the settings, unless typed; return of each whether its rates are tuned.

    It warns of searches under other options than `compared`, and by one of its `seeds`.
    """
    tuned, typed = dict[str, bool](), by_algorithm("set", options.set_, names)
    for folder in options.from_:
        if not (folder / tuning.FILE).is_file():
            raise UsageError(f"from must be the folder of a search, got '{folder}'")
        result = tuning.SearchResult.read(folder)
        name, of, spec = result.search.algorithm, result.search.task, to_plain({"name": task.name, **task.spec})
        others = [key for key in {**of, **spec} if of.get(key) != spec.get(key)]
        if name not in names or set(others) - {"validation_fraction", "metrics"}:
            what = f"{others[0]} {of.get(others[0])}" if name in names else f"algorithm {name}"
            raise UsageError(f"from: '{folder}' is a search with {what}, which is not compared")
        if name in tuned:
            raise UsageError(f"from: '{folder}' is a second search for {name}")
        if result.points_done < result.search.size:
            raise UsageError(f"from: '{folder}' is not finished: fedoptax resume {folder}")
        searched, about = result.search.options, options_of(RunOptions)
        footing = ["wrappers", *(n for n in about if about[n].changes_result and not n.startswith("eval_"))]
        changed = [n for n in footing if searched.get(n) != compared.get(n)]
        unlike = [f"{n} {searched.get(n)}, not {compared.get(n)}" for n in changed]
        unlike += ["a seed of the comparison"] if result.search.seed in compared["seeds"] else []
        if unlike:
            print(f"warning: the search for {name} was with {'; '.join(unlike)}", file=sys.stderr)
        settings.hyperparameters[name] = result.hyperparameters | typed[name]
        tuned[name] = bool(result.search.grid.keys() & RANGES.keys() - typed[name].keys())
    return tuned


def _note_weighting(names: list[str], settings: Settings, weighting: str) -> None:
    """Print the weighting of all methods, if some papers have another."""
    others = list[str]()
    for name in names:
        with suppress(UsageError):  # of a wrong value, which is refused later, or one that is searched
            values = split_weighting(settings.hyperparameters[name])["hyperparameters"]
            others += [name] if build(name, values).weighting != weighting else []
    if others and weighting != "paper":
        note = f"not in the paper of {', '.join(others)}; --weighting paper follows each paper"
        print(f"weighting: {weighting} for all methods ({note})", file=sys.stderr)


def _shared(options: CompareForm | TuneForm) -> dict[str, Any]:
    """Return the options that comparisons and searches share, and the command to reproduce them."""
    return {"select": options.select or "train_loss", "last": options.last, "command": command_line()}
