"""What a run writes into its folder, and when; a run without a folder writes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedoptax.algorithm import Tree
from fedoptax.engine.client_states import ClientStates
from fedoptax.storage import folder as storage
from fedoptax.storage.checkpoint import Checkpoints
from fedoptax.storage.history import History, Row
from fedoptax.storage.history_file import HistoryFile
from fedoptax.storage.history_parquet import write_parquet
from fedoptax.storage.summary import write_summary
from fedoptax.trackers import Tracked, Tracker, as_trackers
from fedoptax.trackers.told import Told


class RunFolder:
    """The folder of one run, held by this process until `stack` closes.

    Args:
      folder: where, or None.
      new: there must be no results in it yet.
      checkpoint_every: seconds between checkpoints.
      stack: closes what is opened.

    Raises:
      RunError: another process holds it.
    """

    def __init__(self, folder: Path | None, new: bool, checkpoint_every: float, stack: ExitStack) -> None:
        self._folder, self._new, self._every, self._stack = folder, new, checkpoint_every, stack
        self._existed = folder is not None and folder.is_dir()
        if folder is not None and self._existed:
            stack.enter_context(storage.locked(folder, new))

    def begin(
        self,
        config: Mapping[str, Any],
        history: History,
        timings: Mapping[str, float],
        trackers: Sequence[str | Tracker],
    ) -> None:
        """Writes what is known before the first round; a new folder is made only now, when nothing can be refused.

        Raises:
          RunError: it cannot be written, or was filled by another process meanwhile.
        """
        self._timings, self._saved = timings, time.monotonic()
        self._compiled = timings["compile"]  # by another run of the same program
        if self._folder is None:
            return
        if not self._existed:
            self._stack.enter_context(storage.locked(self._folder, self._new))
        storage.write_json(self._folder / "config.json", config)
        write_summary(self._folder, "running", None, history, 0.0)
        self._rows = HistoryFile(self._folder, history.rows)
        self._checkpoints = Checkpoints(self._folder, () if self._new else (len(history),))
        self._told = Told(as_trackers(trackers))
        self._told.start(Tracked(self._folder, config, len(history)))

    def ready(self) -> None:
        """Imports what the end will need, while there is time."""
        if self._folder is not None:
            import orbax.checkpoint  # noqa: F401
            import pyarrow.json
            import pyarrow.parquet  # noqa: F401

    def add(self, rows: list[Row]) -> None:
        """Adds rounds to the history.

        Raises:
          RunError: it cannot be written.
        """
        if self._folder is not None:
            self._rows.append(rows)
            self._told.rows(rows)

    def keep(self, done: int, server: Tree, clients: ClientStates) -> None:
        """Saves the states if it is time for a checkpoint.

        Raises:
          RunError: they cannot be written.
        """
        if self._folder is not None and time.monotonic() - self._saved > self._every:
            self._checkpoints.save(done, server, clients, self._rows.mark())
            self._saved = time.monotonic()

    def end(
        self, status: str, message: str | None, history: History, server: Tree, clients: ClientStates, params: Tree
    ) -> None:
        """Writes the last states, the final parameters and the summary.

        Raises:
          RunError: they cannot be written.
        """
        if self._folder is not None:
            self._checkpoints.save(len(history), server, clients, self._rows.mark())
            storage.write_params(self._folder / "params.npz", params)
            write_parquet(self._folder / "history.parquet", history.rows)
            compiled = self._timings["compile"] - self._compiled
            self._told.end(write_summary(self._folder, status, message, history, compiled, self._rows.mark()))
