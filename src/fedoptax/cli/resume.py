"""`fedoptax resume`: what was interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedoptax._progress import bar
from fedoptax.algorithm import FedAlgorithm
from fedoptax.cli.compare import report_comparison
from fedoptax.cli.options import Resume
from fedoptax.cli.run import finish, join_processes, print_result, resume_command
from fedoptax.cli.setup import reload_task
from fedoptax.cli.tune import report_search
from fedoptax.distributed import broadcast, is_leader, run_on_all_or_fail
from fedoptax.engine.xla import use_cache, use_cores
from fedoptax.errors import Stopped, UsageError
from fedoptax.experiments import run as experiment
from fedoptax.experiments.build import build, wrap
from fedoptax.experiments.comparison import Comparison, run_comparison
from fedoptax.experiments.result import RunResult
from fedoptax.experiments.tuning import Tuning, run_search
from fedoptax.storage.checkpoint import rounds_of
from fedoptax.storage.config import read_config
from fedoptax.tasks.task import Task

RESUMED = (
    "rounds", "cohort_size", "batch_size", "local_epochs", "local_steps", "weighting", "seed", "eval_every",
    "client_loop", "client_states", "faults", "aggregate", "wrappers", "trackers",
)  # fmt: skip
"""The options of a run that its config.json keeps."""


def resume(given: Resume) -> None:
    """Continue the run, comparison or search in a folder."""
    join_processes(given)
    use_cores()
    use_cache()
    folder = given.folder
    changes = {name: getattr(given, name) for name in ("mesh", "checkpoint_every") if getattr(given, name) is not None}
    has_more_runs = (folder / "compare.json").is_file() or (folder / "tune.json").is_file()
    if has_more_runs and given.rounds is not None:
        raise UsageError("--rounds is for a single run only")
    if (folder / "compare.json").is_file():
        comparison = Comparison.read(folder)
        comparison = replace(comparison, options=comparison.options | changes)
        task = reload_task(comparison.task, given.data_dir)
        compared = run_comparison(task, comparison, folder)
        _raise_if_stopped(compared.stopped, folder)
        report_comparison(compared)
    elif (folder / "tune.json").is_file():
        tuning = Tuning.read(folder)
        tuning = replace(tuning, options=tuning.options | changes)
        task = reload_task(tuning.task, given.data_dir)
        with bar(f"{tuning.algorithm}: {tuning.size} points", tuning.size * int(tuning.options["rounds"])) as update:
            tuned = run_search(task, tuning, folder, update)
        _raise_if_stopped(tuned.stopped, folder)
        report_search(folder)
    else:
        _resume_run(folder, given, changes)


def _raise_if_stopped(stopped: RunResult | None, folder: Path) -> None:
    if stopped is not None:
        raise Stopped(f"{stopped.message}; continue with: {resume_command(folder)}", stopped.signal)


def _resume_run(folder: Path, given: Resume, changes: dict[str, Any]) -> None:
    """Continue a run; of several processes only the first needs the folder, and sends its config to the others."""
    config: Any = broadcast(run_on_all_or_fail(lambda: _read_config(folder, given.rounds) if is_leader() else None))
    options = {name: config[name] for name in RESUMED if name in config} | changes
    if given.rounds is not None:
        options["rounds"] = given.rounds
    name, hyperparameters = config["algorithm"]["name"], config["algorithm"].get("hyperparameters") or {}

    def set_up() -> tuple[Task, FedAlgorithm]:
        algorithm = wrap(build(name, hyperparameters), **options.get("wrappers") or {})
        return reload_task(config["task"], given.data_dir), algorithm

    task, algorithm = run_on_all_or_fail(set_up)
    result = finish(
        lambda: experiment.run(
            task, algorithm, label=name, hyperparameters=hyperparameters, resume_from=folder, **options
        ),
        folder,
    )
    if is_leader():
        print_result(result, folder, as_json=False)


def _read_config(folder: Path, rounds: int | None) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise UsageError(f"'{folder}' is not the folder of a run, a comparison or a search")
    config = read_config(folder)
    if "deployment" in config:
        raise UsageError(f"'{folder}' is of a deployment: continue with fedoptax deploy local --resume {folder}")
    done = max([0, *rounds_of(folder)])
    if rounds is not None and rounds < done:
        raise UsageError(f"--rounds must be at least {done}, the rounds done, got {rounds}")
    return config
