"""The result of a run, and the errors that carry the result of one that diverged or was interrupted."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax._progress import html_table
from fedoptax.algorithm import Tree
from fedoptax.engine.client_states import ClientStates
from fedoptax.errors import RunError, UsageError
from fedoptax.experiments.selection import BestRound
from fedoptax.storage.folder import Status
from fedoptax.storage.history import History
from fedoptax.storage.model import TrainedModel, model_of
from fedoptax.tasks.task import Task


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes:
      history: one row per round.
      params: the final parameters; after a divergence the last finite ones.
      state: the server's state.
      clients: the clients' states: an `OnDevice` (`.tree` is stacked over all N, `()` if clients keep nothing) or an
        `OnHost` (`.of(ids)` gives those of some clients).
      status: `"completed"`, `"stopped early"` (by `stop_after`), `"interrupted"` or `"diverged"`, a `Status`.
      message: one line about a status other than completed, else None.
      folder: where it was written, or None.
      hyperparameters: those passed to the algorithm's constructor.
      task: for `predict`; None after unpickling.
      best: the best evaluated round (`round`, `metric`, `value`), by the metric of `keep`; None if none was evaluated.
      best_params: its parameters, with `keep`; else None.
      personalized: the results of `personalize`, as in summary.json.
      initial: if evaluated, the metrics before the first round, by column.
      signal: the number of the signal that asked to stop (2: Ctrl-C), else 0; it may come in the last round.
    """

    history: History
    params: Tree
    state: Tree
    clients: ClientStates
    status: Status
    message: str | None = None
    folder: Path | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    signal: int = 0
    task: Task | None = field(default=None, repr=False)
    best: BestRound | None = None
    best_params: Tree | None = field(default=None, repr=False)
    personalized: dict[str, Any] | None = None
    initial: dict[str, Any] | None = None

    @cached_property
    def model(self) -> TrainedModel:
        """The model with the best parameters if saved, else the final ones; a `UsageError` without a `predict`."""
        if self.task is None:
            raise UsageError("result has no model: it is a copy of what the run returned, or each client has its own")
        return model_of(self.task, self.params if self.best_params is None else self.best_params)

    def predict(self, x: Any) -> np.ndarray:
        """Return the most probable class of each new example, or the model's outputs; see `TrainedModel.predict`."""
        return self.model.predict(x)

    def _repr_html_(self) -> str:
        what = f"{self.task.name}, {self.status}" if self.task else self.status
        return html_table(self.history.rows[-5:], f"{what}: the last of {len(self.history)} rounds")

    def __getstate__(self) -> dict[str, Any]:  # a task's functions cannot be pickled
        return {name: value for name, value in vars(self).items() if name != "model"} | {"task": None}


class DivergedError(RunError):
    """A run's state or loss became NaN or infinite. `result` is the run up to the last finite state."""

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:  # a process pool sends errors home by pickle
        return type(self), (str(self), self.result)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP stopped a run after a whole round.

    `result` is the run so far, and its `signal` says which; with a folder it can be resumed.
    """

    def __init__(self, result: RunResult) -> None:
        super().__init__(result.message or "stopped")
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.result,)


def describe_end(
    status: Status, reason: str | None, done: int, total: int, label: str, seed: int, is_saved: bool
) -> tuple[Status, str | None]:
    """Return the status of a run that ended, and one line about it."""
    match status:
        case Status.RUNNING:
            return Status.COMPLETED, None
        case Status.INTERRUPTED:
            return status, reason or f"stopped after round {done} of {total}"
        case Status.STOPPED_EARLY:
            return status, f"stopped early after round {done} of {total}: {reason}"
    why = reason or "loss or state is not finite"
    saved = f"; the state after round {done} is saved" if is_saved else ""
    return status, f"{label} diverged in round {done + 1} (seed {seed}): {why}{saved}"


def raise_unless_completed(result: RunResult) -> RunResult:
    """Return a run that completed, or stopped early; raise `DivergedError` or `Interrupted` for another."""
    if result.status == Status.DIVERGED:
        raise DivergedError(str(result.message), result)
    if result.status == Status.INTERRUPTED:
        raise Interrupted(result)
    return result
