"""`fedoptax resume`: what was interrupted."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedoptax.cli.options import Resume
from fedoptax.cli.report import report_comparison, report_search
from fedoptax.cli.run import errors_name, join_processes, run_algorithm
from fedoptax.distributed import broadcast, is_leader, run_on_all_or_fail
from fedoptax.engine.plan import RunOptions
from fedoptax.engine.xla import use_cache, use_cores
from fedoptax.errors import RunError, UsageError, check_int
from fedoptax.experiments.comparison import Comparison, run_comparison
from fedoptax.experiments.tuning import Tuning, run_search
from fedoptax.storage.checkpoint import rounds_of
from fedoptax.storage.config import read_config
from fedoptax.tasks import TASKS, load_task, recipe_of
from fedoptax.tasks.task import Task

RESUMED = {of.name for of in fields(RunOptions)} - {"mesh"} | {"wrappers", "trackers", "rates"}
"""The options that a run takes from its config.json; by default it uses as many of the devices here as it had."""


def resume(given: Resume) -> None:
    """Continue the run, comparison or search in a folder."""
    join_processes(given)
    use_cores()
    use_cache()
    folder, names = given.folder, ("rounds", "mesh", "checkpoint_every")
    changes = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    is_comparison, is_search = (folder / "compare.json").is_file(), (folder / "tune.json").is_file()
    if "rounds" in changes and (is_comparison or is_search):
        raise UsageError("--rounds is for a single run only")
    with errors_name(folder):
        if is_comparison:
            comparison = Comparison.read(folder)
            comparison = replace(comparison, options=comparison.options | changes)
            report_comparison(run_comparison(reload_task(comparison.task, given.data_dir), comparison, folder))
        elif is_search:
            tuning = Tuning.read(folder)
            tuning = replace(tuning, options=tuning.options | changes)
            run_search(reload_task(tuning.task, given.data_dir), tuning, folder)
            report_search(folder)
        else:
            _resume_run(folder, given.data_dir, changes)


def _resume_run(folder: Path, data_dir: Path | None, changes: Mapping[str, Any]) -> None:
    """Continue a run; of several processes only the first needs the folder, and sends its config to the others."""
    config: Any = broadcast(run_on_all_or_fail(lambda: _read_config(folder, changes) if is_leader() else None))
    kept = {name: value for name, value in config.items() if name in RESUMED}
    task = run_on_all_or_fail(lambda: reload_task(config["task"], data_dir))
    algorithm = config["algorithm"]
    options = {**kept, **changes, "resume_from": folder, "out": folder}
    run_algorithm(task, algorithm["name"], algorithm["hyperparameters"], options, as_json=False)


def _read_config(folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise UsageError(f"'{folder}' is not the folder of a run, a comparison or a search")
    config = read_config(folder)
    if "deployment" in config:
        raise UsageError(f"'{folder}' is of a deployment: continue with fedoptax deploy local --resume {folder}")
    if "rounds" in changes:
        check_int("--rounds", changes["rounds"], max(rounds_of(folder), default=1))
    return config


def reload_task(spec: Mapping[str, Any], data_dir: Path | None) -> Task:
    """Load the task that a folder of results names, by its `spec` there."""
    name = str(spec["name"])
    if name not in TASKS and not name.startswith("file:"):
        raise UsageError(f"task '{name}' was made in Python: continue with fedoptax.run(resume_from=...)")
    allowed = recipe_of(name).option_types()
    arguments = {key: value for key, value in spec.items() if key in allowed}
    task = load_task(name, seed=spec.get("partition_seed", 0), data_dir=data_dir, **arguments)
    if spec.get("contents") not in (None, task.spec.get("contents")):
        raise RunError(f"'{name}' has changed since the run was begun")
    return task
