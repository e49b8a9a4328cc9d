"""The tasks whose data are drawn, not read, as named tasks; they are defined in `fedoptax.tasks.analytic_problems`."""

from __future__ import annotations

from fedoptax.errors import UsageError
from fedoptax.tasks import analytic_problems as analytic
from fedoptax.tasks.recipe import Options, Recipe
from fedoptax.tasks.task import Task

MOST_CLIENTS = 100_000
"""Of the tasks that draw each client's data: drawing so many takes minutes, and more than some gigabytes."""


def counterexample(name: str, recipe: Recipe, given: Options) -> Task:
    """Theorem 1 of FAFED."""
    return analytic.counterexample()


def quadratic(name: str, recipe: Recipe, given: Options) -> Task:
    """Quadratics with a known optimum."""
    return analytic.quadratic(_clients(recipe, given), seed=given.seed)


def synthetic(name: str, recipe: Recipe, given: Options) -> Task:
    """synthetic(α, β) of FedProx."""
    alpha, beta = (1.0 if value is None else value for value in (given.alpha, given.beta))
    return analytic.synthetic(alpha, beta, _clients(recipe, given), seed=given.seed)


def _clients(recipe: Recipe, given: Options) -> int:
    count = recipe.num_clients if given.num_clients is None else given.num_clients
    if count > MOST_CLIENTS:
        raise UsageError(f"num_clients: {count} given, allowed is at most {MOST_CLIENTS} where their data are drawn")
    return count
