"""`fedoptax run`: one algorithm on one task."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedoptax.cli.options import ProcessOptions, Run
from fedoptax.cli.setup import result_folder, set_up
from fedoptax.distributed import broadcast, is_distributed, is_leader, join, run_on_all_or_fail
from fedoptax.engine.faults import COUNTS
from fedoptax.engine.xla import use_cache, use_cores
from fedoptax.errors import RunError, Stopped, UsageError
from fedoptax.experiments import run as experiment
from fedoptax.experiments.build import build, wrap
from fedoptax.experiments.result import DivergedError, Interrupted, RunResult

Result = TypeVar("Result")


def run(given: Run) -> None:
    """Run an algorithm and print its last metrics."""
    join_processes(given)
    use_cores()
    use_cache()
    name = given.algorithm
    out = Path(broadcast(str(result_folder(given.out, given.task, name))))
    setup = run_on_all_or_fail(lambda: set_up(given, [name], out))
    hyperparameters = setup.hyperparameters[name]
    algorithm = wrap(build(name, hyperparameters), **setup.options["wrappers"])
    about = {"seed": given.seed, "label": name, "hyperparameters": hyperparameters}
    result = finish(
        lambda: experiment.run(setup.task, algorithm, out=out, overwrite=given.overwrite, **about, **setup.options), out
    )
    if is_leader():
        print_result(result, out, given.json)


def join_processes(given: ProcessOptions) -> None:
    """Connect this process to the others of a distributed run, if it is one of several."""
    if given.distributed:
        join(given.coordinator, given.processes, given.process)
    elif given.coordinator is not None or given.processes is not None or given.process is not None:
        raise UsageError("--coordinator, --processes and --process need --distributed")


def finish(work: Callable[[], Result], out: Path) -> Result:
    """The result of `work`, a run or several in the folder `out`."""
    try:
        return work()
    except Interrupted as stop:
        remedy = resume_command(out) + (" --distributed" if is_distributed() else "")
        raise Stopped(f"{stop}; continue with: {remedy}", stop.result.signal) from None
    except DivergedError as error:
        raise RunError(f"{error} (in {out})") from error


def resume_command(out: Path) -> str:
    """The command that continues what is in a folder."""
    return f"fedoptax resume {shlex.quote(str(out))}"


def print_result(result: RunResult, out: Path, as_json: bool) -> None:
    """Print the last values of a run's history."""
    names = sorted(set(result.history[-1]) - {"round", "seconds"}, key=lambda name: (name.startswith("client_"), name))
    final = {name: result.history.last(name) for name in names}
    if as_json:
        print(json.dumps({"out": str(out), "rounds": len(result.history), "final": final}, indent=1))
        return
    hidden = (*COUNTS, "virtual_seconds", "bytes_down", "bytes_up")
    print(", ".join(f"{name} {value:.4g}" for name, value in final.items() if value is not None and name not in hidden))
    print(f"results: {out}")
