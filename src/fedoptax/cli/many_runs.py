"""`fedoptax compare` and `fedoptax tune`: many runs, and the report that they end with."""

import shlex
import sys
from contextlib import suppress

from fedoptax.cli.options import Compare, Tune
from fedoptax.cli.printing import warn_of_rise
from fedoptax.cli.report import report_comparison, report_search
from fedoptax.cli.run import errors_name
from fedoptax.cli.setup import algorithm_names, choose_grids, choose_rate_origins, set_up
from fedoptax.errors import UsageError
from fedoptax.experiments import comparison, tuning

DEFAULT_TRIALS = 25


def compare(given: Compare) -> None:
    """Run a comparison and write its report."""
    names = algorithm_names(given.algorithms)
    searching = {"--budget": given.budget, "--grid": given.grid, "--select": given.select, "--last": given.last}
    if not given.tune and (useless := [option for option, value in searching.items() if value]):
        raise UsageError(f"{useless[0]} needs --tune")
    grids = choose_grids(given, names, 16 if given.budget is None else given.budget) if given.tune else {}
    grids = {name: grid for name, grid in grids.items() if grid}  # the others have nothing to search
    task, hyperparameters, options = set_up(given, names, "compare")
    rates = choose_rate_origins(given, hyperparameters) | dict.fromkeys(grids, "tuned")
    if len(set(rates.values())) > 1:
        shown = "; ".join(f"{name}: {origin}" for name, origin in rates.items())
        print(
            f"warning: learning rates come from different places ({shown}); --tune searches those of all alike",
            file=sys.stderr,
        )
    with errors_name(options["out"]):
        done = comparison.compare(
            task,
            names,
            seeds=given.seeds,
            hyperparameters=hyperparameters,
            grids=grids,
            rates=rates,
            select=given.select or "train_loss",
            last=given.last,
            command=shlex.join(["fedoptax", *sys.argv[1:]]),
            **options,
        )
    ends = {name: [history.last("train_loss") for history in seeds] for name, seeds in done.histories.items()}
    warn_of_rise(task, {name: max(filter(None, losses), default=None) for name, losses in ends.items()}, options)
    report_comparison(done, given.json)


def tune(given: Tune) -> None:
    """Run a search and write its report."""
    name = given.algorithm
    if given.trials is not None and given.search == "grid":
        raise UsageError("--trials needs --search optuna")
    grid = choose_grids(given, [name], DEFAULT_TRIALS)[name]
    if not grid:
        raise UsageError(f"--grid is needed for {name}, whose rates are all set")
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
