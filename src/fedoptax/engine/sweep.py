"""A grid of hyper-parameters as one program: they are arguments of it, so all points share one compilation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.compiled import Point
from fedoptax.errors import UsageError
from fedoptax.experiment import DivergedError, Interrupted, RunResult, run
from fedoptax.grids import points
from fedoptax.task import Task


def sweep(
    task: Task,
    make_algorithm: Callable[..., FedAlgorithm],
    grid: Mapping[str, Sequence[float]],
    **options: Any,
) -> list[RunResult]:
    """Runs `make_algorithm(**point)` for every point of the grid, compiling once.

    A point that diverges is stopped there and kept with status `"diverged"`.

    Args:
      task: the task.
      make_algorithm: a constructor, such as `fedadam`, or a `functools.partial` of it; the grid names its arguments.
      grid: values for each hyper-parameter; every combination is run, the last name varying fastest.
      **options: as in `fedoptax.run`, the same for all points: same initialisation, same cohorts, same failures.

    Returns:
      One result a combination, in order, with its `hyperparameters` and `status`.

    Raises:
      UsageError: an empty grid, or a value the constructor refuses; before anything runs.
    """
    if not grid or not all(len(values) for values in grid.values()):
        raise UsageError("grid: an empty grid given, allowed is at least one value for at least one name")
    found = [Point(make_algorithm, {name: float(value) for name, value in point.items()}) for point in points(grid)]
    for point in found:
        point.algorithm  # noqa: B018 - refuses what is out of range before anything runs
    return [_run(task, point, options) for point in found]


def _run(task: Task, point: Point, options: Mapping[str, Any]) -> RunResult:
    label = ", ".join(f"{name}={value:.3g}" for name, value in point.values.items())
    try:
        result = run(task, point, **{"label": label, "hyperparameters": dict(point.values), **options})
    except DivergedError as error:
        result = error.result
    if result.signal:  # it came in the last round
        raise Interrupted(result)
    return result
