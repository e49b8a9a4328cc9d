"""From the options of a command to a task, hyper-parameters and the arguments of runs; and what commands print."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fedoptax._progress import status
from fedoptax.algorithm import FedAlgorithm
from fedoptax.algorithms import ALGORITHMS
from fedoptax.distributed import leads
from fedoptax.engine.faults import parse_faults
from fedoptax.errors import RunError, UsageError
from fedoptax.experiments.build import build, find_constructor, find_preset, parse_settings, preset
from fedoptax.experiments.run import check_options
from fedoptax.experiments.wrapping import WRAPPERS, wrap_as
from fedoptax.tasks import load_task, recipe_of
from fedoptax.tasks.division import PARTITION_OPTIONS
from fedoptax.tasks.recipe import OPTIONS as TASK_OPTIONS
from fedoptax.tasks.task import Task
from fedoptax.trackers import as_trackers

RUN_OPTIONS = (
    "rounds",
    "cohort_size",
    "batch_size",
    "local_epochs",
    "local_steps",
    "weighting",
    "eval_every",
    "client_loop",
    "mesh",
    "client_states",
    "examples",
    "engine",
    "faults",
    "aggregate",
    "checkpoint_every",
    "wrappers",
    "trackers",
)


def algorithm_names(text: str) -> list[str]:
    """The algorithms of a list with commas; `all` means every one.

    Raises:
      UsageError: an unknown name, none, or one given twice.
    """
    names = list(ALGORITHMS) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise UsageError(f"--algorithms: '{text}' given, allowed is different names separated by commas, or all")
    for name in names:
        find_constructor(name)
    return names


def print_table(rows: list[list[str]], left: bool = False) -> None:
    """Prints rows in aligned columns; the first row is the head.

    The first column is set to the left, the others to the right, or with `left` all to the left.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:{'<' if left or i == 0 else '>'}{width}}" for i, (cell, width) in enumerate(zip(row, widths)))
        print("  ".join(cells).rstrip())


def again(out: Path, algorithms: list[str]) -> str:
    """The command that continues what is in a folder."""
    return f"fedoptax resume {shlex.quote(str(out))}" + (" --trust" if any(":" in name for name in algorithms) else "")


def check_trust(folder: Path, algorithms: list[str], trust: bool) -> None:
    """A folder may come from others, and MODULE:FUNCTION in it may name any code of this machine."""
    if (named := [name for name in algorithms if ":" in name]) and not trust:
        raise UsageError(f"folder: '{folder}' names the code '{named[0]}' to be run; if it is your own, give --trust")


def with_preset(options: dict[str, Any]) -> dict[str, Any]:
    """The options, and where none was given those of the paper setting that `--preset` names.

    Raises:
      UsageError: no such setting or task, or both measures of local work are given.
    """
    recipe_of(options["task"])
    measured = check_measures(options)
    setting = find_preset(options["task"], options["preset"])
    if setting is None:
        return options
    if leads():
        print(f"preset: {setting.source}; {setting.convention}", file=sys.stderr)
    task = dict(setting.task)
    if options.get("partition") not in (None, task.get("partition")):  # another one: its settings are not the paper's
        of_partition = {"partition", *PARTITION_OPTIONS.get(task.get("partition", ""), ())} - {"num_clients"}
        task = {name: value for name, value in task.items() if name not in of_partition}
    run = {name: value for name, value in setting.run.items() if not (measured and name.startswith("local_"))}
    from_paper = {**task, **run}
    filled = {name: value for name, value in from_paper.items() if options.get(name) is None}
    return options | filled


def check_measures(options: Mapping[str, Any]) -> bool:
    """Whether a measure of local work is given.

    Raises:
      UsageError: both are, epochs and steps.
    """
    measures = [name for name in ("local_epochs", "local_steps") if options.get(name) is not None]
    if len(measures) > 1:
        raise UsageError("--local-epochs: given with --local-steps, allowed is one of them")
    return bool(measures)


def of_texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """What `--fault`, `--privacy`, `--compress` and `--track` say; what they leave out is left out."""
    wrappers = {name: options[name] for name in WRAPPERS if options[name] is not None}
    trackers = list(options["track"] or [])
    as_trackers(trackers)
    return {"faults": parse_faults(options["fault"] or []), "wrappers": wrappers, "trackers": trackers}


def start_of(names: list[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Hyper-parameters by algorithm: those that were typed, else of the paper or the preset."""
    chosen = parse_settings(options["settings"] or [], names)
    setting = find_preset(options["task"], options["preset"])
    paper = {} if setting is None else setting.hyperparameters
    start = {name: {} if options["preset"] == "none" else preset(options["task"], name) for name in names}
    return {name: dict(paper.get(name, start[name])) | chosen[name] for name in names}


def load(options: Mapping[str, Any]) -> Task:
    """The task that the options of a command name."""
    given = {name: options[name] for name in TASK_OPTIONS if options.get(name) is not None}
    with status(f"loading {options['task']}"):
        return load_task(options["task"], seed=options.get("partition_seed", 0), data_dir=options["data_dir"], **given)


def task_of_spec(spec: Mapping[str, Any], data_dir: Path | None) -> Task:
    """The task that a folder's files name.

    Raises:
      UsageError: it is none that can be named.
      RunError: it is a file whose contents have changed.
    """
    try:
        recipe_of(str(spec.get("name")))
    except UsageError:
        raise UsageError(
            f"task: '{spec.get('name')}' is not a named one; continue it with fedoptax.run(resume_from=...)"
        ) from None
    arguments = {key: value for key, value in spec.items() if key in TASK_OPTIONS}
    task = load_task(spec["name"], seed=spec.get("partition_seed", 0), data_dir=data_dir, **arguments)
    if spec.get("contents") not in (None, task.spec.get("contents")):
        raise RunError(f"task: '{spec['name']}' has other contents than when this was begun; begin anew for them")
    return task


def run_options_of(options: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """What was given, else the task's defaults; the default cohort is at most everyone."""
    given = {name: options[name] for name in RUN_OPTIONS if options.get(name) not in (None, {}, [])}
    defaults = dict(recipe_of(options["task"]).defaults)
    if "local_epochs" in given:
        defaults.pop("local_steps", None)  # of a task that counts in steps
    defaults["cohort_size"] = min(defaults["cohort_size"], task.clients.num_clients)
    return {"local_epochs": 1} | defaults | given


def checked_options(options: Mapping[str, Any], task: Task, algorithms: Sequence[FedAlgorithm]) -> dict[str, Any]:
    """The options of all runs, refused before any folder is touched if a run would refuse them."""
    run_options = run_options_of(options, task)
    seed = {"seed": options["seed"]} if "seed" in options else {}
    for algorithm in algorithms:
        check_options(task, algorithm, **_of_run(run_options), **seed)
    return run_options


def check_again(task: Task, name: str, values: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuses what is asked of a comparison or search that goes on, before its folder tells of it.

    Raises:
      UsageError: its runs would refuse the options.
    """
    algorithm = wrap_as(build(name, dict(values)), options.get("wrappers") or {})
    check_options(task, algorithm, **_of_run(options))


def _of_run(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "wrappers"}


def result_folder(out: Path | None, task: str, what: str) -> Path:
    """The folder that was asked for, or a new one under runs/, of another name than that of a command just before."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return out or Path("runs") / f"{Path(task).stem}-{what.replace(':', '.')}-{stamp}"
