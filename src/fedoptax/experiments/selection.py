"""The best evaluated round of a run, whose parameters may be kept, and when a run that no longer improves stops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from fedoptax.algorithm import Tree
from fedoptax.engine.evaluation import PARTS, column_names, evaluation_data, part_by_client, primary_metric
from fedoptax.engine.options import RunOptions, parse_keep, parse_stop_after
from fedoptax.errors import UsageError, check_choice
from fedoptax.storage.history import Row, higher_is_better
from fedoptax.tasks.task import Task


class BestRound(NamedTuple):
    """The best evaluated round by a column of the history, `metric`, and its value there."""

    round: int
    metric: str
    value: float


@dataclass
class Selection:
    """The best evaluated round so far, the first of equals, and the number of evaluations after it."""

    metric: str
    higher_is_better: bool
    best: BestRound | None = None
    waited: int = 0

    def add(self, row: Row) -> None:
        """Take note of a round."""
        if (value := row.get(self.metric)) is None:
            return
        sign = 1 if self.higher_is_better else -1
        if self.best is None or sign * value > sign * self.best.value:
            self.best, self.waited = BestRound(row["round"], self.metric, value), 0
        else:
            self.waited += 1


@dataclass
class Watch:
    """What a run looks at while it goes on, made by `make_watch`; the default looks at nothing.

    Attributes:
      choosing: the best round by the metric of `keep`, else the default; None where nothing is evaluated.
      keeps: whether the parameters of that round are kept.
      kept: these, as NumPy arrays; before the first evaluation the initial ones, for the form.
      stopping: the best round by the metric of `stop_after`; None if the run never stops early.
      patience: evaluations without a better one after which it does.
    """

    choosing: Selection | None = None
    keeps: bool = False
    kept: Tree = None
    stopping: Selection | None = None
    patience: int = 0

    @property
    def best(self) -> BestRound | None:
        """The best round so far."""
        return None if self.choosing is None else self.choosing.best

    @property
    def best_params(self) -> Tree | None:
        """The parameters of the best round so far, if they are kept."""
        return self.kept if self.keeps and self.best is not None else None

    def add(self, rows: Sequence[Row]) -> None:
        """Take note of rounds that are done, in order."""
        for selection in filter(None, (self.choosing, self.stopping)):
            for row in rows:
                selection.add(row)

    def keep(self, done: int, params: Callable[[], Tree]) -> None:
        """Keep the parameters after `done` rounds, if that round is the best or the run begins."""
        if self.keeps and done == (0 if self.best is None else self.best.round):
            self.kept = jax.tree.map(np.array, params())  # a copy: the program donates its buffers

    def stop_message(self) -> str | None:
        """Return one line if the run should stop early, after the rounds that it was told of."""
        if self.stopping is None or self.stopping.best is None or self.stopping.waited < self.patience:
            return None
        best, times = self.stopping.best, "1 evaluation" if self.patience == 1 else f"{self.patience} evaluations"
        return f"{best.metric} has not improved in {times} since round {best.round}, when it was {best.value:.4g}"

    def notes(self) -> dict[str, Any]:
        """Return what summary.json says of it."""
        return {} if self.best is None else {"best": self.best._asdict()}


def make_watch(task: Task, options: RunOptions) -> Watch:
    """Return what `keep` and `stop_after` ask for; all that is done at evaluations is checked.

    Raises:
      UsageError: the task has no such metric, or evaluates nothing.
    """
    if options.client_metrics and part_by_client(task) is None:
        raise UsageError(
            f"client_metrics needs test_owners or a validation fraction, and task '{task.name}' has neither"
        )
    watch = Watch(keeps=options.keep is not None)
    if options.keep is not None or _evaluated_columns(task):
        watch.choosing = _select(task, "keep", parse_keep(options.keep or "best"))
    if options.stop_after is not None:
        watch.patience, metric = parse_stop_after(options.stop_after)
        watch.stopping = _select(task, "stop_after", metric)
    return watch


def is_higher_better(task: Task, column: str) -> bool:
    """Return whether more is better in a column of a task's history."""
    is_primary = column in [f"{part}_{task.primary_metric}" for part in PARTS]
    return task.higher_is_better if is_primary else higher_is_better(column)


def _select(task: Task, option: str, metric: str | None) -> Selection:
    """Select by a column of the history, or a metric (None: the primary one) on validation, or else test examples."""
    columns = _evaluated_columns(task)
    if not columns:
        raise UsageError(f"{option} needs test or validation examples, and task '{task.name}' has none")
    if metric is None:
        part = "val" if task.validation is not None else "test"
        found = [name.removeprefix(f"{part}_") for name in columns if name.startswith(f"{part}_")]
        metric = primary_metric(task, found)
    column = next((name for name in (metric, f"val_{metric}", f"test_{metric}") if name in columns), metric)
    check_choice(f"{option} metric", column, columns)
    return Selection(str(column), is_higher_better(task, str(column)))


@lru_cache(maxsize=4)
def _evaluated_columns(task: Task) -> tuple[str, ...]:
    params = jax.eval_shape(task.init, jax.random.key(0))
    return tuple(column_names(task, params, evaluation_data(task)))
