"""What `fedoptax tune` does, and the search of `fedoptax compare --tune`."""

from __future__ import annotations

import json as json_
import math
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedoptax._progress import bar, status
from fedoptax.cli.command_options import (
    RUN_OPTIONS,
    again,
    check_again,
    check_trust,
    checked_options,
    load,
    of_texts,
    print_table,
    result_folder,
    start_of,
    task_of_spec,
    with_preset,
)
from fedoptax.engine.cores import use_cores
from fedoptax.engine.xla import use_cache
from fedoptax.errors import RunError, Stopped, UsageError, unknown
from fedoptax.experiments.build import build, find_constructor, parse_settings
from fedoptax.experiments.comparison import Comparison
from fedoptax.experiments.grids import Grid, default_grid, parse_grids
from fedoptax.experiments.result import Interrupted
from fedoptax.experiments.search import SEARCHES
from fedoptax.experiments.tuning import FILE, AllDiverged, Tuning, carry_out, rule_for
from fedoptax.experiments.wrapping import wrap_as
from fedoptax.report import write_report
from fedoptax.report.search_page import edge_warnings
from fedoptax.report.searches import Search, Tested, load_searches
from fedoptax.report.words import number, setting
from fedoptax.storage import folder as storage
from fedoptax.tasks.task import Task

SHOWN = 10  # points in the table on the terminal
TRIALS = 25  # points where nobody says how many


def tune(**options: Any) -> None:
    """`fedoptax tune`."""
    use_cores()
    name = options["algorithm"]
    find_constructor(name)
    options = with_preset(options) | of_texts(options)
    if options["search"] not in SEARCHES:
        unknown("--search", options["search"], SEARCHES)
    if options["trials"] is not None and options["search"] == "grid":
        raise UsageError("--trials: given with --search grid, allowed is with --search optuna")
    grid = grids_of([name], options, TRIALS)[name]
    fixed = {key: value for key, value in start_of([name], options)[name].items() if key not in grid}
    first = {key: values[0] for key, values in grid.items()}
    algorithm = wrap_as(build(name, fixed | first), options["wrappers"])
    out = result_folder(options["out"], options["task"], f"tune-{name}")
    storage.prepare(out, options["overwrite"], remove=False)
    task = load(options)
    run_options = checked_options(options, task, [algorithm])
    tuning = Tuning(
        name,
        {key: list(values) for key, values in grid.items()},
        fixed,
        rule_for(task, options["select"], options["last"], run_options["rounds"]),
        options["seed"],
        {"name": task.name, **task.spec},
        run_options,
        options["search"],
        0 if options["search"] == "grid" else options["trials"] or TRIALS,
        shlex.join(["fedoptax", *sys.argv[1:]]),
    )
    carry_on(task, tuning, storage.prepare(out, options["overwrite"]), options["json"], new=True)


def resume(
    folder: Path, data_dir: Path | None, trust: bool, mesh: int | None = None, checkpoint_every: float | None = None
) -> None:
    """`fedoptax resume` of a search."""
    tuning = Tuning.read(folder)
    asked = {"mesh": mesh, "checkpoint_every": checkpoint_every}
    asked = {name: value for name, value in asked.items() if value is not None}
    tuning = replace(tuning, options=dict(tuning.options) | asked)
    check_trust(folder, [tuning.algorithm], trust)
    if other := sorted(tuning.options.keys() - RUN_OPTIONS):
        raise RunError(f"'{folder / FILE}' is damaged: it has the unknown option '{other[0]}'")
    task = task_of_spec(tuning.task, data_dir)
    first = {key: values[0] for key, values in tuning.grid.items()}
    check_again(task, tuning.algorithm, dict(tuning.fixed) | first, tuning.options)
    carry_on(task, tuning, folder, False)


