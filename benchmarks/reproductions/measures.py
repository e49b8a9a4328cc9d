"""What the pages say of histories: measures of runs, tests between methods, and the table of a step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from fedoptax.report.load import Run
from fedoptax.report.paired import LEAST_PAIRS, LEVEL, POINT, adjust_by_holm, compare_seeds
from histories import Step

NAN = math.nan
TARGET_SHARE = 0.95  # of the highest value, where a step names no target
EARLY_SHARE = 5  # the first fifth of the rounds


@dataclass(frozen=True)
class Measure:
    """A number of a run: a column's last or best value, its mean over some rounds, or the rounds until a target.

    Attributes:
      column: of the history.
      higher: whether more of it is better.
      rounds: first and last round of a mean, both included; negative ones count from the end, -1 being the last round.
        (0, 0) is the evaluation before the first round (`--evaluate-start`).
      target: the value to be reached, by the mean of the last `window` rounds that have one.
      best: whether it is the best value of all rounds.
      cost: the column that is summed up to the target, such as virtual_seconds; None counts rounds.
    """

    column: str
    higher: bool
    rounds: tuple[int, int] | None = None
    target: float | None = None
    window: int = 1
    best: bool = False
    cost: str | None = None

    @property
    def is_share(self) -> bool:
        """Whether it is a share, which is written in percent and compared in points."""
        return "accuracy" in self.column and self.target is None

    @property
    def prefers_higher(self) -> bool:
        """Whether more of the measure is better: of rounds to a target, fewer are."""
        return self.higher and self.target is None

    def of(self, run: Run) -> float:
        """Measure a run: NaN if it has no such value; infinite if it never reaches the target."""
        if self.column not in run.rows:
            return NAN
        if self.rounds == (0, 0):
            return float(run.summary.get("initial", {}).get(self.column, NAN))
        values = run.rows[self.column].to_numpy(float, na_value=NAN)
        places = run.rows["round"].to_numpy()[~np.isnan(values)]
        values = values[~np.isnan(values)]
        if self.target is not None:
            means = pd.Series(values).rolling(self.window).mean().to_numpy() if self.window > 1 else values
            reached = places[means >= self.target if self.higher else means <= self.target]
            return self.cost_of(run, float(reached[0])) if len(reached) else math.inf
        if self.rounds is None:
            ended = run.is_complete and len(values) > 0
            best = max if self.higher else min
            return float(best(values) if self.best else values[-1]) if ended else NAN
        first, last = self._window(run)
        chosen = values[(first <= places) & (places <= last)]
        return float(chosen.mean()) if len(run.rows) >= last and len(chosen) else NAN

    def cost_of(self, run: Run, end: float = math.inf) -> float:
        """Return the cost of the rounds up to `end`, by default of all."""
        if self.cost is None:
            return min(end, float(run.config["rounds"]))
        return float(run.rows[self.cost][run.rows["round"] <= end].sum())

    def _window(self, run: Run) -> tuple[int, int]:
        assert self.rounds is not None
        total = int(run.config["rounds"])
        first, last = (place + total + 1 if place < 0 else place for place in self.rounds)
        return first, last

    def words(self, run: Run) -> str:
        """Name the measure, and how many evaluations it is a mean of."""
        name = self.column.replace("_", " ").replace("train", "training")
        if self.target is not None:
            smooth = f" (mean of {self.window} rounds)" if self.window > 1 else ""
            aim = f"{100 * self.target:.3g} percent" if "accuracy" in self.column else f"{self.target:g}"
            return f"{(self.cost or 'rounds').replace('_', ' ')} to a {name} of {aim}{smooth}"
        if self.rounds is None:
            return f"best {name} of all rounds" if self.best else f"{name} after the last round"
        first, last = self._window(run)
        if first == last:
            return f"{name} after round {first}"
        count = run.rows.set_index("round")[self.column].loc[first:last].count() if self.column in run.rows else 0
        return f"{name}, mean of rounds {first:,} to {last:,} ({count} evaluation{'s' if count != 1 else ''})"


def measure_of(step: Step, options: Mapping[str, Any]) -> Measure:
    """Make the measure that a recipe's options name: `column`, `rounds`, `target`, `window`, `best`, `cost`."""
    column = options.get("column", step.any_run.metric)
    rounds = tuple(options["rounds"]) if "rounds" in options else None
    higher = step.any_run.is_higher_better(column)
    more = {name: options[name] for name in ("target", "window", "best", "cost") if name in options}
    return Measure(column, higher, rounds, **more)


