"""`fedoptax run`: one algorithm on one task."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedoptax.cli.options import Run
from fedoptax.cli.printing import print_summary, warn_of_rise
from fedoptax.cli.setup import set_up
from fedoptax.distributed import is_distributed, is_leader, run_on_all_or_fail
from fedoptax.errors import RunError, Stopped
from fedoptax.experiments.baselines import find_simulation
from fedoptax.experiments.build import build, wrap
from fedoptax.experiments.result import DivergedError, Interrupted
from fedoptax.experiments.run import raise_unless_completed, split_options
from fedoptax.tasks.task import Task


def run(options: Run) -> None:
    """Run an algorithm and print how it ended."""
    name = options.algorithm
    task, settings, run = set_up(options, [name], name)
    run_algorithm(task, name, settings.hyperparameters[name], run | {"rates": settings.rates[name]}, options.json)


def run_algorithm(task: Task, name: str, values: Mapping[str, Any], options: Mapping[str, Any], as_json: bool) -> None:
    """Run an algorithm with these hyper-parameters and options of `fedoptax.run`, and print how it ended."""
    with errors_name(options["out"]):
        algorithm = run_on_all_or_fail(lambda: build(name, values))
        algorithm = run_on_all_or_fail(lambda: wrap(algorithm, **options.get("wrappers", {})))
        described = {"label": name, "hyperparameters": values, **options}
        result = find_simulation(name)(task, algorithm, *split_options(described))
        raise_unless_completed(result)
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