def grids_of(names: list[str], options: Mapping[str, Any], budget: int) -> dict[str, Grid]:
    """What is searched for each algorithm: what of the given grid it has, else `budget` points of its rates.

    Raises:
      UsageError: a name that no algorithm has, wrong values, or a hyper-parameter that is set as well.
    """
    chosen = parse_settings(options["settings"] or [], names)
    given = parse_grids(options["grid"] or [], names)
    for name in names:
        if twice := sorted(given[name].keys() & chosen[name].keys()):
            raise UsageError(f"--set: {twice[0]} given with --grid {twice[0]}, allowed is one of them")
    return {name: given[name] or default_grid(find_constructor(name), chosen[name], budget) for name in names}


def with_searches(
    task: Task, comparison: Comparison, grids: Mapping[str, Grid], search: Mapping[str, Any]
) -> Comparison:
    """The comparison with a search for each algorithm, by a seed that is not among those that are compared."""
    options = comparison.options
    rule = rule_for(task, search["select"], search["last"], options["rounds"])
    tunings = {
        name: Tuning(
            name,
            {key: list(values) for key, values in grid.items()},
            {key: value for key, value in comparison.hyperparameters[name].items() if key not in grid},
            rule,
            len(comparison.seeds),
            comparison.task,
            options,
        )
        for name, grid in grids.items()
    }
    return replace(comparison, tunings=tunings)


def carry_on(task: Task, tuning: Tuning, out: Path, json: bool, new: bool = False) -> None:
    """Runs what is left of a search, writes its report and says what was found."""
    use_cache()
    lost: AllDiverged | None = None
    try:
        with bar(f"{tuning.algorithm}: {tuning.size} points", tuning.size * int(tuning.options["rounds"])) as update:
            carry_out(task, tuning, out, update, new)
    except Interrupted as stop:
        raise Stopped(f"{stop}; continue with: {again(out, [tuning.algorithm])}", stop.result.signal) from None
    except AllDiverged as error:
        lost = error
    with status("writing the report"):
        page = write_report(out)
    search = load_searches(out)[0]
    if json:
        print(json_.dumps(_as_json(search, out, page), indent=1))
    else:
        _show_table(search)
        show_best(search)
        print(f"report: {page}")
    if lost:
        raise lost


def write_search_reports(out: Path) -> None:
    """A report for each search of a comparison, to which the comparison's leads."""
    for search in load_searches(out):
        write_report(search.folder)


def show_best(search: Search, scope: str = "") -> None:
    """Prints the best values as options, and a line for each that lies at an end of its grid."""
    if search.best is None:
        return
    values = [shlex.quote(f"{scope}{name}={_typed(value)}") for name, value in search.best.values.items()]
    print("best: " + " ".join(f"--set {text}" for text in values))
    for text in edge_warnings(search):
        print(f"{search.algorithm}: {text}")


def _show_table(search: Search) -> None:
    rule, names = search.tuning.rule, list(search.tuning.grid)
    print_table(
        [[*names, f"mean {rule.metric} of last {rule.last}", "status"]]
        + [
            [*(setting(point.values[n]) for n in names), number(point.score), point.run.status]
            for point in search.ranked[:SHOWN]
        ]
    )
    lost = sum(point.run.status == "diverged" for point in search.points)
    print(f"{len(search.points)} points" + (f", {lost} diverged" if lost else ""))


def _as_json(search: Search, out: Path, page: Path) -> dict[str, Any]:
    best = search.best
    return {
        "out": str(out),
        "report": str(page),
        "best": None if best is None else dict(best.values),
        "score": None if best is None else best.score,
        "hyperparameters": None if best is None else {**search.tuning.fixed, **best.values},
        "edges": search.edges,
        "points": [_point(point) for point in search.points],
    }


def _point(point: Tested) -> dict[str, Any]:
    score = None if math.isnan(point.score) else point.score
    return {
        "values": dict(point.values),
        "score": score,
        "status": point.run.status,
        "rounds": len(point.run.rows),
        "folder": str(point.run.path),
    }


def _typed(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
