"""Parameters and metrics for MLflow: `mlflow ui --backend-store-uri sqlite:///RUN/mlflow/mlflow.db`.

Where MLFLOW_TRACKING_URI is set, the run goes there; else to a database in the folder `mlflow` of the run.
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from fedoptax.trackers import Row, Tracked, flatten_config, numbers_of, title_of

_LONGEST = 250  # characters of a parameter's value
_BATCH = 1000  # metrics per call, MLflow's limit
_STATES = {"completed": "FINISHED", "stopped early": "FINISHED", "diverged": "FAILED", "interrupted": "KILLED"}


class MLflow:
    """A tracker that logs to an MLflow store."""

    def start(self, run: Tracked) -> None:
        """Begin a run there, or continue that of this folder."""
        folder = run.folder / "mlflow"
        folder.mkdir(exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').absolute()}"
        self._client = MlflowClient(tracking_uri=uri)
        note = folder / "run-id.txt"
        if run.done and note.is_file():
            self._id = note.read_text(encoding="utf-8").strip()
            self._client.update_run(self._id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name("fedoptax")
        place = (folder / "artifacts").absolute().as_uri()
        experiment = found.experiment_id if found else self._client.create_experiment("fedoptax", place)
        self._id = self._client.create_run(experiment, run_name=title_of(run.config)).info.run_id
        note.write_text(self._id, encoding="utf-8")
        parameters = [Param(name, str(value)[:_LONGEST]) for name, value in flatten_config(run.config).items()]
        self._client.log_batch(self._id, params=parameters[:100])

    def rows(self, rows: Sequence[Row]) -> None:
        """Log a metric for each number of each row, with the round as its step."""
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, row["round"]) for row in rows for name, value in numbers_of(row).items()]
        for begin in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._id, metrics=metrics[begin : begin + _BATCH])

    def end(self, summary: Mapping[str, Any]) -> None:
        """Set the state of the run there."""
        self._client.set_terminated(self._id, _STATES.get(str(summary["status"]), "FAILED"))
