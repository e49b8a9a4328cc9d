"""From the options of a command to a task, algorithms and the options of runs."""

import inspect
import logging
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fedoptax._progress import status
from fedoptax.cli.options import ExperimentOptions, LearningOptions, TaskForm
from fedoptax.deploy.config import is_own_function
from fedoptax.distributed import broadcast, is_leader, run_on_all_or_fail
from fedoptax.engine.xla import use_cache, use_cores
from fedoptax.errors import RunError, UsageError
from fedoptax.experiments.build import WRAPPERS, import_function
from fedoptax.experiments.presets import PAPERS, Settings, choose_settings
from fedoptax.experiments.record import split_options
from fedoptax.storage.folder import prepare
from fedoptax.tasks import TASKS, load_task, recipe_of
from fedoptax.tasks.recipe import PARTITION_OPTIONS, PREFIX, TASK_OPTIONS, TEXT_PREFIX
from fedoptax.tasks.task import Task


def set_up(options: ExperimentOptions, names: list[str], what: str) -> tuple[Task, Settings, dict[str, Any]]:
    """Make JAX ready and return the task of a command, its algorithms' settings, and the options of all their runs."""
    use_cores()
    use_cache()
    out = options.out or new_folder(options.task, what)
    return run_on_all_or_fail(lambda: _set_up(options, names, out))


def _set_up(options: ExperimentOptions, names: list[str], out: Path) -> tuple[Task, Settings, dict[str, Any]]:
    if is_leader():
        prepare(out, options.overwrite, remove=False)
    settings, task_arguments, run = choose(options, names)
    run["wrappers"] = {name: text for name in WRAPPERS if (text := getattr(options, name)) is not None}
    run |= {name: getattr(options, name) for name in ("trackers", "checkpoint_every", "overwrite")} | {"out": out}
    split_options(run)  # checks them before the task is loaded
    task = load(options, task_arguments)
    if is_leader():
        about = f"{task.num_clients} clients, {task.clients.sizes.sum():,} training examples"
        loaded = [] if sys.stderr.isatty() else [f"loaded {options.task}: {about}"]
        print(*(f"{line}\n" for line in (*loaded, *task.notes)), sep="", end="", file=sys.stderr, flush=True)
        logging.basicConfig(format="%(message)s")
        logging.getLogger("fedoptax").setLevel(logging.INFO)
    return task, settings, with_task_defaults(options.task, task, run)


def command_line() -> str:
    """Return the command line of this process."""
    return shlex.join(["fedoptax", *sys.argv[1:]])


def note_rates(task: str, rates: Mapping[str, str]) -> None:
    """Say where learning rates come from that are those of another task."""
    for origin in {origin for origin in rates.values() if "preset of" in origin and is_leader()}:
        remedy = f"a starting point; `fedoptax tune --task {task}` finds better ones"
        print(f"learning rates: {origin}, {remedy}", file=sys.stderr)


def choose(options: LearningOptions, names: list[str]) -> tuple[Settings, dict[str, Any], dict[str, Any]]:
    """Return algorithms' settings, and the options of `load_task` and of rounds, typed or of `--preset paper`."""
    settings = choose_settings(options.task, names, options.set_, options.preset, options.model)
    paper, of_task, of_run = settings.paper, task_arguments(options), options.run
    if {"local_epochs", "local_steps"} <= of_run.keys():
        raise UsageError("local_epochs and local_steps cannot be used together")
    if paper is None:
        return settings, of_task, dict(of_run)
    if is_leader():
        others = len(PAPERS[options.task]) - 1
        more = f"; other presets: {others}, see `fedoptax list tasks --json`" if others else ""
        print(f"preset: paper:{paper.name}, {paper.source}; {paper.convention}{more}", file=sys.stderr)
    paper_task, paper_run = dict(paper.task), dict(paper.run)
    if of_task.get("partition") not in (None, paper_task.get("partition")):
        for name in {"partition", *PARTITION_OPTIONS.get(paper_task.get("partition", ""), ())}:
            paper_task.pop(name, None)
    if "local_epochs" in of_run or "local_steps" in of_run:
        for name in ("local_epochs", "local_steps"):
            paper_run.pop(name, None)
    return settings, paper_task | of_task, paper_run | of_run


def task_arguments(options: TaskForm) -> dict[str, Any]:
    """Return the chosen options of `load_task`, except its `seed` and `data_dir`."""
    chosen = {name: value for name in TASK_OPTIONS if (value := getattr(options, name, None)) is not None}
    if twice := sorted((chosen.keys() | {"seed", "data_dir"}) & options.task_set.keys()):
        raise UsageError(f"task_set: {twice[0]} has an option of its own")
    return chosen | options.task_set


def with_task_defaults(name: str, task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of runs with the defaults of the task of this name; its cohort is at most all clients."""
    general = {"rounds": 100, "cohort_size": 10, "batch_size": 20}
    defaults = general if is_own_function(name) else dict(recipe_of(name).defaults)
    if "local_epochs" in options:
        defaults.pop("local_steps", None)
    defaults["cohort_size"] = min(defaults["cohort_size"], task.clients.num_clients)
    return {**defaults, **options}


def load(options: TaskForm, arguments: Mapping[str, Any]) -> Task:
    """Load the task that the options name, with `arguments` of `load_task`."""
    with status(f"loading {options.task}"):
        if not is_own_function(options.task):
            return load_task(options.task, seed=options.partition_seed, data_dir=options.data_dir, **arguments)
        if arguments:
            raise UsageError(f"{next(iter(arguments))} cannot be used with a task that is a function")
        return call_task(options.task)


def call_task(name: str) -> Task:
    """Return the task that MODULE:FUNCTION returns, called with nothing, or with None as a deployment's server does."""
    function = import_function("task", name)
    parameters = inspect.signature(function).parameters.values()
    needed = [one for one in parameters if one.default is one.empty and one.kind == one.POSITIONAL_OR_KEYWORD]
    task = function(*[None] * len(needed))
    if not isinstance(task, Task):
        raise UsageError(f"task '{name}' must return a Task, got {type(task).__name__}")
    return replace(task, spec={**task.spec, "function": name})


def reload_task(spec: Mapping[str, Any], data_dir: Path | None) -> Task:
    """Load the task of a folder of results by its `spec`."""
    name = str(spec["name"])
    if "function" in spec:
        return call_task(spec["function"])
    if name not in TASKS and not name.startswith((PREFIX, TEXT_PREFIX)):
        raise UsageError(f"task '{name}' was made in Python: continue with fedoptax.run(resume_from=...)")
    arguments = {key: spec[key] for key in recipe_of(name).option_types() if key in spec}
    task = load_task(name, seed=spec.get("partition_seed", 0), data_dir=data_dir, **arguments)
    if spec.get("contents") not in (None, task.spec.get("contents")):
        raise RunError(f"'{name}' has changed since the run started, or its base model has")
    return task


def new_folder(task: str, what: str) -> Path:
    """Return a folder under runs/ that does not exist yet, the same in all processes."""
    stamp = broadcast(datetime.now()).strftime("%Y%m%d-%H%M%S-%f")
    return Path("runs") / f"{Path(task.removeprefix('file:')).stem}-{what}-{stamp}".replace(":", ".")
