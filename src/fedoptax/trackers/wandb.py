"""A run of Weights & Biases, offline unless WANDB_MODE says otherwise.

An offline run is sent later: `wandb sync RUN/wandb/offline-run-...`.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import wandb

from fedoptax.trackers import Row, Tracked, flatten_config, numbers_of, title_of


class WandB:
    """A tracker that logs with the package `wandb`."""

    def start(self, run: Tracked) -> None:
        """Begin a run, or a further part of the same run."""
        note = run.folder / "wandb-id.txt"
        known = note.read_text(encoding="utf-8").strip() if run.done and note.is_file() else None
        self._run: Any = wandb.init(
            project="fedoptax",
            name=title_of(run.config),
            id=known,
            resume="allow" if known else None,
            dir=str(run.folder),
            config=flatten_config(run.config),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off", symlink=False),
        )
        note.write_text(self._run.id, encoding="utf-8")

    def rows(self, rows: Sequence[Row]) -> None:
        """Log all numbers of each row, with the round as the step."""
        for row in rows:
            self._run.log(numbers_of(row), step=int(row["round"]))

    def end(self, summary: Mapping[str, Any]) -> None:
        """Write the final values and end the run."""
        self._run.summary.update({"status": summary["status"]})
        self._run.finish(exit_code=0 if summary["status"] in ("completed", "stopped early") else 1)