def take(step: Step, algorithm: str, measure: Measure) -> dict[int, float]:
    """Measure an algorithm's runs by seed, without those that have no such value."""
    values = {seed: measure.of(run) for seed, run in step.runs.get(algorithm, {}).items()}
    return {seed: value for seed, value in values.items() if not math.isnan(value)}


@dataclass
class Test:
    """Two methods by seeds: how far `one` is better than `other`, or that both are level.

    `difference` is positive where `one` is better. Runs that never reach a target count with the cost of all rounds,
    so that a difference is a bound if the method that is behind has such a run; if the one that is ahead has one, a
    sign test counts never as the worst, and the difference has a sign alone (±∞).
    """

    one: str
    other: str
    measure: Measure
    pairs: int
    difference: float
    low: float
    high: float
    p: float
    equivalence: bool = False
    is_bound: bool = False  # the other method has runs that never reach the target
    decided: str = ""  # where nothing random is to be tested

    @property
    def kind(self) -> str:
        """Which test it was, in brackets."""
        is_sign = self.low == self.high or math.isnan(self.low)
        return "" if math.isnan(self.p) else " (sign)" if is_sign else " (TOST)" if self.equivalence else " (t)"

    @property
    def outcome(self) -> str:
        """What the test, with its corrected p-value, says."""
        if self.decided:
            return self.decided
        if self.pairs < LEAST_PAIRS:
            close = abs(self.difference) < POINT if self.equivalence else self.difference > 0
            return "untested, in line" if close else "untested, against" if self.pairs else "no data"
        if self.p >= LEVEL:
            return "undecided"
        return "holds" if self.equivalence or self.difference > 0 else "contradicted"


def compare(
    one: str, other: str, step: Step, measure: Measure, equivalence: bool = False, other_step: Step | None = None,
    other_measure: Measure | None = None,
) -> Test:  # fmt: skip
    """Compare two algorithms of a step, or of two, by one measure or by two, over the seeds they have in common."""
    sign = 1 if measure.prefers_higher else -1
    other_step = other_step or step
    one_label, other_label = (
        f"{name} (diverged)" if any(run.summary["status"] == "diverged" for run in found.values()) else name
        for name, found in ((one, step.runs.get(one, {})), (other, other_step.runs.get(other, {})))
    )
    mine, others = take(step, one, measure), take(other_step, other, other_measure or measure)
    first, second = (
        {seed: sign * (measure.cost_of(runs[seed]) if math.isinf(value) else value) for seed, value in found.items()}
        for runs, found in ((step.runs.get(one, {}), mine), (other_step.runs.get(other, {}), others))
    )
    paired = compare_seeds(first, second)
    ahead, behind = (mine, others) if paired.difference > 0 else (others, mine)
    p = paired.p_within_point if equivalence else paired.p_differs
    is_bound = any(map(math.isinf, behind.values()))
    test = Test(one_label, other_label, measure, *paired[:4], p, equivalence, is_bound)
    if any(map(math.isinf, ahead.values())):  # what never arrives is not ahead, however cheap its rounds are
        signs = [
            np.sign(others[seed] - mine[seed]) for seed in mine.keys() & others.keys() if mine[seed] != others[seed]
        ]
        is_tested = paired.pairs >= LEAST_PAIRS
        test.difference, test.low, test.high = math.copysign(math.inf, sum(signs)) if sum(signs) else 0.0, NAN, NAN
        test.p = 1.0 if is_tested else NAN
        if len(signs) >= LEAST_PAIRS:
            test.p = float(stats.binomtest(signs.count(1), len(signs)).pvalue)
        test.decided = "undecided" if is_tested and not sum(signs) else ""
    elif not paired.pairs and (one != one_label) != (other != other_label):
        test.decided = "untested, against" if equivalence or one != one_label else "untested, in line"
    return test


