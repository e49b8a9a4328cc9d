"""The best round of a run and the best point of a search, and early stopping."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedoptax.algorithm import Tree
from fedoptax.engine.evaluation import choose_split, column_names, describe_metrics, evaluation_data, primary_metric
from fedoptax.engine.options import RunOptions, is_evaluated, parse_keep, parse_stop_after
from fedoptax.errors import UsageError, check_choice, check_int
from fedoptax.storage.folder import ENDED
from fedoptax.storage.history import Row
from fedoptax.tasks.metrics import Column, higher_is_better
from fedoptax.tasks.task import Task

LAST = 100  # rounds that the rule of Reddi et al. 2021 (Section 5) averages over


class BestRound(NamedTuple):
    """The best evaluated round by `metric`, a column of the history, and its value."""

    round: int
    metric: str
    value: float


@dataclass
class Selection:
    """The best evaluated round so far, the earliest if several are equal, and the number of evaluations after it."""

    metric: str
    higher_is_better: bool
    best: BestRound | None = None
    waited: int = 0

    def add(self, row: Row) -> None:
        """Observe an evaluated round; a value that is not finite is never the best."""
        value, sign = row.get(self.metric), 1 if self.higher_is_better else -1
        if value is not None and (self.best is None or sign * value > sign * self.best.value):
            self.best, self.waited = BestRound(row["round"], self.metric, value), 0
        else:
            self.waited += 1


@dataclass
class Watch:
    """What a run checks at each evaluation, made by `make_watch`; the default checks nothing."""

    is_evaluated: Callable[[int], bool] = bool  # of a round
    choosing: Selection | None = None  # by the metric of `keep`, else the default; None where nothing is evaluated
    keeps: bool = False  # whether the parameters of that round are saved
    saved_params: Tree = None  # these, as NumPy arrays; before the first evaluation the initial ones, for the form
    stopping: Selection | None = None  # by the metric of `stop_after`; None if the run never stops early
    patience: int = 0  # evaluations without a better one after which it does

    @property
    def best(self) -> BestRound | None:
        """The best round so far."""
        return None if self.choosing is None else self.choosing.best

    @property
    def best_params(self) -> Tree | None:
        """The parameters of the best round so far, if they are saved."""
        return self.saved_params if self.keeps and self.best is not None else None

    def add(self, rows: Sequence[Row]) -> None:
        """Observe finished rounds, in order."""
        for selection in filter(None, (self.choosing, self.stopping)):
            for row in rows:
                is_extra = selection is self.choosing and row.get(selection.metric) is not None  # a former last round
                is_due = was_evaluated(row) and self.is_evaluated(row["round"])  # resumed, `eval_every` may differ
                if is_extra or is_due:
                    selection.add(row)

    def keep(self, done: int, params: Callable[[], Tree]) -> None:
        """Keep the parameters after `done` rounds, if that round is the best or the run begins."""
        if self.keeps and done == (0 if self.best is None else self.best.round):
            self.saved_params = jax.tree.map(np.array, params())  # a copy: the program donates its buffers

    def saved_state(self, server: Tree) -> Tree:
        """Return what checkpoints hold besides client states: the server's state, and the best parameters, or None."""
        return (server, self.saved_params) if self.keeps else server

    def stop_message(self) -> str | None:
        """Return one line if the run should stop early; a `UsageError` if the metric has never been a number."""
        if self.stopping is None or self.stopping.waited < self.patience:
            return None
        best, times = self.stopping.best, "1 evaluation" if self.patience == 1 else f"{self.patience} evaluations"
        if best is None:
            raise UsageError(f"stop_after needs finite values, and {self.stopping.metric} had none in {times}")
        return f"{best.metric} has not improved in {times} since round {best.round}, when it was {best.value:.4g}"

    def notes(self) -> dict[str, Any]:
        """Return the entries of summary.json."""
        return {} if self.best is None else {"best": self.best._asdict()}


def was_evaluated(row: Row) -> bool:
    """Return whether a round has a value of any metric on held-out examples."""
    return any(row[name] is not None for name in row if Column.parse(name) and name != "train_loss")


