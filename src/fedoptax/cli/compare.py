"""`fedoptax compare`: several algorithms over seeds, and their report."""

from __future__ import annotations

import json
import shlex
import sys

from fedoptax._progress import status
from fedoptax.cli.options import Compare
from fedoptax.cli.run import finish
from fedoptax.cli.setup import algorithm_names, choose_grids, result_folder, set_up
from fedoptax.cli.tune import print_best
from fedoptax.engine.xla import use_cache, use_cores
from fedoptax.errors import RunError, UsageError, check_int
from fedoptax.experiments import comparison
from fedoptax.experiments.comparison import Compared
from fedoptax.report import write_report
from fedoptax.report.searches import load_searches

DEFAULT_BUDGET = 16  # points of a search per algorithm


def compare(given: Compare) -> None:
    """Run a comparison and write its report."""
    use_cores()
    use_cache()
    check_int("--seeds", given.seeds, 1, 10_000)
    names = algorithm_names(given.algorithms)
    searching = {"--budget": given.budget, "--grid": given.grid, "--select": given.select, "--last": given.last}
    if not given.tune and (useless := [option for option, value in searching.items() if value]):
        raise UsageError(f"{useless[0]} needs --tune")
    grids = choose_grids(given, names, given.budget or DEFAULT_BUDGET) if given.tune else {}
    setup = set_up(given, names, result_folder(given.out, given.task, "compare"))
    done = finish(
        lambda: comparison.compare(
            setup.task,
            names,
            setup.out,
            seeds=given.seeds,
            hyperparameters=setup.hyperparameters,
            grids=grids,
            select=given.select or "train_loss",
            last=given.last,
            overwrite=given.overwrite,
            command=shlex.join(["fedoptax", *sys.argv[1:]]),
            **setup.options,
        ),
        setup.out,
    )
    report_comparison(done, given.json)


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
            print_best(search, f"{search.algorithm}.")
        print((out / "table.md").read_text(encoding="utf-8"))
        print(f"report: {page}")
    if done.diverged:
        raise RunError("; ".join(done.diverged))
