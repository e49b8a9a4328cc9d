"""Where a run's rows go besides its folder: TensorBoard, MLflow, Weights & Biases, or an object of one's own.

The folder always has history.jsonl, and history.parquet at the end of a run; both hold the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fedoptax.errors import UsageError, unknown
from fedoptax.storage.history import Row


@dataclass(frozen=True)
class Tracked:
    """The run that is told of.

    Attributes:
      folder: of the run; a tracker keeps its files in a folder of its own there.
      config: as in config.json.
      done: rounds that were done, and told of, before: 0 for a new run.
    """

    folder: Path
    config: Mapping[str, Any]
    done: int


class Tracker(Protocol):
    """What is told of a run. An error it raises is printed once; the run goes on without it."""

    def start(self, run: Tracked) -> None:
        """The run begins or goes on."""

    def rows(self, rows: Sequence[Row]) -> None:
        """Some rounds are done: rows of the history, in order."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """The run ends; `summary` is as in summary.json."""


_HOMES = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}
TRACKERS = tuple(_HOMES)
"""The names; each is an extra of the package, too."""


def as_trackers(given: Iterable[str | Tracker]) -> list[Tracker]:
    """The trackers that are named, or given as they are.

    Raises:
      UsageError: an unknown name, one given twice, or one whose package is not installed.
    """
    chosen = list(given)
    names = [one for one in chosen if isinstance(one, str)]
    for name in names:
        if name not in _HOMES:
            unknown("--track", name, TRACKERS)
        if names.count(name) > 1:
            raise UsageError(f"--track: {name} given twice, allowed is once")
        if find_spec(_HOMES[name]) is None:
            raise UsageError(f"--track: {name} is not installed; pip install 'fedoptax[{name}]'")
    return [import_module(f"fedoptax.trackers.{one}").make() if isinstance(one, str) else one for one in chosen]


def numbers_of(row: Row) -> dict[str, float]:
    """The metrics of a row: all its numbers but the round's."""
    return {name: float(value) for name, value in row.items() if name != "round" and value is not None}


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, str | int | float | bool]:
    """The settings of a run as plain values with dotted names; what describes clients one by one is left out."""
    flat: dict[str, str | int | float | bool] = {}
    for name, value in config.items():
        if name in ("partition", "checksum"):
            continue
        if isinstance(value, Mapping):
            flat |= flat_config(value, f"{prefix}{name}.")
        elif isinstance(value, str | int | float):
            flat[f"{prefix}{name}"] = value
    return flat


def title_of(config: Mapping[str, Any]) -> str:
    """What a tracker calls a run."""
    return f"{config['algorithm']['name']} on {config['task']['name']}, seed {config['seed']}"
