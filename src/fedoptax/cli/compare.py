"""`fedoptax compare`: several algorithms over seeds, and their report."""

from __future__ import annotations

import shlex
import sys

from fedoptax.cli.options import Compare
from fedoptax.cli.report import report_comparison
from fedoptax.cli.run import errors_name
from fedoptax.cli.setup import algorithm_names, choose_grids, set_up
from fedoptax.errors import UsageError
from fedoptax.experiments import comparison


def compare(given: Compare) -> None:
    """Run a comparison and write its report."""
    names = algorithm_names(given.algorithms)
    searching = {"--budget": given.budget, "--grid": given.grid, "--select": given.select, "--last": given.last}
    if not given.tune and (useless := [option for option, value in searching.items() if value]):
        raise UsageError(f"{useless[0]} needs --tune")
    grids = choose_grids(given, names, given.budget or 16) if given.tune else {}
    task, hyperparameters, options = set_up(given, names, "compare")
    with errors_name(options["out"]):
        done = comparison.compare(
            task,
            names,
            seeds=given.seeds,
            hyperparameters=hyperparameters,
            grids=grids,
            select=given.select or "train_loss",
            last=given.last,
            command=shlex.join(["fedoptax", *sys.argv[1:]]),
            **options,
        )
    report_comparison(done, given.json)
