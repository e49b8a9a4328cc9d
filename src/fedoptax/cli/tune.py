"""`fedoptax tune`: a search for hyper-parameters, and its report."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress

from fedoptax.cli.options import Tune
from fedoptax.cli.report import report_search
from fedoptax.cli.run import errors_name
from fedoptax.cli.setup import choose_grids, set_up
from fedoptax.errors import UsageError
from fedoptax.experiments import tuning

DEFAULT_TRIALS = 25


def tune(given: Tune) -> None:
    """Run a search and write its report."""
    name = given.algorithm
    if given.trials is not None and given.search == "grid":
        raise UsageError("--trials needs --search optuna")
    grid = choose_grids(given, [name], DEFAULT_TRIALS)[name]
    task, hyperparameters, options = set_up(given, [name], f"tune-{name}")
    with errors_name(options["out"]), suppress(tuning.AllDiverged):  # `report_search` raises it again
        tuning.tune(
            task,
            name,
            grid,
            fixed={key: value for key, value in hyperparameters[name].items() if key not in grid},
            select=given.select or "train_loss",
            last=given.last,
            command=shlex.join(["fedoptax", *sys.argv[1:]]),
            search=given.search,
            trials=given.trials or DEFAULT_TRIALS,
            **options,
        )
    report_search(options["out"], given.json)
