"""`fedoptax run`; `fedoptax resume` for runs, comparisons, searches and deployments."""

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedoptax.cli.options import ResumeForm, RunForm
from fedoptax.cli.printing import print_summary, warn_if_loss_increased
from fedoptax.cli.setup import command_line, note_rates, reload_task, set_up
from fedoptax.distributed import broadcast, is_distributed, is_leader, run_on_all_or_fail
from fedoptax.engine.options import RunOptions, options_of
from fedoptax.engine.xla import use_cache, use_cores
from fedoptax.errors import RunError, Stopped, UsageError, check_int
from fedoptax.experiments import comparison, tuning
from fedoptax.experiments.build import build, wrap
from fedoptax.experiments.record import split_options
from fedoptax.experiments.result import DivergedError, Interrupted, raise_unless_completed
from fedoptax.experiments.run import simulate
from fedoptax.experiments.workers import open_executor
from fedoptax.names import BASELINES
from fedoptax.storage.checkpoint import least_total
from fedoptax.storage.config import read_config
from fedoptax.storage.folder import ENDED, MARKS, Status, is_finished, read_summary
from fedoptax.tasks.task import Task

RESUMED = {*options_of(RunOptions), "wrappers", "trackers", "rates", "command"} - {"mesh"}
"""The options that a run takes from its config.json; by default it uses as many of the devices here as it had."""


def run(options: RunForm) -> None:
    """Run an algorithm and print how it ended."""
    name = options.algorithm
    task, settings, run = set_up(options, [name], name)
    note_rates(options.task, settings.rates)
    run |= {"rates": settings.rates[name], "command": command_line()}
    _run(task, name, settings.hyperparameters[name], run, options.json)


def _run(task: Task, name: str, values: Mapping[str, Any], options: Mapping[str, Any], as_json: bool = False) -> None:
    """Run an algorithm with these hyper-parameters and options of `fedoptax.run`, and print how it ended."""
    if name in BASELINES and options.get("wrappers"):
        raise UsageError(f"{', '.join(options['wrappers'])} cannot be used with {name}, which sends nothing")
    with errors_name(options["out"]):
        wrappers = {**options.get("wrappers", {}), "seed": options.get("seed", 0)}
        algorithm = run_on_all_or_fail(lambda: wrap(build(name, values), **wrappers))
        described = {"label": name, "hyperparameters": values, **options}
        result = raise_unless_completed(simulate(task, algorithm, *split_options(described), name))
    if is_leader():
        print_summary(options["out"], as_json)
        warn_if_loss_increased(task, {name: result.history.last("train_loss")}, options)


@contextmanager
def errors_name(folder: Path) -> Iterator[None]:
    """Within it, the errors of a run or of several say which folder they are in, and how to continue."""
    remedy = f"continue with: fedoptax resume {shlex.quote(str(folder))}{' --distributed' if is_distributed() else ''}"
    try:
        yield
    except Interrupted as stop:
        raise Stopped(f"{stop}; {remedy}", stop.result.signal) from None
    except KeyboardInterrupt:  # between two runs
        if any((folder / mark).is_file() for mark in MARKS):
            print(remedy, file=sys.stderr)
        raise
    except DivergedError as error:
        raise RunError(f"{error} (in {folder})") from error


def resume(options: ResumeForm) -> None:
    """Continue the run, comparison or search in a folder."""
    from fedoptax.cli.report import report_comparison, report_search

    use_cores()
    use_cache()
    folder, data_dir = options.folder, options.data_dir
    changes = {"checkpoint_every": options.checkpoint_every, "resume_round": options.resume_round, **options.run}
    changes = {name: value for name, value in changes.items() if value is not None}
    is_comparison, is_search = (folder / comparison.FILE).is_file(), (folder / tuning.FILE).is_file()
    if (is_comparison or is_search) and (single := changes.keys() - tuning.MAY_CHANGE):
        raise UsageError(f"`{min(single)}` is for a single run only")
    if options.workers and not (is_comparison or is_search):
        raise UsageError("workers is for a comparison or a search only")
    with errors_name(folder), open_executor(options.workers, folder) as executor:
        how = tuning.Execution(executor=executor)
        if is_comparison:
            compared = comparison.Comparison.read(folder)
            compared = replace(compared, options=compared.options | changes)
            report_comparison(comparison.run_comparison(reload_task(compared.task, data_dir), compared, folder, how))
        elif is_search:
            search = tuning.Search.read(folder)
            search = replace(search, options=search.options | changes)
            (found,) = tuning.run_searches(reload_task(search.task, data_dir), {folder: search}, folder, how)
            report_search(found)
        elif not is_distributed() and "deployment" in _read_config(folder, changes):
            from fedoptax.cli.deploy import resume_deployment  # needs Flower

            resume_deployment(options, changes)
        else:
            _resume_run(folder, data_dir, changes)


def _resume_run(folder: Path, data_dir: Path | None, changes: Mapping[str, Any]) -> None:
    """Continue a run; of several processes only the first needs the folder, and sends its config to the others."""
    config: Any = broadcast(run_on_all_or_fail(lambda: _read_config(folder, changes) if is_leader() else None))
    status = read_summary(folder)["status"] if is_finished(folder) else None
    if not changes and not is_distributed() and status in ENDED:
        ended = "is finished, nothing to do; --rounds N continues it"
        print(f"'{folder}' {ended if status == Status.COMPLETED else status}", file=sys.stderr)
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