def correct_family(tests: Sequence[Test], others: Sequence[float] = ()) -> None:
    """Correct the p-values of one family of tests, with `others`, by Holm's method; what was not tested is left out."""
    for test, p in zip(tests, adjust_by_holm([*(test.p for test in tests), *others])):
        test.p = p


def rank(step: Step, algorithms: Sequence[str], measure: Measure) -> list[str]:
    """Sort algorithms by their mean, the best first, those without a value last."""
    means = {name: _mean(take(step, name, measure).values()) for name in algorithms}
    sign = -1 if measure.prefers_higher else 1
    return sorted(algorithms, key=lambda name: (math.isnan(means[name]), sign * means[name]))


@dataclass(frozen=True)
class Row:
    """A method in a step's table."""

    name: str
    values: Mapping[int, float]
    tried: int
    diverged: int
    early: float
    cost: Mapping[str, float]
    behind: Test | None
    within: Test | None
    above: Test | None = None  # of the method that others are held against, if the step names one
    ahead: Test | None = None  # the same over the early rounds

    @property
    def mean(self) -> float:
        """Mean over the seeds that have a value."""
        return _mean(self.values.values())

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds, n − 1 below; NaN for one."""
        return float(np.std(list(self.values.values()), ddof=1)) if len(self.values) > 1 else NAN


@dataclass(frozen=True)
class Table:
    """A step's methods, best first, each compared with the first."""

    step: Step
    measure: Measure
    early: Measure
    target: Measure
    rows: Sequence[Row]

    @cached_property
    def tested(self) -> list[Row]:
        """The rows behind the first that a test compared with it."""
        return [row for row in self.rows[1:] if row.behind and row.behind.pairs >= LEAST_PAIRS]

    @property
    def behind(self) -> list[str]:
        """The methods that are significantly behind the first."""
        return [row.name for row in self.tested if row.behind and row.behind.outcome == "holds"]

    @property
    def level(self) -> list[str]:
        """The methods that are significantly within a point of the first."""
        return [row.name for row in self.tested if row.within and row.within.outcome == "holds"]

    @property
    def weights(self) -> str:
        """How uploads are weighted in the mean: alike for all, or by method."""
        found = {name: next(iter(runs.values())).config["weighting"] for name, runs in self.step.runs.items() if runs}
        if len(set(found.values())) == 1:
            common = next(iter(found.values()))
            first = {name: next(iter(runs.values())).config for name, runs in self.step.runs.items() if runs}
            own = [name for name, config in first.items() if config.get("paper_weighting") not in (None, common)]
            return f"{common} for all methods" + (f" (not in the papers of {', '.join(own)})" if own else "")
        return "not the same for all: " + ", ".join(f"{name} {word}" for name, word in found.items())

    @property
    def is_best(self) -> bool:
        """Whether every other method is significantly behind the first."""
        return len(self.behind) == len(self.rows) - 1 > 0

    def against(self, kind: str, outcome: str) -> list[str]:
        """Name the methods whose comparison with that of the step's `against` ended so, at the end or early."""
        return [row.name for row in self.rows if (test := getattr(row, kind)) and test.outcome == outcome]

    def row(self, name: str) -> Row:
        """Return a method's row."""
        return next(row for row in self.rows if row.name == name)

    def edges(self, name: str) -> list[str]:
        """Name the hyper-parameters of a method whose best value is at an end of what was searched."""
        search = self.step.about["searches"].get(name, {"grid": {}, "found": {}})
        return edges(search["grid"], search["found"])


