"""Scalars by round for TensorBoard, in the folder `tensorboard` of the run: `tensorboard --logdir RUNS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedoptax.storage.history import Row
from fedoptax.trackers import Tracked, Tracker, flat_config, numbers_of


class TensorBoard:
    """A tracker that writes event files."""

    def start(self, run: Tracked) -> None:
        """Opens an event file; of a run that goes on, what an older file has beyond its rounds is not shown."""
        from tensorboardX import SummaryWriter

        purge = run.done + 1 if run.done else None
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)
        if not run.done:
            lines = [f"- {name}: `{value}`" for name, value in flat_config(run.config).items()]
            self._writer.add_text("config", "\n".join(lines), 0)

    def rows(self, rows: Sequence[Row]) -> None:
        """A scalar for each number of each row."""
        for row in rows:
            for name, value in numbers_of(row).items():
                self._writer.add_scalar(name, value, row["round"])
        self._writer.flush()

    def end(self, summary: Mapping[str, Any]) -> None:
        """Closes the file."""
        self._writer.close()


def make() -> Tracker:
    """The tracker."""
    return TensorBoard()
