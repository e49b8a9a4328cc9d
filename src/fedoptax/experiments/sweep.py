"""A grid of hyper-parameters as one program: they are arguments of it, so all points share one compilation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.batches import LocalWork
from fedoptax.engine.plan import Plan, check_numbers, checked_plan
from fedoptax.engine.program import Point
from fedoptax.engine.together import Outcome, run_together
from fedoptax.errors import UsageError
from fedoptax.experiments.grids import points
from fedoptax.experiments.result import DivergedError, Interrupted, RunResult
from fedoptax.experiments.run import check_names, run
from fedoptax.experiments.search import check_grid
from fedoptax.tasks.task import Task, check_task
from fedoptax.wrappers.privacy import checked_weighting

TOGETHER = 16
"""Points at once on an accelerator, unless another number is asked for."""
BATCHED = ("rounds", "seed", "eval_every", "cohort_size", "batch_size", "local_epochs", "local_steps", "weighting",
           "client_loop", "label", "progress")  # fmt: skip
"""Options that points may have in common when they are run at once."""
OF_ONE_RUN = ("out", "overwrite", "resume_from", "hyperparameters")
"""Options of `fedoptax.run` that say something of a single run: points cannot share them."""


def sweep(
    task: Task,
    make_algorithm: Callable[..., FedAlgorithm],
    grid: Mapping[str, Sequence[float]],
    together: int | None = None,
    **options: Any,
) -> list[RunResult]:
    """Runs `make_algorithm(**point)` for every point of the grid, compiling once.

    A point that diverges is stopped there and kept with status `"diverged"`.

    Args:
      task: the task.
      make_algorithm: a constructor, such as `fedadam`, or a `functools.partial` of it; the grid names its arguments.
      grid: values for each hyper-parameter; every combination is run, the last name varying fastest.
      together: so many points are run at once, each the run that it would be alone, to rounding; None is one on a CPU,
        where more gain nothing, and `TOGETHER` elsewhere, if the options allow it.
      **options: as in `fedoptax.run`, the same for all points: same initialisation, same cohorts, same failures. No
        folder, which is a single run's: `fedoptax.tune` makes one a point.

    Returns:
      One result a combination, in order, with its `hyperparameters` and `status`.

    Raises:
      UsageError: an empty grid, a value the constructor refuses, or an option of a single run (`OF_ONE_RUN`); before
        anything runs. Points together with options that need one at a time: a mesh, the eager engine, failing clients,
        states off the device.
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
    width = _width(together, found[0], options)
    if width == 1:
        return [_run(task, point, options) for point in found]
    results = []
    for start in range(0, len(found), width):
        results += _run_together(task, found[start : start + width], **options)
    return results


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


def _width(together: int | None, point: Point, options: Mapping[str, Any]) -> int:
    """How many points are run at once."""
    if together is not None and (isinstance(together, bool) or not isinstance(together, int) or together < 1):
        raise UsageError(f"together: {together!r} given, allowed is a whole number >= 1")
    alone = [name for name, value in options.items() if name not in BATCHED and value is not None]
    if point.algorithm.epsilon is not None:
        alone.append("privacy")
    if together is None:
        return 1 if alone or jax.default_backend() == "cpu" else TOGETHER
    if together > 1 and alone:
        raise UsageError(f"together: {together} given with {alone[0]}, allowed is 1")
    return together


def _run_together(task: Task, points: Sequence[Point], **options: Any) -> list[RunResult]:
    rounds, seed, eval_every = (options.get(n, d) for n, d in (("rounds", 100), ("seed", 0), ("eval_every", 1)))
    rounds, eval_every, seed = check_numbers(rounds, eval_every, seed)
    algorithm = points[0].algorithm
    work = LocalWork(options.get("batch_size", 20), options.get("local_epochs", 1), options.get("local_steps"))
    weighting = checked_weighting(algorithm, options.get("weighting"))
    plan = Plan(options.get("cohort_size", 10), work, weighting, options.get("client_loop", "auto"))
    outcomes = run_together(task, points, checked_plan(plan, task), rounds, seed, eval_every)
    return [_result(point, outcome) for point, outcome in zip(points, outcomes)]


def _result(point: Point, outcome: Outcome) -> RunResult:
    status = "completed" if outcome.finite else "diverged"
    done = len(outcome.history)
    message = None if outcome.finite else f"diverged in round {done + 1}; the state after round {done} is kept"
    params = point.algorithm.params(outcome.server)
    return RunResult(
        outcome.history, params, outcome.server, outcome.clients, status, message, None, dict(point.values)
    )


def _run(task: Task, point: Point, options: Mapping[str, Any]) -> RunResult:
    label = ", ".join(f"{name}={value:.3g}" for name, value in point.values.items())
    try:
        result = run(task, point, **{"label": label, "hyperparameters": dict(point.values), **options})
    except DivergedError as error:
        result = error.result
    if result.signal:  # it came in the last round or after it
        raise Interrupted(result)
    return result
