"""What the commands of the command line do."""

from __future__ import annotations

import json as json_
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from fedoptax import storage
from fedoptax.algorithms import ALGORITHMS
from fedoptax.checkpoint import rounds_of
from fedoptax.comparison import Comparison
from fedoptax.comparison import compare as run_comparison
from fedoptax.engine.aggregation import as_aggregator
from fedoptax.engine.faults import COUNTS, parse_faults
from fedoptax.engine.local import LocalWork
from fedoptax.engine.plan import Plan, checked_plan
from fedoptax.engine.states import PLACES
from fedoptax.errors import RunError, Stopped, UsageError
from fedoptax.experiment import DivergedError, Interrupted, RunResult, check_numbers
from fedoptax.experiment import run as run_experiment
from fedoptax.naming import build, find_constructor, find_preset, parse_settings, preset
from fedoptax.progress import status
from fedoptax.report import write_report
from fedoptax.stored import check_config
from fedoptax.task import Task
from fedoptax.tasks import load_task, recipe_of
from fedoptax.tasks.division import PARTITION_OPTIONS
from fedoptax.tasks.recipe import OPTIONS as TASK_OPTIONS
from fedoptax.wrapping import WRAPPERS, wrap_as

RUN_OPTIONS = (
    "rounds",
    "cohort_size",
    "batch_size",
    "local_epochs",
    "local_steps",
    "weighting",
    "eval_every",
    "client_states",
    "examples",
    "engine",
    "faults",
    "aggregate",
    "checkpoint_every",
    "wrappers",
)


def run(**options: Any) -> None:
    """`fedoptax run`."""
    name = options["algorithm"]
    options = _with_preset(options) | _of_texts(options)
    hyperparameters = _hyperparameters([name], options)[name]
    algorithm = wrap_as(build(name, hyperparameters), options["wrappers"])
    out = storage.prepare(_folder(options["out"], options["task"], name), options["overwrite"])
    task = load(options)
    run_options = _run_options(options, task)
    result = _finish(
        lambda: run_experiment(
            task,
            algorithm,
            seed=options["seed"],
            label=name,
            hyperparameters=hyperparameters,
            out=out,
            **run_options,
        ),
        out,
        name,
    )
    _tell(task, result, out, options["json"])


def compare(**options: Any) -> None:
    """`fedoptax compare`."""
    names = algorithm_names(options["algorithms"])
    options = _with_preset(options) | _of_texts(options)
    if options["seeds"] < 1:
        raise UsageError(f"--seeds: {options['seeds']} given, allowed is a whole number >= 1")
    hyperparameters = _hyperparameters(names, options)
    for name in names:
        wrap_as(build(name, hyperparameters[name]), options["wrappers"])
    out = storage.prepare(_folder(options["out"], options["task"], "compare"), options["overwrite"])
    task = load(options)
    run_options = _run_options(options, task)
    _check(task, run_options)
    comparison = Comparison(
        names,
        hyperparameters,
        list(range(options["seeds"])),
        {"name": task.name, **task.spec},
        run_options,
        shlex.join(["fedoptax", *sys.argv[1:]]),
    )
    _compare(task, comparison, out, options["json"], new=True)


def resume(
    folder: Path,
    rounds: int | None,
    data_dir: Path | None,
    checkpoint_every: float | None = None,
    trust: bool = False,
) -> None:
    """`fedoptax resume`."""
    if not trust:
        storage.check_plain(folder)
    if (folder / "compare.json").is_file():
        if rounds is not None:
            raise UsageError("--rounds: given for a comparison, allowed is for a run only")
        comparison = Comparison.read(folder)
        _check_trust(folder, comparison.algorithms, trust)
        if other := sorted(comparison.options.keys() - RUN_OPTIONS):
            raise RunError(f"'{folder / 'compare.json'}' is damaged: it has the unknown option '{other[0]}'")
        if checkpoint_every is not None:
            comparison.options["checkpoint_every"] = checkpoint_every
        _compare(_task_of_spec(comparison.task, data_dir), comparison, folder, False)
        return
    if not (folder / "config.json").is_file():
        raise UsageError(f"folder: '{folder}' given, allowed is the folder of a run or a comparison")
    config = storage.read_json(folder / "config.json")
    if "deployment" in config:
        raise UsageError(
            f"folder: '{folder}' is of a network run; continue it with fedoptax deploy local --resume {folder}"
        )
    check_config(folder / "config.json", config)
    name, hyperparameters = config["algorithm"]["name"], config["algorithm"].get("hyperparameters") or {}
    _check_trust(folder, [name], trust)
    options = {key: config[key] for key in RUN_OPTIONS if key in config} | {"seed": config["seed"]}
    spec = {key: value for key, value in config["task"].items() if key != "description"}
    if rounds is not None:
        done = max([0, *rounds_of(folder)])
        if rounds < done:
            raise UsageError(f"--rounds: {rounds} given, allowed is at least the {done} that are done")
        options["rounds"] = rounds
    if checkpoint_every is not None:
        options["checkpoint_every"] = checkpoint_every
    task = _task_of_spec(spec, data_dir)
    algorithm = wrap_as(build(name, hyperparameters), options.get("wrappers") or {})
    result = _finish(
        lambda: run_experiment(
            task, algorithm, label=name, hyperparameters=hyperparameters, resume_from=folder, **options
        ),
        folder,
        name,
    )
    _tell(task, result, folder, False)


def _check_trust(folder: Path, algorithms: list[str], trust: bool) -> None:
    """A folder may come from others, and MODULE:FUNCTION in it may name any code of this machine."""
    if (named := [name for name in algorithms if ":" in name]) and not trust:
        raise UsageError(f"folder: '{folder}' names the code '{named[0]}' to be run; if it is your own, give --trust")


