"""From the options of a command to a task, algorithms and the options of runs."""

import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

from fedoptax._progress import status
from fedoptax.algorithms import ALGORITHMS
from fedoptax.cli.options import Compare, ExperimentOptions, LearningOptions, TaskOptions, Tune
from fedoptax.distributed import broadcast, is_leader, run_on_all_or_fail
from fedoptax.engine.faults import Faults
from fedoptax.engine.plan import RunOptions
from fedoptax.engine.xla import use_cache, use_cores
from fedoptax.errors import UsageError
from fedoptax.experiments.build import (
    describe_rates,
    find_constructor,
    name_preset,
    parse_pairs,
    parse_settings,
    preset,
)
from fedoptax.experiments.grids import Grid, default_grid, parse_grids
from fedoptax.experiments.presets import PAPERS, find_setting
from fedoptax.experiments.run import split_options
from fedoptax.storage.folder import prepare
from fedoptax.tasks import load_task, recipe_of
from fedoptax.tasks.recipe import PARTITION_OPTIONS, TASK_OPTIONS
from fedoptax.tasks.task import Task

Setup = tuple[Task, dict[str, dict[str, Any]], dict[str, Any]]
"""A task, hyper-parameters by algorithm, and options of `fedoptax.run` that all algorithms share."""


def set_up(given: ExperimentOptions, names: list[str], what: str) -> Setup:
    """Make JAX ready, load the task that the options of a command name, and collect the options of its runs."""
    use_cores()
    use_cache()
    out = Path(broadcast(str(given.out or new_folder(given.task, what))))
    return run_on_all_or_fail(lambda: _set_up(given, names, out))


def _set_up(given: ExperimentOptions, names: list[str], out: Path) -> Setup:
    hyperparameters = choose_hyperparameters(given, names)
    task_arguments, options = choose_options(given)
    options |= {
        "faults": parse_pairs("--fault", given.fault, [of.name for of in fields(Faults)]) or None,
        "wrappers": {name: text for name in ("privacy", "compress") if (text := getattr(given, name)) is not None},
        "trackers": given.track,
        "checkpoint_every": given.checkpoint_every,
        "out": out,
        "overwrite": given.overwrite,
    }
    split_options(options)  # checks them before the task is loaded
    if is_leader():
        prepare(out, given.overwrite, remove=False)
    task = load(given, task_arguments)
    if is_leader() and task.notes:
        print(*task.notes, sep="\n", file=sys.stderr)
    return task, hyperparameters, with_task_defaults(given.task, task, options)


def choose_options(given: LearningOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of `load_task` and of `fedoptax.run` that were given, else those of `--preset paper`."""
    of_task, of_run = task_arguments(given), run_arguments(given)
    setting = find_setting(given.task, given.preset)
    if setting is None:
        return of_task, of_run
    if is_leader():
        others = [f"paper:{name}" for name in PAPERS[given.task] if name != setting.name]
        more = f"; there is also {', '.join(others)}" if others else ""
        print(f"preset: paper:{setting.name}, {setting.source}; {setting.convention}{more}", file=sys.stderr)
    paper_task, paper_run = dict(setting.task), dict(setting.run)
    if of_task.get("partition") not in (None, paper_task.get("partition")):
        for name in {"partition", *PARTITION_OPTIONS.get(paper_task.get("partition", ""), ())}:
            paper_task.pop(name, None)
    if "local_epochs" in of_run or "local_steps" in of_run:
        for name in ("local_epochs", "local_steps"):
            paper_run.pop(name, None)
    return paper_task | of_task, paper_run | of_run


def task_arguments(given: TaskOptions) -> dict[str, Any]:
    """Return the options of `load_task` that were given, but for its `seed` and `data_dir`."""
    chosen = {name: value for name in TASK_OPTIONS if (value := getattr(given, name, None)) is not None}
    others = parse_pairs("--task-set", given.task_set, TASK_OPTIONS)
    if twice := sorted(chosen.keys() & others):
        raise UsageError(f"--task-set: {twice[0]} is given twice")
    return chosen | others


def run_arguments(given: TaskOptions) -> dict[str, Any]:
    """Return the options of rounds that were given or have a default of their own."""
    names = [of.name for of in fields(RunOptions)]
    chosen = {name: value for name in names if (value := getattr(given, name, None)) is not None}
    if "local_epochs" in chosen and "local_steps" in chosen:
        raise UsageError("--local-epochs cannot be given with --local-steps")
    return chosen


def with_task_defaults(name: str, task: Task, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of runs with the defaults of the task of this name; its cohort is at most all clients."""
    defaults = dict(recipe_of(name).defaults)
    if "local_epochs" in given:
        defaults.pop("local_steps", None)
    defaults["cohort_size"] = min(defaults["cohort_size"], task.clients.num_clients)
    return {**defaults, **given}


def choose_hyperparameters(given: LearningOptions, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return hyper-parameters by algorithm: those of `--set`, else of the paper, else of the task's preset."""
    chosen = parse_settings(given.set_, names)
    setting = find_setting(given.task, given.preset)
    of_paper = {} if setting is None else setting.hyperparameters
    tuned = {name: {} if given.preset == "none" else preset(given.task, name, given.model) for name in names}
    return {name: {**of_paper.get(name, tuned[name]), **chosen[name]} for name in names}


def choose_rate_origins(given: LearningOptions, values: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Say by algorithm where the learning rates that `choose_hyperparameters` chose come from."""
    chosen = parse_settings(given.set_, values)
    setting = find_setting(given.task, given.preset)
    papers = {} if setting is None else dict.fromkeys(setting.hyperparameters, f"paper:{setting.name}")
    origins = {name: papers.get(name) or name_preset(given.task, name, given.model) for name in values}
    return {name: describe_rates(name, own, chosen[name], origins[name]) for name, own in values.items()}


def choose_grids(given: Compare | Tune, names: list[str], budget: int) -> dict[str, Grid]:
    """Return the values to search by algorithm: those of `--grid`, else `budget` points of its learning rates."""
    chosen = parse_settings(given.set_, names)
    grids = parse_grids(given.grid, names)
    for name in names:
        if twice := sorted(grids[name].keys() & chosen[name].keys()):
            raise UsageError(f"{twice[0]} is given by --set and by --grid")
    return {name: grids[name] or default_grid(find_constructor(name), chosen[name], budget) for name in names}


def algorithm_names(text: str) -> list[str]:
    """Return the algorithms of a list with commas or blanks; `all` means every one."""
    names = list(ALGORITHMS) if text == "all" else [name for name in re.split(r"[,\s]+", text) if name]
    if not names or len(set(names)) != len(names):
        raise UsageError(f"--algorithms must be different names separated by commas, or all, got {text!r}")
    return names


def load(given: TaskOptions, arguments: Mapping[str, Any]) -> Task:
    """Load the task that the options name, with `arguments` of `load_task`."""
    with status(f"loading {given.task}"):
        return load_task(given.task, seed=given.partition_seed, data_dir=given.data_dir, **arguments)


def new_folder(task: str, what: str) -> Path:
    """Return a folder under runs/ that is not there."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return Path("runs") / f"{Path(task.removeprefix('file:')).stem}-{what}-{stamp}".replace(":", ".")
