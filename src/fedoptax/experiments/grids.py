"""Grids of hyper-parameters as a user types them, their points, and sweeps: all points as one compiled program."""

import inspect
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedoptax._files import to_plain
from fedoptax._progress import html_table
from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.program import Point
from fedoptax.errors import UsageError, check_choice, import_extra
from fedoptax.experiments.build import Constructor, by_algorithm, find_constructor
from fedoptax.experiments.parsing import parse_value
from fedoptax.experiments.presets import find_grid
from fedoptax.experiments.record import split_options
from fedoptax.experiments.result import Interrupted, RunResult
from fedoptax.experiments.run import simulate
from fedoptax.storage.history import is_shown
from fedoptax.tasks.task import Task

Points = Sequence[tuple[Mapping[str, Any], float]]
"""Earlier points and their scores, NaN if they failed."""
Grid = dict[str, tuple[Any, ...]]
"""Values by name, numbers increasing; a point takes one of each."""

BUDGET = 16  # the default number of points of a search
STEPS = {"decade": 1, "half": 2, "quarter": 4}  # steps per factor of ten
ALLOWED = "NAME=VALUE,VALUE,... or NAME=LOW..HIGH (half decades; also LOW..HIGH:decade, :half or :quarter)"


class Zoom(dict[str, tuple[Any, ...]]):
    """The coarse values of a search that zooms, see `suggest_by_zoom`; its `budget` is the number of all points."""

    def __init__(self, values: Mapping[str, tuple[Any, ...]], budget: int) -> None:
        super().__init__(values)
        self.budget = budget


def choose_grids(
    values: Mapping[str, str], hyperparameters: Mapping[str, Any], algorithms: Collection[str], budget: int | None
) -> dict[str, Grid]:
    """Return the grid of each algorithm by `complete_grid`, from texts."""
    grids, fixed = dict[str, Grid](), by_algorithm("set", hyperparameters, algorithms)
    for name, grid in parse_grids(values, algorithms).items():
        if twice := [key for key in grid if key in fixed[name]]:
            raise UsageError(f"grid: {twice[0]} already has a value in `set`")
        grids[name] = complete_grid(find_constructor(name), grid, fixed[name], budget)
    return grids


