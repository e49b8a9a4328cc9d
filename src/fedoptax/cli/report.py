"""`fedoptax report`, and the reports that comparisons and searches end with."""

import json
import shlex
from pathlib import Path
from typing import Any

from fedoptax._files import finite_or_none
from fedoptax._progress import status
from fedoptax.cli.options import Report
from fedoptax.cli.printing import print_table
from fedoptax.errors import RunError, UsageError
from fedoptax.experiments.comparison import Compared
from fedoptax.experiments.parsing import format_value
from fedoptax.experiments.tuning import AllDiverged
from fedoptax.report import write_report
from fedoptax.report.searches import Search, edge_warnings, load_searches
from fedoptax.report.words import format_number, format_setting

SHOWN = 10  # points in the table on the terminal


def report(options: Report) -> None:
    """Write the report of what is in a folder."""
    if not options.folder.is_dir():
        raise UsageError(f"'{options.folder}' is not a folder with runs")
    with status("writing the report"):
        page = write_report(options.folder, options.out, options.target)
    print(f"report: {page}")


def report_comparison(done: Compared, as_json: bool = False) -> None:
    """Write the report of a comparison and print its table."""
    out = done.folder
    searches = load_searches(out)
    with status("writing the report"):
        for search in searches:
            write_report(search.folder)
        page = write_report(out)
    if as_json:
        print(json.dumps({"out": str(out), "report": str(page), "diverged": done.diverged}, indent=1))
    else:
        for search in searches:
            _print_best(search, f"{search.algorithm}.")
        print((out / "table.md").read_text(encoding="utf-8"))
        print(f"report: {page}")
    if done.diverged:
        raise RunError("; ".join(done.diverged))


def report_search(out: Path, as_json: bool = False) -> None:
    """Write the report of a search and print its points."""
    with status("writing the report"):
        page = write_report(out)
    search = load_searches(out)[0]
    if as_json:
        print(json.dumps({"out": str(out), "report": str(page), **_record(search)}, indent=1))
    else:
        rule, names = search.tuning.rule, list(search.tuning.grid)
        rows = [[*names, f"mean {rule.metric} of last {rule.last}", "status"]]
        for point in search.ranked[:SHOWN]:
            values = [format_setting(point.values[name]) for name in names]
            rows.append([*values, format_number(point.score), point.run.status])
        print_table(rows)
        lost = sum(point.run.status == "diverged" for point in search.trials)
        print(f"{len(search.trials)} points" + (f", {lost} diverged" if lost else ""))
        _print_best(search)
        print(f"report: {page}")
    if search.best is None:
        raise AllDiverged(search.algorithm, len(search.trials))


def _print_best(search: Search, scope: str = "") -> None:
    """Print the best values as options, and a line for each that lies at an end of its grid."""
    if search.best is None:
        return
    pairs = [f"{scope}{name}={format_value(value)}" for name, value in search.best.values.items()]
    print("best: " + " ".join(f"--set {shlex.quote(pair)}" for pair in pairs))
    for text in edge_warnings(search):
        print(f"{search.algorithm}: {text}")


def _record(search: Search) -> dict[str, Any]:
    """Return what was found as JSON has it."""
    best, points = search.best, []
    for point in search.trials:
        record = {"values": dict(point.values), "score": finite_or_none(point.score), "status": point.run.status}
        points.append(record | {"rounds": len(point.run.rows), "folder": str(point.run.path)})
    chosen: dict[str, Any] = dict.fromkeys(("best", "score", "hyperparameters"))
    if best is not None:
        fixed = search.tuning.fixed
        chosen = {"best": dict(best.values), "score": best.score, "hyperparameters": {**fixed, **best.values}}
    return {**chosen, "edges": search.edges, "points": points}
