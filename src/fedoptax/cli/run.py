"""What the commands of the command line do."""

from __future__ import annotations

import json as json_
import math
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedoptax._progress import status
from fedoptax.algorithm import FedAlgorithm
from fedoptax.cli.command_options import (
    RUN_OPTIONS,
    again,
    algorithm_names,
    check_again,
    check_trust,
    checked_options,
    load,
    of_texts,
    result_folder,
    start_of,
    task_of_spec,
    with_preset,
)
from fedoptax.cli.tune import grids_of, show_best, with_searches, write_search_reports
from fedoptax.cli.tune import resume as resume_search
from fedoptax.distributed import agreed, leads, several, shared_value
from fedoptax.engine.cores import use_cores
from fedoptax.engine.faults import COUNTS
from fedoptax.engine.xla import use_cache
from fedoptax.errors import RunError, Stopped, UsageError
from fedoptax.experiments.build import build
from fedoptax.experiments.comparison import Comparison
from fedoptax.experiments.comparison import compare as run_comparison
from fedoptax.experiments.result import DivergedError, Interrupted, RunResult
from fedoptax.experiments.run import run as run_experiment
from fedoptax.experiments.wrapping import wrap_as
from fedoptax.joining import join
from fedoptax.report import write_report
from fedoptax.report.searches import load_searches
from fedoptax.storage import folder as storage
from fedoptax.storage.checkpoint import rounds_of
from fedoptax.storage.stored import check_config
from fedoptax.supervision import note_folder
from fedoptax.tasks.task import Task

MAX_SEEDS = 10_000  # of a comparison


def run(**options: Any) -> None:
    """`fedoptax run`."""
    join(options)
    use_cores()
    name = options["algorithm"]
    out = Path(shared_value(str(result_folder(options["out"], options["task"], name))))
    note_folder(out)

    def prepared() -> tuple[Task, dict[str, Any], FedAlgorithm, dict[str, Any]]:
        given = with_preset(options) | of_texts(options)
        hyperparameters = start_of([name], given)[name]
        algorithm = wrap_as(build(name, hyperparameters), given["wrappers"])
        if leads():
            storage.prepare(out, given["overwrite"], remove=False)
        task = load(given)
        run_options = checked_options(given, task, [algorithm])
        if leads():
            storage.prepare(out, given["overwrite"])
        return task, hyperparameters, algorithm, run_options

    task, hyperparameters, algorithm, run_options = agreed(prepared)
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
    use_cores()
    names = algorithm_names(options["algorithms"])
    options = with_preset(options) | of_texts(options)
    if not 1 <= options["seeds"] <= MAX_SEEDS:
        raise UsageError(f"--seeds: {options['seeds']} given, allowed is a whole number from 1 to {MAX_SEEDS}")
    hyperparameters = start_of(names, options)
    grids = grids_of(names, options | options["search"], options["search"]["budget"]) if options["search"] else {}
    algorithms = []
    for name in names:
        first = {key: values[0] for key, values in grids.get(name, {}).items()}
        algorithms.append(wrap_as(build(name, hyperparameters[name] | first), options["wrappers"]))
    out = result_folder(options["out"], options["task"], "compare")
    storage.prepare(out, options["overwrite"], remove=False)
    task = load(options)
    run_options = checked_options(options, task, algorithms)
    comparison = Comparison(
        names,
        hyperparameters,
        list(range(options["seeds"])),
        {"name": task.name, **task.spec},
        run_options,
        shlex.join(["fedoptax", *sys.argv[1:]]),
    )
    if options["search"]:
        comparison = with_searches(task, comparison, grids, options["search"])
    _compare(task, comparison, storage.prepare(out, options["overwrite"]), options["json"], new=True)


def resume(
    folder: Path,
    rounds: int | None,
    data_dir: Path | None,
    checkpoint_every: float | None = None,
    trust: bool = False,
    mesh: int | None = None,
    processes: Mapping[str, Any] | None = None,
) -> None:
    """`fedoptax resume`; `processes` are the options of a run by several."""
    join(processes or {})
    use_cores()
    if several():
        _resume_run(folder, rounds, data_dir, checkpoint_every, trust, mesh)
        return
    if not trust:
        storage.check_plain(folder)
    if (folder / "compare.json").is_file():
        if rounds is not None:
            raise UsageError("--rounds: given for a comparison, allowed is for a run only")
        comparison = Comparison.read(folder)
        check_trust(folder, comparison.algorithms, trust)
        theirs = {key for tuning in comparison.tunings.values() for key in tuning.options}
        if other := sorted((comparison.options.keys() | theirs) - set(RUN_OPTIONS)):
            raise RunError(f"'{folder / 'compare.json'}' is damaged: it has the unknown option '{other[0]}'")
        if checkpoint_every is not None:
            comparison.options["checkpoint_every"] = checkpoint_every
        if mesh is not None:
            comparison.options["mesh"] = mesh
        task = task_of_spec(comparison.task, data_dir)
        name = comparison.algorithms[0]
        searched = comparison.tunings[name].grid if name in comparison.tunings else {}
        first = {key: values[0] for key, values in searched.items()}
        check_again(task, name, comparison.hyperparameters[name] | first, comparison.options)
        _compare(task, comparison, folder, False)
        return
    if (folder / "tune.json").is_file():
        if rounds is not None:
            raise UsageError("--rounds: given for a search, allowed is for a run only")
        resume_search(folder, data_dir, trust, mesh, checkpoint_every)
        return
    _resume_run(folder, rounds, data_dir, checkpoint_every, trust, mesh)


