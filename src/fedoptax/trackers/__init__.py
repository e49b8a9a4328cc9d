"""Trackers of a run besides its folder: TensorBoard, MLflow, Weights & Biases, or your own object."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from flax.traverse_util import flatten_dict

from fedoptax.errors import check_choice, import_extra, shorten

Row = Mapping[str, Any]


class Tracked(NamedTuple):
    """The run that a tracker follows."""

    folder: Path  # of the run; a tracker writes its files to a subfolder
    config: Mapping[str, Any]  # as in config.json
    done: int  # rounds that were done, and reported, before: 0 for a new run


class Tracker(Protocol):
    """An observer of a run. If it raises an error, one line says so, and the run goes on without it."""

    def start(self, run: Tracked) -> None:
        """Observe that the run starts or is resumed."""

    def rows(self, rows: Sequence[Row]) -> None:
        """Observe finished rounds: rows of the history, in order."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """Observe the end of the run; `summary` is as in summary.json, or has the status `failed` alone."""


def notify(trackers: list[Tracker], call: Callable[[Tracker], None]) -> None:
    """Call each tracker; one that raises an error is removed from the list, with a line that says so."""
    for tracker in list(trackers):
        try:
            call(tracker)
        except Exception as error:
            trackers.remove(tracker)
            why = shorten(" ".join(f"{type(error).__name__}: {error}".split()))
            print(f"fedoptax: {type(tracker).__name__} is left out from now on: {why}", file=sys.stderr)


def as_trackers(trackers: Sequence[str | Tracker]) -> list[Tracker]:
    """Return trackers, created from their names if needed.

    A name that is unknown, or whose package is not installed, is a `UsageError`.
    """
    for name in (one for one in trackers if isinstance(one, str)):
        check_choice("trackers", name, TRACKERS)
    return [TRACKERS[one]() if isinstance(one, str) else one for one in trackers]


def numbers_of(row: Row) -> dict[str, float]:
    """Return the metrics of a row: all its numbers but the round's."""
    return {name: float(value) for name, value in row.items() if name != "round" and isinstance(value, int | float)}


def flatten_config(config: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Return the settings of a run by dotted names, without what describes clients one by one."""
    flat = flatten_dict({name: value for name, value in config.items() if name != "partition"}, sep=".")
    return {name: value for name, value in flat.items() if isinstance(value, str | int | float)}


def title_of(config: Mapping[str, Any]) -> str:
    """Return a run's name for trackers."""
    return f"{config['algorithm']['name']} on {config['task']['name']}, seed {config['seed']}"


class TensorBoard:
    """Scalars by round, in the folder `tensorboard` of the run: `tensorboard --logdir RUNS`."""

    def __init__(self) -> None:
        self._package = import_extra("tensorboardX", "trackers: tensorboard needs", "tensorboard")

    def start(self, run: Tracked) -> None:
        """Open an event file; what an older one has beyond the rounds of a continued run is not shown."""
        purge = run.done + 1 if run.done else None
        self._writer = self._package.SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)
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


class MLflow:
    """Parameters and metrics in an MLflow store: `mlflow ui --backend-store-uri sqlite:///RUN/mlflow/mlflow.db`.

    Where MLFLOW_TRACKING_URI is set, the run goes there; else to a database in the folder `mlflow` of the run.
    """

    states: ClassVar = {"completed": "FINISHED", "stopped early": "FINISHED", "interrupted": "KILLED"}

    def __init__(self) -> None:
        self._package = import_extra("mlflow", "trackers: mlflow needs", "mlflow")

    def start(self, run: Tracked) -> None:
        """Begin a run there, or continue that of this folder."""
        folder = run.folder / "mlflow"
        folder.mkdir(exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').absolute()}"
        self._client = self._package.MlflowClient(tracking_uri=uri)
        note = folder / "run-id.txt"
        if run.done and note.is_file():
            self._id = note.read_text(encoding="utf-8").strip()
            self._client.update_run(self._id, status="RUNNING")
            return
        try:
            place = (folder / "artifacts").absolute().as_uri()
            experiment = self._client.create_experiment("fedoptax", place)
        except self._package.MlflowException:  # it exists, perhaps since a moment ago
            experiment = self._client.get_experiment_by_name("fedoptax").experiment_id
        self._id = self._client.create_run(experiment, run_name=title_of(run.config)).info.run_id
        note.write_text(self._id, encoding="utf-8")
        texts = {name: str(value)[:250] for name, value in flatten_config(run.config).items()}
        self._client.log_batch(self._id, params=[self._package.entities.Param(*pair) for pair in texts.items()][:100])

    def rows(self, rows: Sequence[Row]) -> None:
        """Log a metric for each number of each row, with the round as its step."""
        make, now = self._package.entities.Metric, int(time.time() * 1000)
        metrics = [make(name, value, now, row["round"]) for row in rows for name, value in numbers_of(row).items()]
        for begin in range(0, len(metrics), 1000):  # MLflow's limit
            self._client.log_batch(self._id, metrics=metrics[begin : begin + 1000])

    def end(self, summary: Mapping[str, Any]) -> None:
        """Set the state of the run there."""
        self._client.set_terminated(self._id, self.states.get(str(summary["status"]), "FAILED"))


class WandB:
    """A run of Weights & Biases, offline unless WANDB_MODE says otherwise, to be sent by `wandb sync RUN/wandb/…`."""

    def __init__(self) -> None:
        self._package = import_extra("wandb", "trackers: wandb needs", "wandb")

    def start(self, run: Tracked) -> None:
        """Begin a run, or a further part of the same run."""
        note = run.folder / "wandb-id.txt"
        known = note.read_text(encoding="utf-8").strip() if run.done and note.is_file() else None
        settings = self._package.Settings(silent=True, console="off", symlink=False)
        about = {"name": title_of(run.config), "config": flatten_config(run.config), "dir": str(run.folder)}
        about |= {"id": known, "resume": "allow"} if known else {}
        mode = os.environ.get("WANDB_MODE", "offline")
        about |= {"project": "fedoptax", "mode": mode, "reinit": "create_new"}  # beside a run of the caller's own
        self._run: Any = self._package.init(settings=settings, **about)
        note.write_text(self._run.id, encoding="utf-8")

    def rows(self, rows: Sequence[Row]) -> None:
        """Log all numbers of each row, with the round as the step."""
        for row in rows:
            self._run.log(numbers_of(row), step=int(row["round"]))

    def end(self, summary: Mapping[str, Any]) -> None:
        """Write the final values and end the run."""
        self._run.summary.update({"status": summary["status"]})
        self._run.finish(exit_code=0 if summary["status"] in ("completed", "stopped early") else 1)


TRACKERS: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
"""The trackers by name, which is also that of the extra with their package."""
