"""What follows a run: its folder with the trackers, and the progress bar."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedoptax._files import pack_arrays, write_atomically, write_json
from fedoptax.algorithm import Tree
from fedoptax.distributed import broadcast
from fedoptax.engine.client_states import OnHost
from fedoptax.experiments.record import Record
from fedoptax.experiments.rounds import Rounds
from fedoptax.experiments.selection import Watch
from fedoptax.storage.checkpoint import save_checkpoint, save_clients
from fedoptax.storage.folder import Status, named_leaves, read_summary
from fedoptax.storage.history import ClientsFile, History, HistoryFile, Row
from fedoptax.tasks.metrics import Column
from fedoptax.trackers import Tracked, as_trackers, notify

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


class FolderWriter(Observer):
    """Writes history, checkpoints and summary to a run's folder, which is `locked`, and tells its trackers.

    `history` is of the rounds that were done before.
    """

    def __init__(
        self, folder: Path, record: Record, config: Mapping[str, Any], rounds: Rounds, history: History, watch: Watch
    ) -> None:
        self._folder, self._record, self._rounds, self._history, self._watch = folder, record, rounds, history, watch
        write_json(folder / "config.json", config)  # first: it makes the folder one that can be resumed
        (folder / "params.npz").unlink(missing_ok=True)  # of an earlier end
        is_new = record.resume_from is None or not folder.samefile(record.resume_from)  # to trackers
        self._trackers, tracked = as_trackers(record.trackers), Tracked(folder, config, 0 if is_new else len(history))
        notify(self._trackers, lambda tracker: tracker.start(tracked))
        if is_new and history.rows:
            notify(self._trackers, lambda tracker: tracker.rows(history.rows))
        self._summarize(Status.RUNNING)
        self._file = HistoryFile(folder, history.rows)
        is_measured, names = config.get("client_metrics"), config.get("client_names")
        self._clients = ClientsFile(folder, record.resume_from, len(history), names) if is_measured else None
        self._save_every = config.get("save_every")
        self._due = time.monotonic() + record.checkpoint_every

    def after_rounds(self, rows: list[Row], by_client: ByClient) -> None:
        """Write the rows, and the metrics of the clients after the last of them."""
        self._file.append(rows)
        if self._clients is not None and by_client is not None:
            self._clients.add(rows[-1]["round"], by_client)
        if rows and self._save_every is not None and rows[-1]["round"] % self._save_every == 0:
            self._write_params(f"params-{rows[-1]['round']}.npz", self._rounds.params())
        if rows:
            notify(self._trackers, lambda tracker: tracker.rows(rows))

    def save_if_due(self) -> None:
        """Write a checkpoint if one is due."""
        is_due = time.monotonic() > self._due
        if broadcast(is_due) if isinstance(self._rounds.clients, OnHost) else is_due:
            self._save()
            self._rounds.saved()

    def at_end(self, end: RunEnd) -> None:
        """Write a checkpoint, the parameters and the summary."""
        self._save()
        self._write_params("params.npz", end.params)
        notes = {**self._watch.notes(), **self._rounds.notes(len(self._history)), **end.notes}
        self._summarize(end.status, end.message, notes)
        self.close(read_summary(self._folder))

    def close(self, summary: Mapping[str, Any] = {"status": "failed"}) -> None:
        """Tell the trackers the end of the run, once; by default that an error ended it."""
        notify(self._trackers, lambda tracker: tracker.end(summary))
        self._trackers.clear()

    def _save(self) -> None:
        """Save the states after the finished rounds, and their number in case the process is killed."""
        started, watch, every = time.monotonic(), self._watch, self._record.checkpoint_every
        state = watch.saved_state(self._rounds.server)
        save_checkpoint(self._folder, len(self._history), state, self._rounds.clients, self._sync)
        if watch.best_params is not None:
            self._write_params("best.npz", watch.best_params)
        self._summarize(Status.RUNNING, notes=watch.notes())
        saved = time.monotonic()
        self._due = saved + (max(every, 10 * (saved - started)) if every else 0)  # gigabytes take many seconds

    def _write_params(self, file: str, params: Tree) -> None:
        write_atomically(self._folder / file, pack_arrays(named_leaves(params)))

    def _sync(self) -> Mapping[str, Any]:
        if self._clients is not None:
            self._clients.write()
        return self._file.sync()

    def _summarize(self, status: Status, message: str | None = None, notes: Mapping[str, Any] = {}) -> None:
        rows = self._history.rows
        metrics = [name for name in (rows[-1] if rows else {}) if name == "epsilon" or Column.parse(name)]
        summary = {
            "status": status,
            "message": message,
            "rounds_done": len(rows),
            "final": {name: self._history.last(name) for name in metrics},
            **{name: sum(row[name] for row in rows) for name in ("bytes_down", "bytes_up", "seconds")},
            "compile_seconds": self._rounds.compile_seconds,
            "ended": round(time.time(), 3),  # seconds since 1970
        }
        write_json(self._folder / "summary.json", {**summary, **notes})


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


def progress_note(history: History, metric: str | None) -> str:
    """Write the last loss, the metric and the privacy spent, for the progress bar."""
    names = [name for name in ("train_loss", metric, "epsilon") if name and history.last(name) is not None]
    return ", ".join(f"{name} {history.last(name):.4g}" for name in names)