def tabulate(step: Step, options: Mapping[str, Any]) -> Table:
    """Tabulate a comparison, by the measure that its options name (`rounds`, `column`) and the rounds to `target`."""
    measure = measure_of(step, {name: options[name] for name in ("rounds", "column", "best") if name in options})
    total = int(step.any_run.config["rounds"])
    early = measure_of(step, {"rounds": [1, options.get("early", max(1, total // EARLY_SHARE))]})
    order = rank(step, list(step.runs), measure)
    first = take(step, order[0], measure)
    aim = _mean(first.values())
    aim = options.get("target", aim * TARGET_SHARE if measure.higher else aim / TARGET_SHARE)
    target = Measure(measure.column, measure.higher, target=float(f"{aim:.3g}"))
    rows, tests = [], []
    for name in order:
        behind = within = None
        if name != order[0]:
            behind = compare(order[0], name, step, measure)
            within = compare(order[0], name, step, measure, True) if measure.is_share else None
            tests += [behind, *([within] if within else [])]
        values = take(step, name, measure)
        earlies = take(step, name, early).values()
        statuses = [run.summary["status"] for run in step.runs[name].values()]
        base = options.get("against", name)
        above = compare(name, base, step, measure) if name != base else None
        ahead = compare(name, base, step, early) if name != base else None
        cost = cost_to(step.runs[name], target)
        counts = len(statuses), statuses.count("diverged")
        rows.append(Row(name, values, *counts, _mean(earlies), cost, behind, within, above, ahead))
    # the values choose the first row, so the differences between the others are in the family, as in reports
    between = [compare_seeds(a.values, b.values).p_differs for a, b in combinations(rows[1:], 2)]
    correct_family([test for test in tests if not test.equivalence], between)
    correct_family([test for test in tests if test.equivalence])
    return Table(step, measure, early, target, rows)


def correct_leads(tables: Sequence[Table]) -> None:
    """Correct the comparisons with the steps' `against`: over all tables one family at the end, and one early."""
    for kind in ("above", "ahead"):
        correct_family([test for table in tables for row in table.rows if (test := getattr(row, kind))])


def in_several(tables: Mapping[str, Table], kind: str) -> dict[str, list[str]]:
    """Name the methods that are significantly above FedAvg in several tables, with these, and below it in none.

    Below it is a method with an interval below 0, which is not corrected: a correction must not hide harm.
    """
    above = {name: table.against(kind, "holds") for name, table in tables.items()}
    tests = [(row.name, getattr(row, kind)) for table in tables.values() for row in table.rows]
    below = {method for method, test in tests if test and test.high < 0}
    found = {method: [name for name in above if method in above[name]] for names in above.values() for method in names}
    return {method: names for method, names in found.items() if len(names) > 1 and method not in below}


_COSTS = ("bytes_up", "bytes_down", "virtual_seconds")


def cost_to(runs: Mapping[int, Run], target: Measure) -> dict[str, float]:
    """Return what it takes to the target, as medians over seeds: rounds, bytes, gradients, virtual seconds."""
    found: dict[str, list[float]] = {name: [] for name in ("rounds", "bytes", "gradients", "virtual")}
    for run in runs.values():
        end = target.of(run)
        count = int((run.rows["round"] <= end).sum())
        sums = [run.rows[name][:count].sum() if name in run.rows else NAN for name in _COSTS]
        costs = {
            "rounds": end,
            "bytes": float(sums[0] + sums[1]),
            "gradients": run.gradients_per_round * end,
            "virtual": float(sums[2]),
        }
        for name, cost in costs.items():
            found[name].append(cost if math.isfinite(end) else math.inf if end == end else NAN)
    return {name: float(np.median(costs)) if costs else NAN for name, costs in found.items()}


def best_by(step: Step, name: str) -> list[tuple[dict[str, Any], float]]:
    """Return the best point of a search for each value of a hyper-parameter."""
    best: dict[Any, tuple[dict[str, Any], float]] = {}
    for values, score in step.scores:
        best.setdefault(values[name], (values, score))
    return [best[value] for value in sorted(best, key=lambda value: (isinstance(value, str), value))]


def edges(grid: Mapping[str, Sequence[Any]], found: Mapping[str, Any]) -> list[str]:
    """Name the hyper-parameters whose best value is at an end of the numbers or schedules that were searched."""
    ends = {}
    for name, values in grid.items():
        if len(values) > 1 and all(isinstance(value, float) for value in values):
            ends[name] = min(values), max(values)
        elif len(values) > 1 and all(str(value).endswith(")") for value in values):
            ends[name] = values[0], values[-1]
    return [name for name, pair in ends.items() if found.get(name) in pair]


def _mean(values: Any) -> float:
    values = list(values)
    return float(np.mean(values)) if values else NAN
