"""The observers of a run: the run folder, trackers, the progress bar."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedoptax._progress import Update
from fedoptax.algorithm import Tree
from fedoptax.distributed import broadcast
from fedoptax.engine.client_states import OnHost
from fedoptax.experiments.rounds import Rounds
from fedoptax.experiments.selection import Watch
from fedoptax.storage.checkpoint import save_clients
from fedoptax.storage.folder import RunFolder, Status, read_summary
from fedoptax.storage.history import History, Row
from fedoptax.trackers import Tracker, notify

NOTED_ROWS = 1000  # of the history that the progress bar's note looks at
ByClient = Mapping[str, np.ndarray] | None
"""Each client's metrics, (clients,), if they were measured."""


class RunEnd(NamedTuple):
    """How a run ended: its status, one line about it, the final parameters, and further entries of summary.json."""

    status: Status
    message: str | None
    params: Tree
    notes: Mapping[str, Any]


class Observer:
    """Follows a run; the default does nothing."""

    def after_rounds(self, rows: list[Row], by_client: ByClient) -> None:
        """Observe finished rounds."""

    def save_if_due(self) -> None:
        """Write a checkpoint if it is time."""

    def at_end(self, end: RunEnd) -> None:
        """Observe the end of the run."""


@dataclass(frozen=True)
class FolderWriter(Observer):
    """Writes history, checkpoints and summary to the run folder."""

    folder: RunFolder
    rounds: Rounds
    history: History
    watch: Watch

    def after_rounds(self, rows: list[Row], by_client: ByClient) -> None:
        """Write the rows."""
        self.folder.add(rows, by_client)

    def save_if_due(self) -> None:
        """Write a checkpoint if one is due."""
        is_due = self.folder.is_due()
        if broadcast(is_due) if isinstance(self.rounds.clients, OnHost) else is_due:
            self._save()
            self.rounds.saved()

    def at_end(self, end: RunEnd) -> None:
        """Write a checkpoint, the summary and the parameters."""
        self._save()
        notes = {**self.watch.notes(), **self.rounds.notes(len(self.history)), **end.notes}
        self.folder.end(end.status, end.message, end.params, self.rounds.compile_seconds, notes)

    def _save(self) -> None:
        state, watch = saved_state(self.rounds, self.watch), self.watch
        self.folder.save(state, self.rounds.clients, watch.best_params, watch.notes())


@dataclass(frozen=True)
class CheckpointShare(Observer):
    """Writes the states of a process's clients to the leader's checkpoints."""

    clients: OnHost

    def save_if_due(self) -> None:
        """Write them if the leader says so."""
        if broadcast(False):
            save_clients(self.clients)

    def at_end(self, end: RunEnd) -> None:
        """Write them."""
        save_clients(self.clients)


@dataclass(frozen=True)
class Trackers(Observer):
    """Hands rows, and the summary in the folder, to trackers."""

    trackers: list[Tracker]
    folder: Path

    def after_rounds(self, rows: list[Row], by_client: ByClient) -> None:
        """Hand on the rows."""
        if rows:
            notify(self.trackers, lambda tracker: tracker.rows(rows))

    def at_end(self, end: RunEnd) -> None:
        """Hand on the summary."""
        summary = read_summary(self.folder)
        notify(self.trackers, lambda tracker: tracker.end(summary))


@dataclass(frozen=True)
class ProgressBar(Observer):
    """Moves the progress bar, with the last loss, the metric and the privacy spent."""

    update: Update
    history: History
    metric: str | None

    def after_rounds(self, rows: list[Row], by_client: ByClient) -> None:
        """Move the bar."""
        recent = History(self.history.rows[-NOTED_ROWS:])  # it is called often
        names = [name for name in ("train_loss", self.metric, "epsilon") if name and recent.last(name) is not None]
        self.update(len(self.history), ", ".join(f"{name} {recent.last(name):.4g}" for name in names))


def saved_state(rounds: Rounds, watch: Watch) -> Tree:
    """Return the part of checkpoints besides client states: the server's state, and the best parameters if saved."""
    return (rounds.server, watch.saved_params) if watch.keeps else rounds.server
