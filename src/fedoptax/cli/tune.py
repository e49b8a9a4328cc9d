"""`fedoptax tune`: a search for hyper-parameters, and its report."""

from __future__ import annotations

import json
import math
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedoptax._progress import status
from fedoptax.cli.options import Tune
from fedoptax.cli.run import finish
from fedoptax.cli.setup import choose_grids, print_table, result_folder, set_up
from fedoptax.engine.xla import use_cache, use_cores
from fedoptax.errors import UsageError, check_choice
from fedoptax.experiments import tuning
from fedoptax.experiments.tuning import SEARCHES, AllDiverged
from fedoptax.report import write_report
from fedoptax.report.searches import Search, Trial, edge_warnings, load_searches
from fedoptax.report.words import format_number, format_setting

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
    setup = set_up(given, [name], result_folder(given.out, given.task, f"tune-{name}"))
    with suppress(AllDiverged):  # `report_search` raises it again
        finish(
            lambda: tuning.tune(
                setup.task,
                name,
                grid,
                setup.out,
                fixed={key: value for key, value in setup.hyperparameters[name].items() if key not in grid},
                select=given.select or "train_loss",
                last=given.last,
                overwrite=given.overwrite,
                command=shlex.join(["fedoptax", *sys.argv[1:]]),
                seed=given.seed,
                search=given.search,
                trials=given.trials or DEFAULT_TRIALS,
                **setup.options,
            ),
            setup.out,
        )
    report_search(setup.out, given.json)


def report_search(out: Path, as_json: bool = False) -> None:
    """Write the report of a search and print its points."""
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
        raise AllDiverged(search.algorithm, len(search.trials))


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
