"""`fedoptax report`, and the reports that comparisons and searches end with."""

import json
import shlex
import textwrap
from typing import Any

from fedoptax._files import finite_or_none
from fedoptax._progress import status
from fedoptax.cli.options import ReportForm
from fedoptax.cli.printing import print_table
from fedoptax.errors import RunError, shorten
from fedoptax.experiments.comparison import Compared
from fedoptax.experiments.grids import split_weighting
from fedoptax.experiments.parsing import format_value
from fedoptax.experiments.tuning import SearchResult
from fedoptax.report import write_report
from fedoptax.report.report import load_report
from fedoptax.report.searches import edge_warnings, load_searches
from fedoptax.report.tables import short_table
from fedoptax.report.words import format_number, format_setting
from fedoptax.storage.history import read_lines

SHOWN = 10  # points in the table on the terminal


def report(options: ReportForm) -> None:
    """Write the report on a folder."""
    with status("writing the report"):
        page = write_report(options.folder, options.out, options.target, options.early)
    print(f"report: {page}")


def report_comparison(done: Compared, as_json: bool = False) -> None:
    """Write the report of a comparison, and print its verdict and a short table."""
    out = done.folder
    results = load_searches(out)
    with status("writing the report"):
        for result in results:
            write_report(result.folder)
        page = write_report(out)
    if as_json:
        print(json.dumps({"out": str(out), "report": str(page), "diverged": done.diverged}, indent=1))
    else:
        for result in results:
            _print_best(result, f"{result.search.algorithm}.")
        found = load_report(out)
        print_table([[shorten(name, 30), *cells] for name, *cells in short_table(found.table)])
        print(*(textwrap.fill(verdict.text, 80) for verdict in found.verdicts), sep="\n")
        print(f"all columns: {out / 'table.md'}\nreport: {page}")
    if done.diverged:
        raise RunError("; ".join(done.diverged))


def report_search(result: SearchResult, as_json: bool = False) -> None:
    """Write the report of a search and print its points."""
    with status("writing the report"):
        page = write_report(result.folder)
    if as_json:
        print(json.dumps({"out": str(result.folder), "report": str(page), **_record(result)}, indent=1))
    else:
        rule, names = result.search.rule, list(result.search.grid)
        rows = [[*names, f"mean {rule.metric} of last {rule.last}", "status"]]
        for trial in result.ranked[:SHOWN]:
            values = [format_setting(trial.values[name]) for name in names]
            rows.append([*values, format_number(trial.score), trial.status])
        print_table(rows)
        lost = sum(trial.status == "diverged" for trial in result.trials)
        print(f"{len(result.trials)} points" + (f", {lost} diverged" if lost else ""))
        _print_best(result)
        print(f"report: {page}")
    _ = result.best  # there may be no trial


def _print_best(result: SearchResult, scope: str = "") -> None:
    """Print the best values as options, and a line for each at an end of its searched range."""
    if (best := result.best_or_none) is None:
        return
    parts = split_weighting(best.values)
    pairs = [f"{scope}{name}={format_value(value)}" for name, value in parts["hyperparameters"].items()]
    weighting = f" --weighting {best.values['weighting']}" if "weighting" in best.values else ""
    print("best: " + " ".join(f"--set {shlex.quote(pair)}" for pair in pairs) + weighting)
    for text in edge_warnings(result):
        print(f"{result.search.algorithm}: {text}")


def _record(result: SearchResult) -> dict[str, Any]:
    points = []
    for trial in result.trials:
        record = {"values": dict(trial.values), "score": finite_or_none(trial.score), "status": trial.status}
        points.append(record | {"rounds": len(read_lines(trial.folder)), "folder": str(trial.folder)})
    chosen: dict[str, Any] = dict.fromkeys(("best", "score", "hyperparameters"))
    if (best := result.best_or_none) is not None:
        chosen = {"best": dict(best.values), "score": best.score, "hyperparameters": result.hyperparameters}
    return {**chosen, "edges": result.edges, "points": points}
