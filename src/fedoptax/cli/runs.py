"""`fedoptax run`, `compare` and `tune`, and `resume` for each of them and for a deployment."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedoptax.cli.options import Compare, Local, Resume, Run, Tune
from fedoptax.cli.printing import print_summary, warn_if_loss_increased
from fedoptax.cli.setup import note_rates, reload_task, set_up
from fedoptax.distributed import broadcast, is_distributed, is_leader, run_on_all_or_fail
from fedoptax.engine.options import RunOptions, options_of
from fedoptax.engine.xla import use_cache, use_cores
from fedoptax.errors import RunError, Stopped, UsageError, check_int
from fedoptax.experiments import comparison, tuning
from fedoptax.experiments.baselines import find_simulation
from fedoptax.experiments.build import build, wrap
from fedoptax.experiments.grids import choose_grids
from fedoptax.experiments.presets import Settings, find_grid
from fedoptax.experiments.result import DivergedError, Interrupted
from fedoptax.experiments.run import raise_unless_completed, split_options
from fedoptax.experiments.workers import open_executor
from fedoptax.names import split_algorithms
from fedoptax.storage.checkpoint import least_total
from fedoptax.storage.config import read_config
from fedoptax.storage.folder import ENDED, read_summary
from fedoptax.tasks.task import Task

SEARCHING = ("budget", "grid", "select", "last")  # options of compare that need --tune
RESUMED = {*options_of(RunOptions), "wrappers", "trackers", "rates", "command"} - {"mesh"}
"""The options that a run takes from its config.json; by default it uses as many of the devices here as it had."""


def run(options: Run) -> None:
    """Run an algorithm and print how it ended."""
    name = options.algorithm
    task, settings, run = set_up(options, [name], name)
    note_rates(options.task, settings.rates)
    run |= {"rates": settings.rates[name], "command": _command()}
    _run(task, name, settings.hyperparameters[name], run, options.json)


def _run(task: Task, name: str, values: Mapping[str, Any], options: Mapping[str, Any], as_json: bool = False) -> None:
    """Run an algorithm with these hyper-parameters and options of `fedoptax.run`, and print how it ended."""
    with errors_name(options["out"]):
        algorithm = run_on_all_or_fail(lambda: wrap(build(name, values), **options.get("wrappers", {})))
        described = {"label": name, "hyperparameters": values, **options}
        result = find_simulation(name)(task, algorithm, *split_options(described))
        raise_unless_completed(result)
    if is_leader():
        print_summary(options["out"], as_json)
        warn_if_loss_increased(task, {name: result.history.last("train_loss")}, options)


@contextmanager
def errors_name(folder: Path) -> Iterator[None]:
    """Within it, the errors of a run or of several say which folder they are in, and how to continue."""
    try:
        yield
    except Interrupted as stop:
        remedy = f"fedoptax resume {shlex.quote(str(folder))}" + (" --distributed" if is_distributed() else "")
        raise Stopped(f"{stop}; continue with: {remedy}", stop.result.signal) from None
    except DivergedError as error:
        raise RunError(f"{error} (in {folder})") from error


def _grid(options: Compare | Tune, names: Sequence[str]) -> dict[str, str]:
    """Return the values to search: those of --grid, which replace entries of the paper's grid if requested."""
    typed = dict(options.grid)
    paper = typed.pop("paper", None)
    return typed if paper is None else find_grid(options.task, options.preset, paper, names) | typed


def compare(options: Compare) -> None:
    """Run a comparison and write its report."""
    from fedoptax.cli.report import report_comparison  # here: its libraries are half of the imports of `run`

    names = split_algorithms(options.algorithms)
    if not options.tune and (useless := [name for name in SEARCHING if getattr(options, name)]):
        raise UsageError(f"{useless[0]} needs --tune")
    budget, grids = tuning.BUDGET if options.budget is None else options.budget, {}
    if options.tune:
        chosen = choose_grids(_grid(options, names), options.set_, names, budget)
        grids = {name: grid for name, grid in chosen.items() if grid}  # the others have nothing to search
    task, settings, run = set_up(options, names, "compare")
    tuned = _best_of_searches(options.from_, names, task, settings)
    rates = settings.rates | dict.fromkeys([*tuned, *grids], "tuned")
    if len(set(rates.values())) > 1:
        origins = "; ".join(f"{name}: {origin}" for name, origin in rates.items())
        warning = f"learning rates have different sources ({origins}); --tune searches all of them with equal budgets"
        print(f"warning: {warning}", file=sys.stderr)
    note_rates(options.task, rates)
    _note_weighting(names, settings, tuning.common_weighting(run))
    run |= {"seeds": options.seeds, "hyperparameters": settings.hyperparameters, "grids": grids, "rates": rates}
    with errors_name(run["out"]), open_executor(options.workers, run["out"]) as executor:
        done = comparison.compare(task, names, executor=executor, **run | _shared(options))
    ends = {name: [history.last("train_loss") for history in seeds] for name, seeds in done.histories.items()}
    worst = {name: max(filter(None, losses), default=None) for name, losses in ends.items()}
    warn_if_loss_increased(task, worst, run)
    report_comparison(done, options.json)


