"""Searches for hyper-parameters, read back from their folders: what was tried, heat maps, and curves over one value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedoptax.errors import RunError
from fedoptax.experiments.grids import edges
from fedoptax.experiments.tuning import FILE, Tuning
from fedoptax.report.load import Run, load_run, writable
from fedoptax.report.words import setting

if TYPE_CHECKING:
    import pandas as pd

LEADING = 6
"""Points whose curves a search's own report shows."""
AXES = (("client_lr", "server_lr"), ("lr", "alpha"))
"""Pairs that are looked for first, for the axes of a heat map."""


@dataclass(frozen=True, eq=False)
class Tested:
    """A point: its values, its score by the search's rule (NaN without one), its metric at the end, and its run."""

    values: Mapping[str, Any]
    score: float
    metric: float
    run: Run


@dataclass(frozen=True, eq=False)
class Search:
    """One search.

    Attributes:
      folder: where it is.
      tuning: what was to be tried.
      points: what was tried, in that order.
    """

    folder: Path
    tuning: Tuning
    points: Sequence[Tested]

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return self.tuning.algorithm

    @property
    def ranked(self) -> list[Tested]:
        """The points, best first, those without a score last."""
        sign = -1 if self.tuning.rule.higher_is_better else 1
        return sorted(self.points, key=lambda point: (math.isnan(point.score), sign * point.score))

    @property
    def best(self) -> Tested | None:
        """The best point; None if none came to its end."""
        ranked = self.ranked
        return ranked[0] if ranked and not math.isnan(ranked[0].score) else None

    @property
    def edges(self) -> dict[str, str]:
        """The hyper-parameters whose best value is the lowest or the highest of the grid."""
        grid = {name: values for name, values in self.tuning.grid.items() if all(map(_is_number, values))}
        return edges(grid, self.best.values) if self.best is not None else {}

    @property
    def judged(self) -> tuple[str, bool]:
        """The metric that maps and curves show, and whether more of it is better."""
        if not self.points or self.points[0].run.metric == "train_loss":
            return self.tuning.rule.metric, self.tuning.rule.higher_is_better
        return self.points[0].run.metric, self.points[0].run.higher_is_better


def load_searches(root: Path) -> list[Search]:
    """All searches at or below a folder, by name; a search holds no other.

    Raises:
      RunError: one is damaged.
    """
    return [_load(folder) for folder in sorted(_folders(root, set()))]


def _folders(root: Path, seen: set[Path]) -> Iterator[Path]:
    place = root.resolve()
    if place in seen:
        return
    seen.add(place)
    if (root / FILE).is_file():
        yield root
        return
    try:
        children = [child for child in root.iterdir() if child.is_dir() and not child.name.startswith(".")]
    except OSError as error:
        raise RunError(f"'{root}' cannot be read: {error.strerror}") from error
    for child in children:
        if not (child / "config.json").is_file():
            yield from _folders(child, seen)


def _load(folder: Path) -> Search:
    tuning = Tuning.of(writable(asdict(Tuning.read(folder))))
    found = (place for place in folder.glob("point-*") if (place / "config.json").is_file())
    places = sorted(found, key=lambda place: (len(place.name), place.name))  # point-999 before point-1000
    return Search(folder, tuning, [_tested(tuning, load_run(place, tuning.command or None)) for place in places])


def _tested(tuning: Tuning, run: Run) -> Tested:
    given = run.config["algorithm"].get("hyperparameters") or {}
    rows = run.rows.astype(object).where(run.rows.notna(), None).to_dict("records")
    score = tuning.rule.score([{str(name): value for name, value in row.items()} for row in rows], run.status)
    return Tested(
        {name: _plain(given.get(name)) for name in tuning.grid}, score, _last_mean(run, tuning.rule.last), run
    )


def _plain(value: Any) -> Any:
    """A value that can be compared and looked up; of a damaged config there may be others."""
    return value if isinstance(value, str | bool) or _is_number(value) else str(value)


def _last_mean(run: Run, last: int) -> float:
    """The run's own metric as a mean over the last rounds; NaN if it did not come to its end."""
    if run.status != "completed" or run.metric not in run.rows:
        return math.nan
    values = run.rows[run.metric]
    late = values.iloc[-last:].dropna()
    values = late if len(late) else values.dropna().iloc[-1:]
    return float(values.mean()) if len(values) else math.nan


def points_table(searches: Sequence[Search]) -> pd.DataFrame:
    """Every point of every search: algorithm, rank, its values, score, metric, rounds done, status and folder."""
    import pandas as pd

    rows = []
    for search in searches:
        for rank, point in enumerate(search.ranked, start=1):
            rows.append(
                {"algorithm": search.algorithm, "rank": rank, **point.values, "score": point.score}
                | {point.run.metric: point.metric, "rounds": len(point.run.rows), "status": point.run.status}
                | {"folder": point.run.path.name}
            )
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Cell:
    """A cell of a heat map: the best of the points there.

    Attributes:
      value: of the metric; NaN if all points there diverged.
      shade: 0 to 1, from the worst to the best of the map; NaN with the value.
      text: all about it in one line.
      best: whether the search's best point is here.
      folder: of the point.
    """

    value: float
    shade: float
    text: str
    best: bool
    folder: Path