def _resume_run(
    folder: Path,
    rounds: int | None,
    data_dir: Path | None,
    checkpoint_every: float | None,
    trust: bool,
    mesh: int | None,
) -> None:
    """Continues a run; of several processes the first one alone needs the folder, and tells the others what it says."""
    note_folder(folder)
    config, options = shared_value(agreed(lambda: _begun(folder, rounds, trust, mesh) if leads() else None))
    if checkpoint_every is not None:
        options["checkpoint_every"] = checkpoint_every
    name, hyperparameters = config["algorithm"]["name"], config["algorithm"].get("hyperparameters") or {}
    spec = {key: value for key, value in config["task"].items() if key != "description"}

    def prepared() -> tuple[Task, FedAlgorithm]:
        check_trust(folder, [name], trust)  # at every process: it is told what code to call
        algorithm = wrap_as(build(name, hyperparameters), options.get("wrappers") or {})
        return task_of_spec(spec, data_dir), algorithm

    task, algorithm = agreed(prepared)
    result = _finish(
        lambda: run_experiment(
            task, algorithm, label=name, hyperparameters=hyperparameters, resume_from=folder, **options
        ),
        folder,
        name,
    )
    _tell(task, result, folder, False)


def _begun(folder: Path, rounds: int | None, trust: bool, mesh: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config of a run to be continued, and the options to do so."""
    if not trust:
        storage.check_plain(folder)
    if not (folder / "config.json").is_file():
        raise UsageError(f"folder: '{folder}' given, allowed is the folder of a run, a comparison or a search")
    config = storage.read_json(folder / "config.json")
    if "deployment" in config:
        raise UsageError(
            f"folder: '{folder}' is of a network run; continue it with fedoptax deploy local --resume {folder}"
        )
    check_config(folder / "config.json", config)
    check_trust(folder, [config["algorithm"]["name"]], trust)
    options = {key: config[key] for key in RUN_OPTIONS if key in config} | {"seed": config["seed"]}
    options["mesh"] = mesh
    if rounds is not None:
        done = max([0, *rounds_of(folder)])
        if rounds < done:
            raise UsageError(f"--rounds: {rounds} given, allowed is at least the {done} that are done")
        options["rounds"] = rounds
    return config, options


def report(folder: Path, out: Path | None, target: float | None) -> None:
    """`fedoptax report`."""
    if not folder.is_dir():
        raise UsageError(f"folder: '{folder}' given, allowed is a folder with runs in it")
    if target is not None and not math.isfinite(target):
        raise UsageError(f"--target: {target} given, allowed is a finite number")
    with status("writing the report"):
        page = write_report(folder, out, target)
    print(f"report: {page}")


def _compare(task: Task, comparison: Comparison, out: Path, json: bool, new: bool = False) -> None:
    use_cache()
    try:
        _, diverged = run_comparison(task, comparison, out, new=new)
    except Interrupted as stop:
        raise Stopped(f"{stop}; continue with: {again(out, comparison.algorithms)}", stop.result.signal) from None
    with status("writing the report"):
        write_search_reports(out)
        page = write_report(out)
    if json:
        print(json_.dumps({"out": str(out), "report": str(page), "diverged": [str(e) for e in diverged]}, indent=1))
    else:
        for search in load_searches(out):
            show_best(search, f"{search.algorithm}.")
        print((out / "table.md").read_text(encoding="utf-8"))
        print(f"report: {page}")
    if diverged:
        raise RunError("; ".join(map(str, diverged)))


def _finish(work: Any, out: Path, name: str) -> RunResult:
    use_cache()
    try:
        return work()
    except Interrupted as stop:
        remedy = again(out, [name]) + (" --distributed" if several() else "")
        raise Stopped(f"{stop}; continue with: {remedy}", stop.result.signal) from None
    except DivergedError as error:
        raise RunError(f"{error} (in {out})") from error


def _tell(task: Task, result: RunResult, out: Path, json: bool) -> None:
    if not leads():
        return
    names = sorted(set(result.history[-1]) - {"round", "seconds"}, key=lambda name: (name.startswith("client_"), name))
    final = {name: result.history.last(name) for name in names}
    if json:
        print(json_.dumps({"out": str(out), "rounds": len(result.history), "final": final}, indent=1))
        return
    of_the_round = (*COUNTS, "virtual_seconds")
    shown = {name: v for name, v in final.items() if not name.startswith("bytes") and name not in of_the_round}
    print(", ".join(f"{name} {value:.4g}" for name, value in shown.items() if value is not None))
    print(f"results: {out}")
