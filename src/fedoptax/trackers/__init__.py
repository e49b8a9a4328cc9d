"""Where a run's rows go besides its folder: TensorBoard, MLflow, Weights & Biases, or an object of your own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fedoptax.errors import UsageError, check_choice, shorten

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Tracked:
    """The run that a tracker follows.

    Attributes:
      folder: of the run; a tracker keeps its files in a folder of its own there.
      config: as in config.json.
      done: rounds that were done, and reported, before: 0 for a new run.
    """

    folder: Path
    config: Mapping[str, Any]
    done: int


class Tracker(Protocol):
    """What follows a run. An error that it raises is printed once; the run goes on without it."""

    def start(self, run: Tracked) -> None:
        """Take note that the run begins or goes on."""

    def rows(self, rows: Sequence[Row]) -> None:
        """Take note of rounds that are done: rows of the history, in order."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """Take note that the run ends; `summary` is as in summary.json."""


class TrackerGroup:
    """Some trackers as one. One that raises an error is left out from then on, with a line that says so."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)

    def start(self, run: Tracked) -> None:
        """See `Tracker.start`."""
        self._call_all(lambda tracker: tracker.start(run))

    def rows(self, rows: Sequence[Row]) -> None:
        """See `Tracker.rows`."""
        if rows:
            self._call_all(lambda tracker: tracker.rows(rows))

    def end(self, summary: Mapping[str, Any]) -> None:
        """See `Tracker.end`."""
        self._call_all(lambda tracker: tracker.end(summary))

    def _call_all(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except Exception as error:
                self._trackers.remove(tracker)
                why = shorten(" ".join(f"{type(error).__name__}: {error}".split()))
                print(f"fedoptax: {type(tracker).__name__} no longer follows the run: {why}", file=sys.stderr)


_PACKAGES = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}
TRACKERS = tuple(_PACKAGES)
"""The names; each is an extra of the package, too."""


def as_trackers(given: Iterable[str | Tracker]) -> list[Tracker]:
    """Return the trackers that are named, or given as they are."""
    chosen = list(given)
    names = [one for one in chosen if isinstance(one, str)]
    for name in names:
        check_choice("--track", name, TRACKERS)
        if names.count(name) > 1:
            raise UsageError(f"--track {name} is given twice")
        if find_spec(_PACKAGES[name]) is None:
            raise UsageError(f"--track {name} needs a package: pip install 'fedoptax[{name}]'")
    return [import_module(f"fedoptax.trackers.{one}").make() if isinstance(one, str) else one for one in chosen]


def numbers_of(row: Row) -> dict[str, float]:
    """Return the metrics of a row: all its numbers but the round's."""
    return {name: float(value) for name, value in row.items() if name != "round" and value is not None}


def flatten_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, str | int | float | bool]:
    """Return the settings of a run by dotted names, without what describes clients one by one."""
    flat: dict[str, str | int | float | bool] = {}
    for name, value in config.items():
        if name == "partition":
            continue
        if isinstance(value, Mapping):
            flat |= flatten_config(value, f"{prefix}{name}.")
        elif isinstance(value, str | int | float):
            flat[f"{prefix}{name}"] = value
    return flat


def title_of(config: Mapping[str, Any]) -> str:
    """Return what a tracker calls a run."""
    return f"{config['algorithm']['name']} on {config['task']['name']}, seed {config['seed']}"
