"""A grid of hyper-parameters as one program: they are arguments of it, so all points share one compilation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.program import Point
from fedoptax.errors import UsageError
from fedoptax.experiments.grids import points
from fedoptax.experiments.result import DivergedError, Interrupted, RunResult
from fedoptax.experiments.run import check_names, run
from fedoptax.experiments.search import check_grid
from fedoptax.tasks.task import Task, check_task

OF_ONE_RUN = ("out", "overwrite", "resume_from", "hyperparameters")
"""Options of `fedoptax.run` that say something of a single run: points cannot share them."""


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
      **options: as in `fedoptax.run`, the same for all points: same initialisation, same cohorts, same failures. No
        folder, which is a single run's: `fedoptax.tune` makes one a point.

    Returns:
      One result a combination, in order, with its `hyperparameters` and `status`.

    Raises:
      UsageError: an empty grid, a value the constructor refuses, or an option of a single run (`OF_ONE_RUN`); before
        anything runs.
    """
    check_task(task)
    check_grid(grid)
    if given := [name for name in OF_ONE_RUN if options.get(name)]:
        raise UsageError(f"{given[0]}: given for a sweep, allowed is for one run; fedoptax.tune makes a folder a point")
    options = {name: value for name, value in options.items() if name not in OF_ONE_RUN}
    check_names(options)
    found = [_point(make_algorithm, values) for values in points(grid)]
    for point in found:
        point.algorithm  # noqa: B018 - refuses what is out of range before anything runs
    return [_run(task, point, options) for point in found]


def _point(make_algorithm: Callable[..., FedAlgorithm], values: Mapping[str, Any]) -> Point:
    """A point of the grid.

    Raises:
      UsageError: it is no constructor, has no such hyper-parameter or needs another, or a value is no number.
    """
    if not callable(make_algorithm):
        raise UsageError(f"make_algorithm: {make_algorithm!r} given, allowed is a constructor, such as fedavg")
    try:
        inspect.signature(make_algorithm).bind(**values)
    except TypeError as error:
        names = ", ".join(values)
        raise UsageError(f"grid: {names} given, allowed are the arguments of the constructor ({error})") from None
    except ValueError:  # one written in C does not say what it takes
        pass
    numbers = {}
    for name, value in values.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise UsageError(f"grid: {name}={value!r} given, allowed is a number") from None
    return Point(make_algorithm, numbers)


def _run(task: Task, point: Point, options: Mapping[str, Any]) -> RunResult:
    label = ", ".join(f"{name}={value:.3g}" for name, value in point.values.items())
    try:
        result = run(task, point, **{"label": label, "hyperparameters": dict(point.values), **options})
    except DivergedError as error:
        result = error.result
    if result.signal:  # it came in the last round or after it
        raise Interrupted(result)
    return result
