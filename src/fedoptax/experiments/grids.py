"""Grids of hyper-parameters as a user types them, and their points."""

import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedoptax.errors import UsageError, check_choice, check_int
from fedoptax.experiments.build import by_algorithm, find_constructor
from fedoptax.experiments.parsing import parse_value

Grid = dict[str, tuple[Any, ...]]
"""Values by name, numbers increasing; a point takes one of each."""

STEPS = {"decade": 1, "half": 2, "quarter": 4}  # steps per factor of ten
ALLOWED = "NAME=VALUE,VALUE,... or NAME=LOW..HIGH (half decades; also LOW..HIGH:decade, :half or :quarter)"


def choose_grids(
    values: Mapping[str, str], hyperparameters: Mapping[str, Any], algorithms: Iterable[str], budget: int
) -> dict[str, Grid]:
    """Return the values to search by algorithm: those of `values`, else `budget` points of its learning rates.

    The `hyperparameters` have one value each, and are not searched.
    """
    grids, fixed = parse_grids(values, algorithms), by_algorithm("set", hyperparameters, algorithms)
    if twice := [key for name, grid in grids.items() for key in grid if key in fixed[name]]:
        raise UsageError(f"grid: {twice[0]} has a value by `set` already")
    return {name: grid or default_grid(find_constructor(name), fixed[name], budget) for name, grid in grids.items()}


def parse_grids(values: Mapping[str, str], algorithms: Iterable[str]) -> dict[str, Grid]:
    """Return the grids of some algorithms, each of the names that it has; `ALGORITHM.NAME` is for one algorithm.

    Each value is numbers or texts separated by commas, or `LOW..HIGH`, the log grid 10^(k/2) from LOW to HIGH
    (`:decade` and `:quarter` for other steps). `1e-3..1` is 10⁻³, 10⁻²·⁵, …, 10⁰. Commas within brackets separate
    nothing, so a schedule such as `cosine(0.1, 100)` is one value.
    """
    return {
        algorithm: {name: _parse_values(text) for name, text in texts.items()}
        for algorithm, texts in by_algorithm("grid", values, algorithms).items()
    }


RANGES = {"client_lr": (1e-3, 10.0), "server_lr": (1e-3, 10.0), "lr": (1e-4, 1.0)}
"""Where learning rates are searched if nobody says where."""


def default_grid(constructor: Callable[..., Any], chosen: Mapping[str, Any], budget: int) -> Grid:
    """Return at most `budget` points for an algorithm: its learning rates that have no default and were not chosen.

    Every rate gets as many values as the others, evenly on a logarithmic scale within `RANGES`, while the product
    allows it: 25 points are 25 values of one rate or 5 of each of two. Without such a rate the grid is empty.
    """
    check_int("budget", budget)
    needed = [n for n, p in inspect.signature(constructor).parameters.items() if p.default is p.empty]
    names = [name for name in needed if name in RANGES and name not in chosen]
    sizes = [int(budget ** (1 / max(len(names), 1)) + 1e-9)] * len(names)
    for i in range(len(sizes)):
        if math.prod(sizes) // sizes[i] * (sizes[i] + 1) <= budget:
            sizes[i] += 1
    return {name: _spaced(*RANGES[name], size) for name, size in zip(names, sizes)}


def _spaced(low: float, high: float, size: int) -> tuple[float, ...]:
    """Return `size` values from low to high, evenly on a logarithmic scale; the middle for one alone."""
    return _rounded(np.geomspace(low, high, size) if size > 1 else [math.sqrt(low * high)])


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Round to four digits: what is printed is what was run."""
    return tuple(float(f"{value:.4g}") for value in values)


def log_grid(low: float, high: float, steps: int = 2) -> tuple[float, ...]:
    """Return 10^(k/steps) for whole k, from `low` to `high` with both ends, where they are such powers."""
    first, last = (math.log10(end) * steps for end in (low, high))
    return _rounded(10 ** (k / steps) for k in range(math.ceil(first - 1e-6), math.floor(last + 1e-6) + 1))


def check_grid(grid: Any) -> None:
    """Check the form of a grid: some values for each of some names."""
    if not isinstance(grid, Mapping) or not grid:
        raise UsageError(f"grid must be lists of values by the names of hyper-parameters, got {grid!r}")
    for name, values in grid.items():
        if isinstance(values, str) or not hasattr(values, "__len__") or not len(values):
            raise UsageError(f"grid: {name} must be a list of values, got {values!r}")


def points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination, the last name varying fastest."""
    return [dict(zip(grid, values)) for values in itertools.product(*grid.values())]


def edges(grid: Mapping[str, Sequence[Any]], point: Mapping[str, Any]) -> dict[str, str]:
    """Return the numbers of a point that lie at an end of the grid: name -> `"lowest"` or `"highest"`.

    One with a single value was not searched, and has no ends.
    """
    searched = {name: values for name, values in grid.items() if len(values) > 1 and all(map(is_number, values))}
    lowest = {name: "lowest" for name, values in searched.items() if point[name] == min(values)}
    return lowest | {name: "highest" for name, values in searched.items() if point[name] == max(values)}


def _parse_values(text: str) -> tuple[Any, ...]:
    if ".." in text:
        ends, _, step = text.partition(":")
        low, _, high = ends.partition("..")
        check_choice("grid step", step or "half", STEPS)
        try:
            values = log_grid(float(low), float(high), STEPS[step or "half"])
        except (ValueError, OverflowError):
            raise UsageError(f"grid must be {ALLOWED} with 0 < LOW < HIGH, got '{text}'") from None
        if not values:
            raise UsageError(f"grid must have a range that holds a step of the grid, got '{text}'")
        return values
    parts = [parse_value(part.strip()) for part in re.split(r",(?![^(]*\))", text)]
    parts = [float(part) if is_number(part) else part for part in parts]
    if "" in parts or len(set(parts)) != len(parts):
        raise UsageError(f"grid must have different values, got '{text}'")
    return tuple(sorted(parts)) if all(map(is_number, parts)) else tuple(parts)


def is_number(value: Any) -> bool:
    """Return whether a value of a grid is a number, not a word or a flag."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def suggest_by_optuna(
    grid: Mapping[str, Sequence[Any]], trials: Sequence[tuple[Mapping[str, Any], float]], maximize: bool, seed: int
) -> dict[str, Any]:
    """Return the next point by Optuna's tree-structured Parzen estimator (Bergstra et al. 2011).

    Numbers of the grid are a range from the smallest to the largest, on a logarithmic scale if all are above 0; texts
    are choices. The earlier `trials` are points and their scores, NaN if they failed.
    """
    try:
        import optuna
    except ImportError:
        raise UsageError("search optuna needs a package: pip install 'fedoptax[optuna]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space: dict[str, Any] = {}
    for name, values in grid.items():
        if all(map(is_number, values)):
            low, high = float(min(values)), float(max(values))
            space[name] = optuna.distributions.FloatDistribution(low, high, log=low > 0)
        else:
            space[name] = optuna.distributions.CategoricalDistribution(list(values))
    sampler = optuna.samplers.TPESampler(seed=seed + len(trials))  # one per trial: no state to be resumed
    study = optuna.create_study(direction="maximize" if maximize else "minimize", sampler=sampler)
    for params, score in trials:
        point: dict[str, Any] = {"params": dict(params), "distributions": space}
        end = {"value": score} if math.isfinite(score) else {"state": optuna.trial.TrialState.FAIL}
        study.add_trial(optuna.trial.create_trial(**point, **end))
    return dict(study.ask(space).params)
