"""Trackers of a run besides its folder: TensorBoard, MLflow, Weights & Biases, or your own object."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedoptax.errors import UsageError, check_choice, import_extra, shorten

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Tracked:
    """The run that a tracker follows.

    Attributes:
      folder: of the run; a tracker writes its files to a subfolder.
      config: as in config.json.
      done: rounds that were done, and reported, before: 0 for a new run.
    """

    folder: Path
    config: Mapping[str, Any]
    done: int


class Tracker(Protocol):
    """An observer of a run. If it raises an error, one line says so, and the run goes on without it."""

    def start(self, run: Tracked) -> None:
        """Observe that the run starts or is resumed."""

    def rows(self, rows: Sequence[Row]) -> None:
        """Observe finished rounds: rows of the history, in order."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """Observe the end of the run; `summary` is as in summary.json."""


def notify(trackers: list[Tracker], call: Callable[[Tracker], None]) -> None:
    """Call each tracker; one that raises an error is removed from the list, with a line that says so."""
    for tracker in list(trackers):
        try:
            call(tracker)
        except Exception as error:
            trackers.remove(tracker)
            why = shorten(" ".join(f"{type(error).__name__}: {error}".split()))
            print(f"fedoptax: {type(tracker).__name__} is left out from now on: {why}", file=sys.stderr)


TRACKERS = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WandB"}
"""Names, each of a module here and of an extra of the package, and the tracker's class in the module."""


def as_trackers(trackers: Iterable[str | Tracker]) -> list[Tracker]:
    """Return trackers, created from their names if needed.

    Raises:
      UsageError: a name is unknown or occurs twice, or its package is not installed.
    """
    chosen = list(trackers)
    names = [one for one in chosen if isinstance(one, str)]
    if len(set(names)) < len(names):
        raise UsageError(f"trackers must name each tracker once, got {', '.join(names)}")
    return [_make_tracker(one) if isinstance(one, str) else one for one in chosen]


def _make_tracker(name: str) -> Tracker:
    check_choice("trackers", name, TRACKERS)
    return getattr(import_extra(f"fedoptax.trackers.{name}", f"trackers: {name} needs", name), TRACKERS[name])()


def numbers_of(row: Row) -> dict[str, float]:
    """Return the metrics of a row: all its numbers but the round's."""
    return {name: float(value) for name, value in row.items() if name != "round" and isinstance(value, int | float)}


def flatten_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, str | int | float | bool]:
    """Return the settings of a run by dotted names, without what describes clients one by one."""
    flat: dict[str, str | int | float | bool] = {}
    for name, value in config.items():
        if isinstance(value, str | int | float):
            flat[f"{prefix}{name}"] = value
        elif isinstance(value, Mapping) and name != "partition":
            flat |= flatten_config(value, f"{prefix}{name}.")
    return flat


def title_of(config: Mapping[str, Any]) -> str:
    """Return a run's name for trackers."""
    return f"{config['algorithm']['name']} on {config['task']['name']}, seed {config['seed']}"
