"""What point comes next, from those that were tried: the next of a grid, or what Optuna suggests.

Both are functions of what was tried, so a search that was interrupted goes on as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from fedoptax.errors import UsageError
from fedoptax.experiments.grids import points
from fedoptax.experiments.selection import Rule, Tried

Search = Callable[[Sequence[Tried]], dict[str, Any] | None]
"""`search(tried) -> values` of the next point; None at the end."""

SEARCHES = ("grid", "optuna")


def check_grid(grid: Any) -> None:
    """Checks the form of a grid: some values for each of some names.

    Raises:
      UsageError: it has another form, or is empty.
    """
    if not isinstance(grid, Mapping):
        raise UsageError(f"grid: {grid!r} given, allowed are lists of values by the names of hyper-parameters")
    for name, values in grid.items():
        if isinstance(values, str) or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
            raise UsageError(f"grid: {name}={values!r} given, allowed is a list of values")
    if not grid or not all(len(values) for values in grid.values()):
        raise UsageError("grid: an empty grid given, allowed is at least one value for at least one name")


def grid_search(grid: Mapping[str, Sequence[Any]]) -> Search:
    """Every combination, the last name varying fastest."""
    every = points(grid)
    return lambda tried: every[len(tried)] if len(tried) < len(every) else None


def optuna_search(grid: Mapping[str, Sequence[Any]], trials: int, rule: Rule, seed: int) -> Search:
    """`trials` points by Optuna's tree-structured Parzen estimator (Bergstra et al. 2011).

    Args:
      grid: numbers are a range from the smallest to the largest, searched on a logarithmic scale if all are above 0;
        texts are choices.
      trials: how many points.
      rule: what is minimised or maximised.
      seed: of the suggestions.

    Raises:
      UsageError: Optuna is not installed, or `trials` is below 1.
    """
    if find_spec("optuna") is None:
        raise UsageError("--search: optuna is not installed; pip install 'fedoptax[optuna]'")
    if trials < 1:
        raise UsageError(f"--trials: {trials} given, allowed is a whole number >= 1")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space: dict[str, Any] = {}
    for name, values in grid.items():
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            low, high = float(min(values)), float(max(values))
            space[name] = optuna.distributions.FloatDistribution(low, high, log=low > 0)
        else:
            space[name] = optuna.distributions.CategoricalDistribution(list(values))
    direction = "maximize" if rule.higher_is_better else "minimize"

    def search(tried: Sequence[Tried]) -> dict[str, Any] | None:
        if len(tried) >= trials:
            return None
        sampler = optuna.samplers.TPESampler(seed=seed + len(tried))  # one a trial: no state to be resumed
        study = optuna.create_study(direction=direction, sampler=sampler)
        for one in tried:
            known = math.isfinite(one.score)
            state = optuna.trial.TrialState.COMPLETE if known else optuna.trial.TrialState.FAIL
            study.add_trial(
                optuna.trial.create_trial(
                    params=dict(one.values), distributions=space, value=one.score if known else None, state=state
                )
            )
        return dict(study.ask(space).params)

    return search
