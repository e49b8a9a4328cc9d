"""`fedoptax run`: one algorithm on one task."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedoptax.cli.options import ProcessOptions, Run
from fedoptax.cli.printing import print_summary, warn_of_rise
from fedoptax.cli.setup import choose, set_up
from fedoptax.distributed import is_distributed, is_leader, join, run_on_all_or_fail
from fedoptax.errors import RunError, Stopped, UsageError
from fedoptax.experiments.baselines import find_simulation
from fedoptax.experiments.build import build, wrap
from fedoptax.experiments.result import DivergedError, Interrupted
from fedoptax.experiments.run import raise_unless_completed, split_options
from fedoptax.tasks.task import Task


def run(options: Run) -> None:
    """Run an algorithm and print how it ended."""
    join_processes(options)
    name = options.algorithm
    settings = choose(options, [name])
    task, run = set_up(options, settings, name)
    run_algorithm(task, name, settings.hyperparameters[name], run | {"rates": settings.rates[name]}, options.json)


def join_processes(options: ProcessOptions) -> None:
    """Connect this process to the others of a distributed run, if it is one of several."""
    place = options.coordinator, options.processes, options.process
    if options.distributed:
        join(*place)
    elif any(value is not None for value in place):
        raise UsageError("coordinator, --processes and --process need --distributed")


def run_algorithm(task: Task, name: str, values: Mapping[str, Any], options: Mapping[str, Any], as_json: bool) -> None:
    """Run an algorithm with these hyper-parameters and options of `fedoptax.run`, and print how it ended."""
    algorithm = run_on_all_or_fail(lambda: wrap(build(name, values), **options.get("wrappers", {})))
    with errors_name(options["out"]):
        described = {"label": name, "hyperparameters": values, **options}
        result = raise_unless_completed(find_simulation(name)(task, algorithm, *split_options(described)))
    if is_leader():
        print_summary(options["out"], as_json)
        warn_of_rise(task, {name: result.history.last("train_loss")}, options)


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