def complete_grid(make: Constructor, values: Mapping[str, Any], fixed: Collection[str], budget: int | None) -> Grid:
    """Return a grid of numbers or rates, which zooms if there is a budget; to words alone add rates that are not fixed.

    Without a budget a search for rates that nobody names has `BUDGET` points.
    """
    grid = {name: tuple(to_plain(list(these))) for name, these in values.items()}
    if grid.keys() & RANGES.keys() or any(map(is_number, itertools.chain(*grid.values()))):
        return Zoom(grid, budget) if budget else grid
    budget = budget or BUDGET
    rates = coarse_rates(make, fixed, max(1, budget // math.prod(map(len, grid.values()))))
    return Zoom({**grid, **rates}, budget) if rates else grid


def split_weighting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `fedoptax.run` for a point: its hyper-parameters and, if it was searched, its weighting."""
    weighting = {WEIGHTING: values[WEIGHTING]} if WEIGHTING in values else {}
    return {"hyperparameters": {name: value for name, value in values.items() if name != WEIGHTING}, **weighting}


def parse_grids(values: Mapping[str, str], algorithms: Iterable[str]) -> dict[str, Grid]:
    """Return the grids of some algorithms, each of the names that it has; `ALGORITHM.NAME` is for one algorithm.

    Values are numbers or texts separated by commas, or `LOW..HIGH`, the log grid 10^(k/2) from LOW to HIGH: `1e-3..1`
    is 10⁻³, 10⁻²·⁵, …, 10⁰ (`:decade` and `:quarter` for other steps). A schedule, `cosine(0.1, 100)`, is one value.
    """
    return {
        algorithm: {name: _parse_values(text) for name, text in texts.items()}
        for algorithm, texts in by_algorithm("grid", values, algorithms, (WEIGHTING,)).items()
    }


def paper_grids(task: str, grid: str, algorithms: Sequence[str]) -> dict[str, Grid]:
    """Return the grids that `paper` or `paper:NAME` means for some algorithms."""
    return parse_grids(find_grid(task, "tuned", grid, algorithms), algorithms)


RANGES = {"client_lr": (1e-3, 10.0), "server_lr": (1e-3, 10.0), "lr": (1e-4, 1.0)}
"""Where the search for a learning rate begins if nobody says where."""
FINEST = 6  # halvings of the step of a search that zooms; then the neighbours of other good points follow
WEIGHTING = "weighting"  # an option of runs that can be searched like a hyper-parameter


def coarse_rates(constructor: Constructor, fixed: Collection[str], budget: int) -> Grid:
    """Return the coarse half of a search with `budget` points: values of all learning rates that are not `fixed`.

    Rates have equally many values as far as the product allows it, each in the middle of its share of `RANGES` in log.
    """
    names = [name for name in inspect.signature(constructor).parameters if name in RANGES and name not in fixed]
    most = max(1, budget // 2)
    sizes = [int(most ** (1 / max(len(names), 1)) + 1e-9)] * len(names)
    for i in range(len(sizes)):
        if math.prod(sizes) // sizes[i] * (sizes[i] + 1) <= most:
            sizes[i] += 1
    rates = {}
    for name, size in zip(names, sizes):
        low, high = RANGES[name]
        rates[name] = _rounded(low * (high / low) ** ((i + 0.5) / size) for i in range(size))
    return rates


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Round to four digits, so that printed and used values agree."""
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
        plain = to_plain(list(values))
        keys = {(float(value), "") if is_number(value) else (0.0, repr(value)) for value in plain}
        if len(keys) < len(plain) or plain.count(None) > sum(value is None for value in values):  # of NaN and infinity
            raise UsageError(f"grid: {name} must have different, finite values, got {values!r}")


def points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination, the last name varying fastest."""
    return [dict(zip(grid, values)) for values in itertools.product(*grid.values())]


def edges(grid: Mapping[str, Sequence[Any]], point: Mapping[str, Any]) -> dict[str, str]:
    """Return the numbers of a point at an end of what was searched: name -> `"lowest"` or `"highest"`."""
    searched = {name: values for name, values in grid.items() if len(values) > 1 and all(map(is_number, values))}
    lowest = {name: "lowest" for name, values in searched.items() if point[name] == min(values) != 0}
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
        if float(low) > float(high):
            raise UsageError(f"grid: the ends of '{text}' are swapped, write {high}..{low}")
        if not values:
            raise UsageError(f"grid must have a range with at least one step, got '{text}'")
        return values
    parts = [parse_value(part.strip()) for part in re.split(r",(?![^(]*\))", text)]
    parts = [float(part) if is_number(part) else part for part in parts]
    odd = [part for part in parts if isinstance(part, list | dict) or part in ("", math.inf) or part != part]
    if odd or len(set(parts)) != len(parts):
        raise UsageError(f"grid must have different, finite values, got '{text}'")
    return tuple(sorted(parts)) if all(map(is_number, parts)) else tuple(parts)


def is_number(value: Any) -> bool:
    """Return whether a value of a grid is a number, not a word or a flag."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def can_zoom(values: Sequence[Any]) -> bool:
    """Return whether there may be values between these and beyond them: all are numbers > 0."""
    return all(is_number(value) and value > 0 for value in values)


def suggest_by_zoom(
    grid: Mapping[str, Sequence[Any]], trials: Points, maximize: bool,
    is_allowed: Callable[[Mapping[str, Any]], bool] = lambda point: True,
) -> dict[str, Any]:  # fmt: skip
    """Return the next point of a search that zooms: the grid's points, then neighbours of the best on a finer grid.

    This is compass search (Kolda, Lewis, Torczon 2003) on the logarithms of the numbers. The first step is the spacing
    of the grid, at which only a best value on an edge has new neighbours. When all neighbours of the best are known, or
    not allowed, the step is halved. If all points failed, lower values follow. Words and lists with 0 stay as they are.
    """
    coarse = points(grid)
    if len(trials) < len(coarse):
        return coarse[len(trials)]
    steps = {}  # the factor between neighbours; of a single value that between an end of its range and the middle
    for name, values in grid.items():
        if can_zoom(values):
            low, high = (min(values), max(values)) if len(values) > 1 else RANGES.get(name, (1.0, 10.0))
            steps[name] = (high / low) ** (1 / (len(values) - 1 or 2))
    lowest = {name: min(values) if name in steps else values[0] for name, values in grid.items()}
    sign, level, fresh = -1 if maximize else 1, 0, dict[str, Any]()
    for done in range(len(coarse), len(trials) + 1):  # again from the start, as the step only ever shrinks
        known = [values for values, _ in trials[:done]]
        finite = [trial for trial in trials[:done] if math.isfinite(trial[1])]
        ranked = [values for values, _ in sorted(finite, key=lambda trial: sign * trial[1])]
        while level < FINEST and ranked and not any(_new_neighbours(ranked[0], steps, level, known, is_allowed)):
            level += 1
        shift = 10.0 ** min(done - len(coarse) + 1, 30)
        lower = {**lowest, **{name: float(f"{lowest[name] / shift:.4g}") for name in steps}}
        near = itertools.chain.from_iterable(_new_neighbours(p, steps, level, known, is_allowed) for p in ranked)
        fresh = next(near, lower)
    return fresh


def _new_neighbours(
    point: Mapping[str, Any], steps: Mapping[str, float], level: int, known: Sequence[Mapping[str, Any]],
    is_allowed: Callable[[Mapping[str, Any]], bool],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield the allowed points a step higher or lower in one number, the step halved `level` times, that are new."""
    for name, step in steps.items():
        nearness = min(1e-3, 0.1 * math.log(step) / 2**level)
        for way in (1, -1):
            value = float(f"{point[name] * step ** (way / 2**level):.4g}")
            alike = (other[name] for other in known if math.isclose(other[name], value, rel_tol=nearness))
            near = {**point, name: next(alike, value)}  # 0.1 rather than 0.09999
            if not any(_is_near(near, other, steps, level) for other in known) and is_allowed(near):
                yield near


def _is_near(one: Mapping[str, Any], other: Mapping[str, Any], steps: Mapping[str, float], level: int) -> bool:
    """Return whether two points differ by less than a tenth of a step in every number, and in no word."""
    return all(
        abs(math.log(one[name] / other[name])) < 0.1 * math.log(steps[name]) / 2**level if name in steps else
        one[name] == other[name]
        for name in one
    )  # fmt: skip


def suggest_by_optuna(grid: Mapping[str, Sequence[Any]], trials: Points, maximize: bool, seed: int) -> dict[str, Any]:
    """Return the next point by Optuna's tree-structured Parzen estimator (Bergstra et al. 2011).

    Numbers of the grid are a range from the smallest to the largest, on a logarithmic scale if all are above 0; texts
    are choices.
    """
    optuna = import_extra("optuna", "search optuna needs", "optuna")
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
    check_grid(grid)
    rounds, record = split_options(options)
    if record.folder is not None or record.hyperparameters:
        raise UsageError("out, resume_from and hyperparameters are for a single run; for folders use fedoptax.tune")
    made, results = [], Swept()
    for values in points(grid):
        try:
            made.append(Point(make_algorithm, {name: float(value) for name, value in values.items()}))
            made[-1].algorithm  # noqa: B018 - refuses what is out of range
        except UsageError:
            raise
        except (TypeError, ValueError) as error:
            raise UsageError(f"make_algorithm must take the numbers of the grid, got {values!r} ({error})") from error
    for point in made:
        label = options.get("label") or ", ".join(f"{name}={value:.3g}" for name, value in point.values.items())
        results.append(simulate(task, point, rounds, replace(record, label=label, hyperparameters=dict(point.values))))
        if results[-1].signal:
            raise Interrupted(results[-1])
    return results