def make_watch(task: Task, options: RunOptions) -> Watch:
    """Make the watch for `keep` and `stop_after`; a metric that the task does not evaluate is a `UsageError`."""
    if options.client_metrics and choose_split(task) is None:
        raise UsageError(f"client_metrics needs test_owners or validation_fraction, and task '{task.name}' has neither")
    due = partial(is_evaluated, last=options.rounds, evaluations=options.evaluations)
    watch = Watch(due, keeps=options.keep is not None)
    if options.keep is not None or evaluated_columns(task):
        watch.choosing = _select(task, "keep", parse_keep(options.keep or "best"))
    if options.stop_after is not None:
        watch.patience, metric = parse_stop_after(options.stop_after)
        watch.stopping = _select(task, "stop_after", metric or parse_keep(options.keep or "best"))
    return watch


def is_higher_better(task: Task, column: str) -> bool:
    """Return whether more is better in a column of a task's history."""
    return higher_is_better(column, {name: one.higher_is_better for name, one in describe_metrics(task).items()})


def _select(task: Task, option: str, metric: str | None) -> Selection:
    """Select by a column of the history, or a metric (None: the primary one) on validation, or else test examples."""
    columns = evaluated_columns(task)
    if not columns:
        raise UsageError(f"{option} needs test or validation examples, and task '{task.name}' has none")
    metric = primary_metric(task) if metric is None else metric
    named = [metric, *(str(Column(split, metric)) for split in ("val", "test"))]
    column = next((name for name in named if name in columns), metric)
    if metric.startswith("val_") and task.validation is None:
        raise UsageError(f"{option} by {metric} needs validation examples: use `validation_fraction`")
    check_choice(f"{option} metric", column, columns)
    return Selection(column, is_higher_better(task, column))


@lru_cache(maxsize=4)
def evaluated_columns(task: Task) -> tuple[str, ...]:
    """Return the columns that evaluations add to the history of a task's runs."""
    params = jax.eval_shape(task.init, jax.random.key(0))
    return tuple(name for name in column_names(task, params, evaluation_data(task)) if Column.parse(name))


class Trial(NamedTuple):
    """A point that was run: the values that were searched, its score by the rule (NaN if it diverged), and its run."""

    values: Mapping[str, Any]
    score: float
    status: str
    folder: Path


@dataclass(frozen=True)
class Rule:
    """How points are ranked: by the mean of `metric`, a column of the history, over the `last` rounds.

    Reddi et al. 2021 choose by the training loss of the last 100, so that test examples have no say.
    """

    metric: str = "train_loss"
    last: int = LAST
    higher_is_better: bool = False

    def score(self, rows: Sequence[Row], status: str) -> float:
        """Return the mean of the metric over the last rounds.

        It is NaN for a run that did not end or never measured it, and if it was not finite in one of these rounds.
        """
        if status not in ENDED or not rows:
            return math.nan
        measured = [
            i for i, row in enumerate(rows)
            if row.get(self.metric) is not None
            or (self.metric != "train_loss" and (was_evaluated(row) or row is rows[-1]))
        ]  # fmt: skip
        late = [i for i in measured if i >= len(rows) - self.last]
        used: list[Any] = [rows[i].get(self.metric) for i in late or measured[-1:]]  # if no late one, the last
        return math.nan if None in used or not used else math.fsum(used) / len(used)

    def ranked(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the points, best first, the earlier one first where two are equal, and those without a score last."""
        sign = -1 if self.higher_is_better else 1
        return sorted(trials, key=lambda trial: (math.isnan(trial.score), sign * trial.score))

    def best(self, trials: Iterable[Trial]) -> Trial | None:
        """Return the point with the best score; None if none has a score."""
        return next((trial for trial in self.ranked(trials) if math.isfinite(trial.score)), None)


def rule_for(task: Task, metric: str, last: int | None, rounds: int) -> Rule:
    """Return the rule by a metric of runs on a task; `last` is by default `LAST`, but at most a tenth of all rounds."""
    check_choice("select", metric, ["train_loss", *evaluated_columns(task)])
    last = max(1, min(LAST, rounds // 10)) if last is None else check_int("last", last, 1, rounds)
    return Rule(metric, last, is_higher_better(task, metric))
