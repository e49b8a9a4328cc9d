"""From the options of a command to a task, algorithms and the options of runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fedoptax._progress import status
from fedoptax.algorithms import ALGORITHMS
from fedoptax.cli.options import (
    Compare,
    ExperimentOptions,
    LearningOptions,
    RoundOptions,
    TaskOptions,
    Tune,
    split_pairs,
)
from fedoptax.distributed import is_leader
from fedoptax.errors import RunError, UsageError, check_choice
from fedoptax.experiments.build import find_constructor, parse_settings, parse_value, preset
from fedoptax.experiments.grids import Grid, default_grid, parse_grids
from fedoptax.experiments.presets import find_setting
from fedoptax.experiments.run import split_options
from fedoptax.storage import folder as storage
from fedoptax.tasks import load_task, recipe_of
from fedoptax.tasks.recipe import PARTITION_OPTIONS, TASK_OPTIONS
from fedoptax.tasks.task import Task


@dataclass(frozen=True)
class Setup:
    """What the options of a command ask for.

    Attributes:
      task: the task, loaded.
      hyperparameters: by name of the algorithm.
      options: of `fedoptax.run`, the same for all runs of the command.
      out: the folder for results.
    """

    task: Task
    hyperparameters: dict[str, dict[str, Any]]
    options: dict[str, Any]
    out: Path


def set_up(given: ExperimentOptions, names: list[str], out: Path) -> Setup:
    """Load the task that the options of a command name, and collect the options of its runs.

    Args:
      given: the options.
      names: of the algorithms.
      out: the folder for results; it must be new, or may be replaced.
    """
    recipe_of(given.task)
    faults = {name: parse_value(text) for name, text in split_pairs("--fault", given.fault).items()}
    wrappers = {name: text for name in ("privacy", "compress") if (text := getattr(given, name)) is not None}
    same = ("aggregate", "client_loop", "mesh", "client_states", "examples", "engine", "checkpoint_every")
    options = {name: getattr(given, name) for name in same}
    options |= {"faults": faults or None, "trackers": given.track, "wrappers": wrappers}
    hyperparameters = choose_hyperparameters(given, names)
    task_arguments, of_rounds = paper_options(given)
    split_options(of_rounds | options | {"out": out})
    if is_leader():
        storage.prepare(out, given.overwrite, remove=False)
    task = load(given, task_arguments)
    return Setup(task, hyperparameters, with_task_defaults(given.task, task, of_rounds) | options, out)


def paper_options(given: LearningOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the task and of rounds that were given, and where none was, those of `--preset paper`."""
    task, rounds = given.task_arguments(), round_arguments(given)
    setting = find_setting(given.task, given.preset)
    if setting is None:
        return task, rounds
    if is_leader():
        print(f"preset: {setting.source}; {setting.convention}", file=sys.stderr)
    of_paper = dict(setting.task)
    if task.get("partition") not in (None, of_paper.get("partition")):
        own = {"partition", *PARTITION_OPTIONS.get(of_paper.get("partition", ""), ())} - {"num_clients"}
        of_paper = {name: value for name, value in of_paper.items() if name not in own}
    has_local_work = any(name.startswith("local_") for name in rounds)
    of_rounds = {name: v for name, v in setting.run.items() if not (has_local_work and name.startswith("local_"))}
    return of_paper | task, of_rounds | rounds


def round_arguments(given: RoundOptions) -> dict[str, Any]:
    """The options of rounds that have a default of the task or the algorithm, and were given."""
    names = ("rounds", "cohort_size", "batch_size", "local_epochs", "local_steps", "weighting", "eval_every")
    chosen = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    if "local_epochs" in chosen and "local_steps" in chosen:
        raise UsageError("--local-epochs cannot be given with --local-steps")
    return chosen


def with_task_defaults(name: str, task: Task, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of rounds, with the defaults of the task of this name; the default cohort is at most all clients."""
    defaults = dict(recipe_of(name).defaults)
    if "local_epochs" in given:
        defaults.pop("local_steps", None)
    defaults["cohort_size"] = min(defaults["cohort_size"], task.clients.num_clients)
    return {"local_epochs": 1, **defaults, **given}


def choose_hyperparameters(given: LearningOptions, names: list[str]) -> dict[str, dict[str, Any]]:
    """Hyper-parameters by algorithm: those given by `--set`, else of the paper, else of the task's preset."""
    chosen = parse_settings(given.set_, names)
    setting = find_setting(given.task, given.preset)
    of_paper = {} if setting is None else setting.hyperparameters
    tuned = {name: {} if given.preset == "none" else preset(given.task, name) for name in names}
    return {name: dict(of_paper.get(name, tuned[name])) | chosen[name] for name in names}


def choose_grids(given: Compare | Tune, names: list[str], budget: int) -> dict[str, Grid]:
    """The values to search per algorithm: those of `--grid`, else `budget` points of its learning rates."""
    chosen = parse_settings(given.set_, names)
    grids = parse_grids(given.grid, names)
    for name in names:
        if twice := sorted(grids[name].keys() & chosen[name].keys()):
            raise UsageError(f"{twice[0]} is given by --set and by --grid")
    return {name: grids[name] or default_grid(find_constructor(name), chosen[name], budget) for name in names}


def algorithm_names(text: str) -> list[str]:
    """The algorithms of a list with commas; `all` means every one."""
    names = list(ALGORITHMS) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise UsageError(f"--algorithms must be different names separated by commas, or all, got {text!r}")
    for name in names:
        find_constructor(name)
    return names


def load(given: TaskOptions, arguments: Mapping[str, Any] | None = None) -> Task:
    """The task that the options name, with `arguments` of `load_task`; None takes those of the options."""
    arguments = given.task_arguments() if arguments is None else arguments
    for name in arguments:
        check_choice("--task-set", name, TASK_OPTIONS)
    with status(f"loading {given.task}"):
        return load_task(given.task, seed=given.partition_seed, data_dir=given.data_dir, **arguments)


def reload_task(spec: Mapping[str, Any], data_dir: Path | None) -> Task:
    """The task that a run folder names."""
    name = str(spec.get("name"))
    try:
        allowed = recipe_of(name).option_types()
    except UsageError:
        raise UsageError(f"task '{name}' was made in Python: continue with fedoptax.run(resume_from=...)") from None
    arguments = {key: value for key, value in spec.items() if key in allowed}
    task = load_task(name, seed=spec.get("partition_seed", 0), data_dir=data_dir, **arguments)
    if spec.get("contents") not in (None, task.spec.get("contents")):
        raise RunError(f"'{name}' has changed since the run was begun")
    return task


def result_folder(out: Path | None, task: str, what: str) -> Path:
    """The folder that was asked for, or a new one under runs/."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return out or Path("runs") / f"{Path(task).stem}-{what.replace(':', '.')}-{stamp}"


def print_table(rows: list[list[str]], left: bool = False) -> None:
    """Print rows in aligned columns; the first row is the head, and only the first column is on the left, or all."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:{'<' if left or i == 0 else '>'}{width}}" for i, (cell, width) in enumerate(zip(row, widths)))
        print("  ".join(cells).rstrip())