def tune(options: Tune) -> None:
    """Run a search and write its report."""
    from fedoptax.cli.report import report_search

    name = options.algorithm
    if options.trials is not None and (options.search == "grid" or (options.grid and not options.search)):
        raise UsageError("trials needs --search zoom or optuna")
    trials = options.trials or tuning.BUDGET
    grid = choose_grids(_grid(options, [name]), options.set_, [name], trials)[name]
    if not grid:
        raise UsageError(f"grid is needed for {name}, because --set has all its rates")
    task, settings, run = set_up(options, [name], f"tune-{name}")
    run["fixed"] = {key: value for key, value in settings.hyperparameters[name].items() if key not in grid}
    run |= {"search": options.search, "trials": trials}
    executor = open_executor(options.workers, run["out"])
    with errors_name(run["out"]), executor as workers, suppress(tuning.AllDiverged):  # `report_search` raises it again
        tuning.tune(task, name, grid, executor=workers, **run | _shared(options))
    report_search(tuning.SearchResult.read(run["out"]), options.json)


def _best_of_searches(folders: list[Path], names: list[str], task: Task, settings: Settings) -> list[str]:
    """Put the best points of searches into the settings, and return the algorithms that they are of."""
    tuned = []
    for folder in folders:
        result = tuning.SearchResult.read(folder)
        name, of = result.search.algorithm, result.search.task
        if name not in names or of["name"] != task.name:
            raise UsageError(
                f"from: '{folder}' is a search for {name} on task '{of['name']}', which is not compared here"
            )
        settings.hyperparameters[name] = result.hyperparameters
        tuned.append(name)
    return tuned


def _note_weighting(names: list[str], settings: Settings, weighting: str) -> None:
    """Print the weighting of all methods, if some papers have another."""
    values = {name: tuning.split_weighting(settings.hyperparameters[name])["hyperparameters"] for name in names}
    with suppress(UsageError):  # of a wrong value, which is refused later
        others = [name for name in names if build(name, values[name]).weighting != weighting]
        if others and weighting != "paper":
            note = f"not in the paper of {', '.join(others)}; --weighting paper follows each paper"
            print(f"weighting: {weighting} for all methods ({note})", file=sys.stderr)


def _command() -> str:
    return shlex.join(["fedoptax", *sys.argv[1:]])


def _shared(options: Compare | Tune) -> dict[str, Any]:
    """Return the options that comparisons and searches share, and the command to reproduce them."""
    return {"select": options.select or "train_loss", "last": options.last, "command": _command()}


def resume(options: Resume) -> None:
    """Continue the run, comparison or search in a folder."""
    from fedoptax.cli.report import report_comparison, report_search

    use_cores()
    use_cache()
    folder, data_dir = options.folder, options.data_dir
    changes = {"checkpoint_every": options.checkpoint_every, "resume_round": options.resume_round, **options.run}
    changes = {name: value for name, value in changes.items() if value is not None}
    is_comparison, is_search = (folder / comparison.FILE).is_file(), (folder / tuning.FILE).is_file()
    if changes.keys() & {"resume_round", "rounds"} and (is_comparison or is_search):
        raise UsageError("resume_round and `rounds` are for a single run only")
    if options.workers and not (is_comparison or is_search):
        raise UsageError("workers is for a comparison or a search only")
    with errors_name(folder), open_executor(options.workers, folder) as executor:
        if is_comparison:
            compared = comparison.Comparison.read(folder)
            compared = replace(compared, options=compared.options | changes)
            task = reload_task(compared.task, data_dir)
            report_comparison(comparison.run_comparison(task, compared, folder, executor=executor))
        elif is_search:
            search = tuning.Search.read(folder)
            search = replace(search, options=search.options | changes)
            task = reload_task(search.task, data_dir)
            report_search(tuning.run_search(task, search, folder, executor=executor))
        elif not is_distributed() and "deployment" in _read_config(folder, changes):
            _resume_deployment(options, changes)
        else:
            _resume_run(folder, data_dir, changes)


def _resume_deployment(options: Resume, changes: Mapping[str, Any]) -> None:
    """Continue a deployment that runs on this machine."""
    from fedoptax.cli.deploy import local  # needs Flower

    folder = options.folder
    if not folder.with_name(f"{folder.name}-network").is_dir():
        raise UsageError(
            f"'{folder}' is a deployment on other machines: continue with flwr run and resume=true, or here with "
            f"fedoptax deploy local --resume {folder} --app FOLDER"
        )
    for name in changes.keys() - {"resume_round", "rounds"}:
        raise UsageError(f"{name} does not apply to a deployment")
    rounds = {name: value for name, value in changes.items() if name == "rounds"}
    local(Local(resume=folder, resume_round=options.resume_round, run=rounds, data_dir=options.data_dir))


def _resume_run(folder: Path, data_dir: Path | None, changes: Mapping[str, Any]) -> None:
    """Continue a run; of several processes only the first needs the folder, and sends its config to the others."""
    config: Any = broadcast(run_on_all_or_fail(lambda: _read_config(folder, changes) if is_leader() else None))
    if not changes and not is_distributed() and read_summary(folder).get("status") in ENDED:
        print(f"'{folder}' is finished, nothing to do; --rounds N continues it", file=sys.stderr)
        return print_summary(folder, False)
    stored = {name: value for name, value in config.items() if name in RESUMED}
    task = run_on_all_or_fail(lambda: reload_task(config["task"], data_dir))
    algorithm = config["algorithm"]
    options = {**stored, **changes, "resume_from": folder, "out": folder}
    _run(task, algorithm["name"], algorithm["hyperparameters"], options)


def _read_config(folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise UsageError(f"'{folder}' is not the folder of a run, a comparison or a search")
    if "rounds" in changes:
        check_int("rounds", changes["rounds"], least_total(folder, changes.get("resume_round")))
    return read_config(folder)
