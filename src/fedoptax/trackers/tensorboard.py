"""Scalars by round for TensorBoard, in the folder `tensorboard` of the run: `tensorboard --logdir RUNS`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tensorboardX import SummaryWriter

from fedoptax.trackers import Row, Tracked, flatten_config, numbers_of


class TensorBoard:
    """A tracker that writes event files."""

    def start(self, run: Tracked) -> None:
        """Open an event file; what an older one has beyond the rounds of a continued run is not shown."""
        purge = run.done + 1 if run.done else None
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)
        if not run.done:
            lines = [f"- {name}: `{value}`" for name, value in flatten_config(run.config).items()]
            self._writer.add_text("config", "\n".join(lines), 0)

    def rows(self, rows: Sequence[Row]) -> None:
        """Write a scalar for each number of each row."""
        for row in rows:
            for name, value in numbers_of(row).items():
                self._writer.add_scalar(name, value, row["round"])
        self._writer.flush()

    def end(self, summary: Mapping[str, Any]) -> None:
        """Close the file."""
        self._writer.close()
