"""A run of Weights & Biases, offline unless WANDB_MODE says otherwise.

An offline run is sent later: `wandb sync RUN/wandb/offline-run-...`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedoptax.storage.history import Row
from fedoptax.trackers import Tracked, Tracker, flat_config, numbers_of, title_of


class WandB:
    """A tracker that logs by the package `wandb`."""

    def start(self, run: Tracked) -> None:
        """Begins a run, or a further part of the same run."""
        import wandb

        note = run.folder / "wandb-id.txt"
        known = note.read_text(encoding="utf-8").strip() if run.done and note.is_file() else None
        self._run: Any = wandb.init(
            project="fedoptax",
            name=title_of(run.config),
            id=known,
            resume="allow" if known else None,
            dir=str(run.folder),
            config=flat_config(run.config),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off", symlink=False),
        )
        note.write_text(self._run.id, encoding="utf-8")
        self._folder = run.folder / "wandb"
        _remove_links(self._folder)

    def rows(self, rows: Sequence[Row]) -> None:
        """All numbers of a row at once, with the round as the step."""
        for row in rows:
            self._run.log(numbers_of(row), step=int(row["round"]))

    def end(self, summary: Mapping[str, Any]) -> None:
        """Writes the final values and ends the run."""
        self._run.summary.update({"status": summary["status"]})
        self._run.finish(exit_code=0 if summary["status"] == "completed" else 1)
        _remove_links(self._folder)


def _remove_links(folder: Path) -> None:
    """Removes links, here to log files elsewhere: a run folder holds none, or it would not be resumed."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            path.unlink()


def make() -> Tracker:
    """The tracker."""
    return WandB()
