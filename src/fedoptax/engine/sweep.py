"""A grid of hyper-parameters as one program: they are arguments of it, so all points share one compilation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.aggregation import Aggregator, as_aggregator
from fedoptax.engine.compiled import program
from fedoptax.engine.faults import Faults, as_faults
from fedoptax.engine.local import LocalWork
from fedoptax.engine.plan import Plan, check_privacy, checked_plan
from fedoptax.errors import UsageError
from fedoptax.experiment import Interrupted, RunResult, Settings, check_numbers, execute
from fedoptax.task import Task
from fedoptax.wrappers.privacy import checked_weighting


def sweep(
    task: Task,
    make_algorithm: Callable[..., FedAlgorithm],
    grid: Mapping[str, Sequence[float]],
    *,
    rounds: int = 100,
    cohort_size: int = 10,
    batch_size: int = 20,
    local_epochs: int = 1,
    local_steps: int | None = None,
    weighting: str | None = None,
    seed: int = 0,
    eval_every: int = 1,
    client_loop: str = "auto",
    faults: Faults | Mapping[str, Any] | None = None,
    aggregate: str | Aggregator = "mean",
    progress: bool | None = None,
) -> list[RunResult]:
    """Runs `make_algorithm(**point)` for every point of the grid, compiling once.

    A point that diverges is stopped there and kept with status `"diverged"`.

    Args:
      task: the task.
      make_algorithm: a constructor, such as `fedadam`, or a `functools.partial` of it; the grid names its arguments.
      grid: values for each hyper-parameter; every combination is run, the last name varying fastest.
      rounds, cohort_size, batch_size, local_epochs, local_steps, weighting, seed, eval_every, client_loop, faults,
        aggregate, progress: as in `fedoptax.run`, the same for all points (same initialisation, same cohorts, same
        failures).

    Returns:
      One result a combination, in order, with its `hyperparameters` and `status`.

    Raises:
      UsageError: an empty grid, or a value the constructor refuses; before anything runs.
    """
    if not grid or not all(len(values) for values in grid.values()):
        raise UsageError("grid: an empty grid given, allowed is at least one value for at least one name")
    check_numbers(rounds, eval_every, seed)
    points = [dict(zip(grid, map(float, values))) for values in itertools.product(*grid.values())]
    algorithms = [make_algorithm(**point) for point in points]
    work = LocalWork(batch_size, local_epochs, local_steps)
    failing = as_faults(faults)
    plan = Plan(cohort_size, work, checked_weighting(algorithms[0], weighting), client_loop)
    plan = checked_plan(replace(plan, faults=failing is not None, aggregate=as_aggregator(aggregate)), task)
    for algorithm in algorithms:
        check_privacy(algorithm, plan)
    built = program(task, make_algorithm, plan, tuple(grid))
    results = []
    for point, algorithm in zip(points, algorithms):
        label = ", ".join(f"{name}={value:.3g}" for name, value in point.items())
        settings = Settings(
            plan,
            rounds,
            seed,
            eval_every,
            label,
            progress=progress,
            hyperparameters=point,
            faults=failing,
            epsilon=algorithm.epsilon,
        )
        hypers = {name: jnp.asarray(value, jnp.result_type(float)) for name, value in point.items()}
        result = execute(task, built, hypers, settings)
        if result.signal:
            raise Interrupted(result)
        results.append(result)
    return results
