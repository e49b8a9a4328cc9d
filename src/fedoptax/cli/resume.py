"""`fedoptax resume`: what was interrupted."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedoptax import cli
from fedoptax.cli.options import Local, Resume
from fedoptax.cli.report import report_comparison, report_search
from fedoptax.cli.run import errors_name, run_algorithm
from fedoptax.distributed import broadcast, is_distributed, is_leader, run_on_all_or_fail
from fedoptax.engine.options import RunOptions, options_of
from fedoptax.engine.xla import use_cache, use_cores
from fedoptax.errors import RunError, UsageError, check_int
from fedoptax.experiments.comparison import Comparison, run_comparison
from fedoptax.experiments.tuning import Tuning, run_search
from fedoptax.storage.checkpoint import least_total
from fedoptax.storage.config import read_config
from fedoptax.tasks import TASKS, load_task, recipe_of
from fedoptax.tasks.task import Task

RESUMED = {*options_of(RunOptions), "wrappers", "trackers", "rates"} - {"mesh"}
"""The options that a run takes from its config.json; by default it uses as many of the devices here as it had."""


def resume(options: Resume) -> None:
    """Continue the run, comparison or search in a folder."""
    use_cores()
    use_cache()
    folder, data_dir = options.folder, options.data_dir
    changes = {"checkpoint_every": options.checkpoint_every, "resume_round": options.resume_round, **options.run}
    changes = {name: value for name, value in changes.items() if value is not None}
    is_comparison, is_search = (folder / "compare.json").is_file(), (folder / "tune.json").is_file()
    if changes.keys() & {"resume_round", "rounds"} and (is_comparison or is_search):
        raise UsageError("resume_round and `rounds` are for a single run only")
    with errors_name(folder):
        if is_comparison:
            comparison = Comparison.read(folder)
            comparison = replace(comparison, options=comparison.options | changes)
            report_comparison(run_comparison(reload_task(comparison.task, data_dir), comparison, folder))
        elif is_search:
            tuning = Tuning.read(folder)
            tuning = replace(tuning, options=tuning.options | changes)
            run_search(reload_task(tuning.task, data_dir), tuning, folder)
            report_search(folder)
        elif not is_distributed() and "deployment" in _read_config(folder, changes):
            _resume_deployment(options, changes)
        else:
            _resume_run(folder, data_dir, changes)


def _resume_deployment(options: Resume, changes: Mapping[str, Any]) -> None:
    """Continue a deployment that runs on this machine."""
    folder = options.folder
    if not folder.with_name(f"{folder.name}-network").is_dir():
        raise UsageError(
            f"'{folder}' is of a deployment on other machines: continue with flwr run and resume=true, or here with "
            f"fedoptax deploy local --resume {folder} --app FOLDER"
        )
    for name in changes.keys() - {"resume_round", "rounds"}:
        raise UsageError(f"{name} cannot be given for a deployment")
    rounds = {name: value for name, value in changes.items() if name == "rounds"}
    again = Local(resume=folder, resume_round=options.resume_round, run=rounds, data_dir=options.data_dir)
    cli.deploy.local(again)


def _resume_run(folder: Path, data_dir: Path | None, changes: Mapping[str, Any]) -> None:
    """Continue a run; of several processes only the first needs the folder, and sends its config to the others."""
    config: Any = broadcast(run_on_all_or_fail(lambda: _read_config(folder, changes) if is_leader() else None))
    stored = {name: value for name, value in config.items() if name in RESUMED}
    task = run_on_all_or_fail(lambda: reload_task(config["task"], data_dir))
    algorithm = config["algorithm"]
    options = {**stored, **changes, "resume_from": folder, "out": folder}
    run_algorithm(task, algorithm["name"], algorithm["hyperparameters"], options, as_json=False)


def _read_config(folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise UsageError(f"'{folder}' is not the folder of a run, a comparison or a search")
    if "rounds" in changes:
        check_int("rounds", changes["rounds"], least_total(folder, changes.get("resume_round")))
    return read_config(folder)


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
