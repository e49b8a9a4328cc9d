"""`fedoptax compare`: several algorithms over seeds, and their report."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from fedoptax._progress import status
from fedoptax.cli.options import Compare
from fedoptax.cli.run import resume_command
from fedoptax.cli.setup import Setup, algorithm_names, choose_grids, result_folder, set_up
from fedoptax.cli.tune import print_best
from fedoptax.engine.xla import use_cache, use_cores
from fedoptax.errors import RunError, Stopped, UsageError, check_int
from fedoptax.experiments.comparison import Comparison, run_comparison
from fedoptax.experiments.grids import Grid
from fedoptax.experiments.tuning import Tuning, rule_for
from fedoptax.report import write_report
from fedoptax.report.searches import load_searches
from fedoptax.storage import folder as storage
from fedoptax.tasks.task import Task

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
    first = {name: {key: values[0] for key, values in grid.items()} for name, grid in grids.items()}
    setup = set_up(given, names, result_folder(given.out, given.task, "compare"), first)
    comparison = Comparison(
        names,
        setup.hyperparameters,
        list(range(given.seeds)),
        {"name": setup.task.name, **setup.task.spec},
        setup.options,
        shlex.join(["fedoptax", *sys.argv[1:]]),
    )
    if grids:
        comparison = replace(comparison, tunings=_searches(given, setup, grids))
    storage.prepare(setup.out, given.overwrite)
    carry_out_comparison(setup.task, comparison, setup.out, given.json, new=True)


def _searches(given: Compare, setup: Setup, grids: dict[str, Grid]) -> dict[str, Tuning]:
    """A search per algorithm, with a seed that is not among those that are compared."""
    rule = rule_for(setup.task, given.select or "train_loss", given.last, setup.options["rounds"])
    return {
        name: Tuning(
            name,
            {key: list(values) for key, values in grid.items()},
            {key: value for key, value in setup.hyperparameters[name].items() if key not in grid},
            rule,
            given.seeds,
            {"name": setup.task.name, **setup.task.spec},
            setup.options,
        )
        for name, grid in grids.items()
    }


def carry_out_comparison(
    task: Task, comparison: Comparison, out: Path, as_json: bool = False, new: bool = False
) -> None:
    """Run what is left of a comparison, write its report and print its table."""
    done = run_comparison(task, comparison, out, new=new)
    if (stop := done.stopped) is not None:
        raise Stopped(f"{stop.message}; continue with: {resume_command(out)}", stop.signal)
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
