"""A grid of hyper-parameters as one program: they are arguments of it, so all points share one compilation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedoptax._progress import html_table
from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.program import Point
from fedoptax.errors import UsageError
from fedoptax.experiments.grids import check_grid, points
from fedoptax.experiments.result import Interrupted, RunResult
from fedoptax.experiments.run import simulate, split_options
from fedoptax.storage.history import is_shown
from fedoptax.tasks.task import Task, check_task


class Swept(list[RunResult]):
    """The results of a sweep, in its order."""

    def _repr_html_(self) -> str:
        rows = []
        for result in self:
            columns = filter(is_shown, result.history[-1] if len(result.history) else ())
            measured = {name: result.history.last(name) for name in columns}
            rows.append({**result.hyperparameters, **measured, "status": result.status})
        return html_table(rows, f"{len(rows)} points, last values")


def sweep(
    task: Task, make_algorithm: Callable[..., FedAlgorithm], grid: Mapping[str, Sequence[float]], **options: Any
) -> Swept:
    """Run `make_algorithm(**point)` for every point of the grid, compiling once.

    A point that diverges is stopped and has the status `"diverged"`.

    Args:
      make_algorithm: a constructor, such as `fedadam`, or a `functools.partial` of it; the grid names its arguments.
      grid: values for each hyper-parameter; every combination is run, the last name varying fastest.
      **options: as in `fedoptax.run`, the same for all points: same initialisation, same cohorts, same failures. No
        folder, which belongs to a single run: `fedoptax.tune` makes one per point.

    Returns:
      One result per combination, in order, with its `hyperparameters` and `status`.

    Raises:
      UsageError: an empty grid, a value the constructor refuses, or an option of a single run; before anything runs.
      Interrupted: Ctrl-C or a signal; its `result` is that of the point that was running.
    """
    check_task(task)
    check_grid(grid)
    rounds, record = split_options(options)
    if record.folder is not None or record.hyperparameters:
        raise UsageError("out, resume_from and hyperparameters are for a single run; for folders use fedoptax.tune")
    results = Swept()
    for point in [_make_point(make_algorithm, values) for values in points(grid)]:  # all are made before one is run
        label = options.get("label") or ", ".join(f"{name}={value:.3g}" for name, value in point.values.items())
        results.append(simulate(task, point, rounds, replace(record, label=label, hyperparameters=dict(point.values))))
        if results[-1].signal:
            raise Interrupted(results[-1])
    return results


def _make_point(make_algorithm: Callable[..., FedAlgorithm], values: Mapping[str, Any]) -> Point:
    try:
        point = Point(make_algorithm, {name: float(value) for name, value in values.items()})
        point.algorithm  # noqa: B018 - refuses what is out of range
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"make_algorithm must take the numbers of the grid, got {values!r} ({error})") from error
    return point