@dataclass(frozen=True)
class HeatMap:
    """The metric over two hyper-parameters (Reddi et al. 2021, Figure 2).

    Attributes:
      algorithm: whose.
      metric: a history column.
      higher_is_better: of the metric.
      x, y: the names of the hyper-parameters.
      columns, rows: their values, as text.
      cells: a row for each of `rows`, None where nothing was run.
      others: further hyper-parameters, over which each cell is the best.
      last: rounds that each value is the mean of.
    """

    algorithm: str
    metric: str
    higher_is_better: bool
    x: str
    y: str
    columns: Sequence[str]
    rows: Sequence[str]
    cells: Sequence[Sequence[Cell | None]]
    others: Sequence[str]
    last: int


def heat_map(search: Search) -> HeatMap | None:
    """The map of a grid with two hyper-parameters or more, None for others."""
    grid = {name: values for name, values in search.tuning.grid.items() if len(values) > 1}
    if search.tuning.search != "grid" or len(grid) < 2 or not search.points:
        return None
    y, x = next((pair for pair in AXES if set(pair) <= set(grid)), tuple(grid)[:2])
    (metric, higher), sign = search.judged, 1 if search.judged[1] else -1
    chosen: dict[tuple[Any, Any], Tested] = {}
    for point in search.points:
        place = point.values[x], point.values[y]
        if place not in chosen or _worth(point, sign) > _worth(chosen[place], sign):
            chosen[place] = point
    best = search.best
    if best is not None:
        chosen[best.values[x], best.values[y]] = best
    known = [_value(point) for point in chosen.values() if math.isfinite(_value(point))]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)

    def cell(point: Tested | None) -> Cell | None:
        if point is None:
            return None
        value = _value(point)
        share = 1.0 if high == low else (value - low) / (high - low)
        text = ", ".join(f"{name} {setting(v)}" for name, v in point.values.items()) + f": {point.run.status}"
        return Cell(value, share if higher else 1 - share, text, point is best, point.run.path)

    rows = list(reversed(grid[y]))
    cells = [[cell(chosen.get((a, b))) for a in grid[x]] for b in rows]
    names, others = [setting(a) for a in grid[x]], [name for name in grid if name not in (x, y)]
    return HeatMap(
        search.algorithm,
        metric,
        higher,
        x,
        y,
        names,
        [setting(b) for b in rows],
        cells,
        others,
        search.tuning.rule.last,
    )


@dataclass(frozen=True)
class Profile:
    """The best metric against one hyper-parameter (Reddi et al. 2021, Figure 3), a line an algorithm.

    Attributes:
      name: the hyper-parameter.
      metric: a history column.
      higher_is_better: of the metric.
      lines: by algorithm, (value, best metric over all else) by increasing value; a search without a grid gives a point
        a trial.
      joined: whether the points of a line belong together, as they do on a grid.
    """

    name: str
    metric: str
    higher_is_better: bool
    lines: Mapping[str, Sequence[tuple[float, float]]]
    joined: bool


def profiles(searches: Sequence[Search]) -> list[Profile]:
    """A profile for each hyper-parameter that has three values or more, of all searches that have it together."""
    found: dict[tuple[str, str, bool, bool], dict[str, list[tuple[float, float]]]] = {}
    for search in searches:
        metric, higher = search.judged
        for name, values in search.tuning.grid.items():
            is_grid = search.tuning.search == "grid"
            if not all(map(_is_number, values)) or (is_grid and len(values) < 3):
                continue
            line = _line(search, name, 1 if higher else -1, is_grid)
            if len(line) > 1:
                label = search.algorithm
                lines = found.setdefault((name, metric, higher, is_grid), {})
                while label in lines:
                    label += "′"
                lines[label] = line
    return [Profile(*key[:3], lines, key[3]) for key, lines in found.items()]


def _line(search: Search, name: str, sign: int, best_only: bool) -> list[tuple[float, float]]:
    points = [(float(p.values[name]), _value(p)) for p in search.points if _is_number(p.values[name])]
    points = [(at, value) for at, value in points if math.isfinite(value)]
    if not best_only:
        return sorted(points)
    best: dict[float, float] = {}
    for at, value in points:
        best[at] = value if at not in best or sign * value > sign * best[at] else best[at]
    return sorted(best.items())


def _value(point: Tested) -> float:
    return point.metric if point.run.metric != "train_loss" else point.score


def _worth(point: Tested, sign: int) -> float:
    value = _value(point)
    return sign * value if math.isfinite(value) else -math.inf


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100
