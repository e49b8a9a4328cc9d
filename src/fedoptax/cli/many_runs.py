"""`fedoptax compare` and `fedoptax tune`: many runs, and the report that they end with."""

import shlex
import sys
from contextlib import suppress

from fedoptax.cli.options import Compare, Tune
from fedoptax.cli.printing import warn_of_rise
from fedoptax.cli.report import report_comparison, report_search
from fedoptax.cli.run import errors_name
from fedoptax.cli.setup import set_up
from fedoptax.errors import UsageError
from fedoptax.experiments import comparison, tuning
from fedoptax.experiments.grids import choose_grids
from fedoptax.names import split_algorithms

DEFAULT_TRIALS, DEFAULT_BUDGET = 25, 16
SEARCHING = ("budget", "grid", "select", "last")  # options of compare that need --tune


def compare(options: Compare) -> None:
    """Run a comparison and write its report."""
    names = split_algorithms(options.algorithms)
    if not options.tune and (useless := [name for name in SEARCHING if getattr(options, name)]):
        raise UsageError(f"{useless[0]} needs --tune")
    budget = DEFAULT_BUDGET if options.budget is None else options.budget
    grids = choose_grids(options.grid, options.set_, names, budget) if options.tune else {}
    grids = {name: grid for name, grid in grids.items() if grid}  # the others have nothing to search
    task, settings, run = set_up(options, names, "compare")
    rates = settings.rates | dict.fromkeys(grids, "tuned")
    if len(set(rates.values())) > 1:
        origins = "; ".join(f"{name}: {origin}" for name, origin in rates.items())
        print(
            f"warning: learning rates come from different places ({origins}); --tune searches those of all alike",
            file=sys.stderr,
        )
    with errors_name(run["out"]):
        done = comparison.compare(
            task,
            names,
            seeds=options.seeds,
            hyperparameters=settings.hyperparameters,
            grids=grids,
            rates=rates,
            select=options.select or "train_loss",
            last=options.last,
            command=shlex.join(["fedoptax", *sys.argv[1:]]),
            **run,
        )
    ends = {name: [history.last("train_loss") for history in seeds] for name, seeds in done.histories.items()}
    warn_of_rise(task, {name: max(filter(None, losses), default=None) for name, losses in ends.items()}, run)
    report_comparison(done, options.json)


def tune(options: Tune) -> None:
    """Run a search and write its report."""
    name = options.algorithm
    if options.trials is not None and options.search == "grid":
        raise UsageError("trials needs --search optuna")
    grid = choose_grids(options.grid, options.set_, [name], DEFAULT_TRIALS)[name]
    if not grid:
        raise UsageError(f"grid is needed for {name}, whose rates are all set")
    task, settings, run = set_up(options, [name], f"tune-{name}")
    with errors_name(run["out"]), suppress(tuning.AllDiverged):  # `report_search` raises it again
        tuning.tune(
            task,
            name,
            grid,
            fixed={key: value for key, value in settings.hyperparameters[name].items() if key not in grid},
            select=options.select or "train_loss",
            last=options.last,
            command=shlex.join(["fedoptax", *sys.argv[1:]]),
            search=options.search,
            trials=options.trials or DEFAULT_TRIALS,
            **run,
        )
    report_search(run["out"], options.json)
