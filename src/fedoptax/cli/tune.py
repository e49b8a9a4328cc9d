"""`fedoptax tune`: a search for hyper-parameters, and its report."""

from __future__ import annotations

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Any

from fedoptax._progress import bar, status
from fedoptax.cli.options import Tune
from fedoptax.cli.run import resume_command
from fedoptax.cli.setup import choose_grids, print_table, result_folder, set_up
from fedoptax.engine.xla import use_cache, use_cores
from fedoptax.errors import Stopped, UsageError, check_choice
from fedoptax.experiments.tuning import SEARCHES, AllDiverged, Tuning, rule_for, run_search
from fedoptax.report import write_report
from fedoptax.report.searches import Search, Trial, edge_warnings, load_searches
from fedoptax.report.words import format_number, format_setting
from fedoptax.storage import folder as storage
from fedoptax.tasks.task import Task

SHOWN = 10  # points in the table on the terminal
DEFAULT_TRIALS = 25


def tune(given: Tune) -> None:
    """Run a search and write its report."""
    use_cores()
    use_cache()
    name = given.algorithm
    check_choice("--search", given.search, SEARCHES)
    if given.trials is not None and given.search == "grid":
        raise UsageError("--trials needs --search optuna")
    grid = choose_grids(given, [name], DEFAULT_TRIALS)[name]
    first = {key: values[0] for key, values in grid.items()}
    setup = set_up(given, [name], result_folder(given.out, given.task, f"tune-{name}"), {name: first})
    tuning = Tuning(
        name,
        {key: list(values) for key, values in grid.items()},
        {key: value for key, value in setup.hyperparameters[name].items() if key not in grid},
        rule_for(setup.task, given.select or "train_loss", given.last, setup.options["rounds"]),
        given.seed,
        {"name": setup.task.name, **setup.task.spec},
        setup.options,
        given.search,
        0 if given.search == "grid" else given.trials or DEFAULT_TRIALS,
        shlex.join(["fedoptax", *sys.argv[1:]]),
    )
    storage.prepare(setup.out, given.overwrite)
    carry_out_search(setup.task, tuning, setup.out, given.json, new=True)


def carry_out_search(task: Task, tuning: Tuning, out: Path, as_json: bool = False, new: bool = False) -> None:
    """Run what is left of a search, write its report and print its points."""
    with bar(f"{tuning.algorithm}: {tuning.size} points", tuning.size * int(tuning.options["rounds"])) as update:
        searched = run_search(task, tuning, out, update, new)
    if (stop := searched.stopped) is not None:
        raise Stopped(f"{stop.message}; continue with: {resume_command(out)}", stop.signal)
    with status("writing the report"):
        page = write_report(out)
    search = load_searches(out)[0]
    if as_json:
        print(json.dumps(_as_json(search, out, page), indent=1))
    else:
        _print_table(search)
        print_best(search)
        print(f"report: {page}")
    if search.best is None:
        raise AllDiverged(tuning.algorithm, len(searched.tried))


def print_best(search: Search, scope: str = "") -> None:
    """Print the best values as options, and a line for each that lies at an end of its grid."""
    if search.best is None:
        return
    values = [shlex.quote(f"{scope}{name}={_format(value)}") for name, value in search.best.values.items()]
    print("best: " + " ".join(f"--set {text}" for text in values))
    for text in edge_warnings(search):
        print(f"{search.algorithm}: {text}")


def _print_table(search: Search) -> None:
    rule, names = search.tuning.rule, list(search.tuning.grid)
    print_table(
        [[*names, f"mean {rule.metric} of last {rule.last}", "status"]]
        + [
            [*(format_setting(point.values[n]) for n in names), format_number(point.score), point.run.status]
            for point in search.ranked[:SHOWN]
        ]
    )
    lost = sum(point.run.status == "diverged" for point in search.trials)
    print(f"{len(search.trials)} points" + (f", {lost} diverged" if lost else ""))


def _as_json(search: Search, out: Path, page: Path) -> dict[str, Any]:
    best = search.best
    return {
        "out": str(out),
        "report": str(page),
        "best": None if best is None else dict(best.values),
        "score": None if best is None else best.score,
        "hyperparameters": None if best is None else {**search.tuning.fixed, **best.values},
        "edges": search.edges,
        "points": [_point(point) for point in search.trials],
    }


def _point(point: Trial) -> dict[str, Any]:
    score = None if math.isnan(point.score) else point.score
    return {
        "values": dict(point.values),
        "score": score,
        "status": point.run.status,
        "rounds": len(point.run.rows),
        "folder": str(point.run.path),
    }


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