def report(folder: Path, out: Path | None, target: float | None) -> None:
    """`fedoptax report`."""
    if not folder.is_dir():
        raise UsageError(f"folder: '{folder}' given, allowed is a folder with runs in it")
    with status("writing the report"):
        page = write_report(folder, out, target)
    print(f"report: {page}")


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


def _compare(task: Task, comparison: Comparison, out: Path, json: bool, new: bool = False) -> None:
    use_compilation_cache()
    try:
        _, diverged = run_comparison(task, comparison, out, new=new)
    except Interrupted as stop:
        raise Stopped(f"{stop}; continue with: {_again(out, comparison.algorithms)}", stop.result.signal) from None
    with status("writing the report"):
        page = write_report(out)
    if json:
        print(json_.dumps({"out": str(out), "report": str(page), "diverged": [str(e) for e in diverged]}, indent=1))
    else:
        print((out / "table.md").read_text(encoding="utf-8"))
        print(f"report: {page}")
    if diverged:
        raise RunError("; ".join(map(str, diverged)))


def _again(out: Path, algorithms: list[str]) -> str:
    return f"fedoptax resume {out}" + (" --trust" if any(":" in name for name in algorithms) else "")


def _finish(work: Any, out: Path, name: str) -> RunResult:
    use_compilation_cache()
    try:
        return work()
    except Interrupted as stop:
        raise Stopped(f"{stop}; continue with: {_again(out, [name])}", stop.result.signal) from None
    except DivergedError as error:
        raise RunError(f"{error} (in {out})") from error


def _tell(task: Task, result: RunResult, out: Path, json: bool) -> None:
    names = sorted(set(result.history[-1]) - {"round", "seconds"}, key=lambda name: (name.startswith("client_"), name))
    final = {name: result.history.last(name) for name in names}
    if json:
        print(json_.dumps({"out": str(out), "rounds": len(result.history), "final": final}, indent=1))
        return
    of_the_round = (*COUNTS, "virtual_seconds")
    shown = {name: v for name, v in final.items() if not name.startswith("bytes") and name not in of_the_round}
    print(", ".join(f"{name} {value:.4g}" for name, value in shown.items() if value is not None))
    print(f"results: {out}")


def _with_preset(options: dict[str, Any]) -> dict[str, Any]:
    """The options, and where none was given those of the paper setting that `--preset` names."""
    recipe_of(options["task"])
    setting = find_preset(options["task"], options["preset"])
    if setting is None:
        return options
    print(f"preset: {setting.source}; {setting.convention}", file=sys.stderr)
    task = dict(setting.task)
    if options.get("partition") not in (None, task.get("partition")):  # another one: its settings are not the paper's
        of_partition = {"partition", *PARTITION_OPTIONS.get(task.get("partition", ""), ())} - {"num_clients"}
        task = {name: value for name, value in task.items() if name not in of_partition}
    from_paper = {**task, **setting.run}
    filled = {name: value for name, value in from_paper.items() if options.get(name) is None}
    return options | filled


def _of_texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """What `--fault`, `--privacy` and `--compress` say; what they leave out is left out."""
    wrappers = {name: options[name] for name in WRAPPERS if options[name] is not None}
    return {"faults": parse_faults(options["fault"] or []), "wrappers": wrappers}


def _hyperparameters(names: list[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
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


def _task_of_spec(spec: Mapping[str, Any], data_dir: Path | None) -> Task:
    try:
        recipe_of(str(spec.get("name")))
    except UsageError:
        raise UsageError(
            f"task: '{spec.get('name')}' is not a named one; continue it with fedoptax.run(resume_from=...)"
        ) from None
    arguments = {key: value for key, value in spec.items() if key in TASK_OPTIONS}
    return load_task(spec["name"], seed=spec.get("partition_seed", 0), data_dir=data_dir, **arguments)


def _run_options(options: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """What was given, else the task's defaults; the default cohort is at most everyone."""
    given = {name: options[name] for name in RUN_OPTIONS if options.get(name) not in (None, {})}
    defaults = dict(recipe_of(options["task"]).defaults)
    if "local_epochs" in given:
        defaults.pop("local_steps", None)  # of a task that counts in steps
    defaults["cohort_size"] = min(defaults["cohort_size"], task.clients.num_clients)
    return {"local_epochs": 1} | defaults | given


def _check(task: Task, options: Mapping[str, Any]) -> None:
    """Refuses before the first folder is made what the first run would refuse."""
    choices = {"client_states": PLACES, "examples": ("auto", "device", "stream"), "engine": ("compiled", "eager")}
    for name, allowed in choices.items():
        if options.get(name) is not None and options[name] not in allowed:
            raise UsageError(f"{name}: {options[name]!r} given, allowed is one of {', '.join(allowed)}")
    check_numbers(options["rounds"], options["eval_every"], 0)
    work = LocalWork(options["batch_size"], options["local_epochs"], options.get("local_steps"))
    aggregator = as_aggregator(options["aggregate"])
    checked_plan(Plan(options["cohort_size"], work, options.get("weighting") or "examples", aggregate=aggregator), task)


def _folder(out: Path | None, task: str, what: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return out or Path("runs") / f"{Path(task).stem}-{what.replace(':', '.')}-{stamp}"


def use_compilation_cache() -> None:
    """Keeps compiled programs in the user's cache folder, so that the next process starts sooner."""
    import pooch

    jax.config.update("jax_compilation_cache_dir", str(pooch.os_cache("fedoptax") / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
