"""Trackers: every row arrives once, also over an interruption; one that fails harms no run.

Those of TensorBoard, MLflow and W&B run where these are installed (`make test-all`).
"""

import json
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import fedoptax as fx
from command_line import fedoptax
from fedoptax.trackers import Row, Tracked, flatten_config

pytestmark = pytest.mark.usefixtures("clean_home")

TYPED = ["--task", "quadratic", "--num-clients", "8", "--cohort-size", "3", "--batch-size", "5", "--rounds", "4"]

TASK, FEDAVG = fx.load_task("quadratic", num_clients=8), fx.fedavg(0.1)
SMALL = {"cohort_size": 3, "batch_size": 5}


class Recorder:
    def __init__(self, fails_at: str = "") -> None:
        self.fails_at, self.calls = fails_at, list[tuple[str, Any]]()

    def _note(self, what: str, value: Any) -> None:
        if what == self.fails_at:
            raise OSError("the server\nis gone")
        self.calls.append((what, value))

    def start(self, run: Tracked) -> None:
        self._note("start", run.done)

    def rows(self, rows: Sequence[Row]) -> None:
        self._note("rows", [row["round"] for row in rows])

    def end(self, summary: Mapping[str, Any]) -> None:
        self._note("end", summary["status"])

    @property
    def rounds(self) -> list[int]:
        return [number for what, rounds in self.calls if what == "rows" for number in rounds]


def test_every_row_is_reported_once_over_an_interruption(tmp_path):
    first, second = Recorder(), Recorder()
    fx.run(TASK, FEDAVG, rounds=3, out=tmp_path / "a", trackers=[first], **SMALL)
    fx.run(TASK, FEDAVG, rounds=7, resume_from=tmp_path / "a", trackers=[second], **SMALL)
    assert first.calls[0] == ("start", 0) and first.calls[-1] == ("end", "completed")
    assert second.calls[0] == ("start", 3)
    assert first.rounds + second.rounds == [1, 2, 3, 4, 5, 6, 7]
    elsewhere = Recorder()  # to which it is a new run
    fx.run(TASK, FEDAVG, rounds=8, resume_from=tmp_path / "a", out=tmp_path / "b", trackers=[elsewhere], **SMALL)
    assert elsewhere.calls[0] == ("start", 0) and elsewhere.rounds == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("where", ["start", "rows", "end"])
def test_a_tracker_that_fails_is_left_out_with_one_line(tmp_path, capsys, where):
    broken, sound = Recorder(where), Recorder()
    result = fx.run(TASK, FEDAVG, rounds=4, out=tmp_path / "a", trackers=[broken, sound], **SMALL)
    assert result.status == "completed" and sound.rounds == [1, 2, 3, 4]
    assert capsys.readouterr().err == "fedoptax: Recorder is left out from now on: OSError: the server is gone\n"


def test_an_error_ends_the_run_for_its_trackers(tmp_path):
    recorder = Recorder()
    with pytest.raises(KeyError):
        fx.run(TASK, FEDAVG, rounds=4, out=tmp_path / "a", trackers=[recorder], progress=lambda n, _: {}[n], **SMALL)
    assert recorder.calls[-1] == ("end", "failed")


def test_an_unknown_or_missing_tracker_is_refused_before_anything_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if its package were missing
    for given, said in (("wandb", "pip install 'fedoptax[wandb]'"), ("tensor", "did you mean 'tensorboard'")):
        assert fedoptax("run", *TYPED, "--track", given, "--out", tmp_path / "a") == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1 and not (tmp_path / "a").exists()
    with pytest.raises(fx.UsageError, match="trackers"):
        fx.run(TASK, FEDAVG, rounds=1, trackers=[Recorder()], **SMALL)


def test_a_config_is_flat_for_trackers():
    task = {"b": 1, "c": {"d": "x"}, "partition": "iid"}
    config = {"task": task, "partition": {"sizes": [1], "measures": {"size_min": 0.5}}, "e": None, "f": True}
    assert flatten_config(config) == {"task.b": 1, "task.c.d": "x", "task.partition": "iid", "f": True}


def twice(tmp_path: Path, name: str) -> tuple[Path, list[dict[str, Any]]]:
    """A run of three rounds and its continuation to six, by the command line."""
    out = tmp_path / "a"
    assert fedoptax("run", *TYPED[:-1], 3, "--track", name, "--out", out) == 0
    assert fedoptax("resume", out, "--rounds", 6) == 0
    return out, [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]


def test_tensorboard_has_every_number(tmp_path):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed (pip install 'fedoptax[tensorboard]')")
    from tensorboardX.proto.event_pb2 import Event

    out, rows = twice(tmp_path, "tensorboard")
    found: dict[tuple[str, int], float] = {}
    for path in sorted((out / "tensorboard").iterdir()):
        data, place = path.read_bytes(), 0
        while place < len(data):  # length, its checksum, the event, its checksum
            (length,) = struct.unpack_from("<Q", data, place)
            event = Event.FromString(data[place + 12 : place + 12 + length])
            place += 12 + length + 4
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    assert (value.tag, event.step) not in found
                    found[value.tag, event.step] = value.simple_value
    names = {name for row in rows for name in row} - {"round"}
    assert set(found) == {(name, step) for name in names for step in range(1, 7)}
    for row in rows:
        assert found["train_loss", row["round"]] == pytest.approx(row["train_loss"], rel=1e-6)


@pytest.mark.filterwarnings("default")  # its database layer warns of its own future
def test_mlflow_has_every_number_and_the_settings(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="MLflow is not installed (pip install 'fedoptax[mlflow]')")
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed (pip install 'fedoptax[mlflow]')")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    out, rows = twice(tmp_path, "mlflow")
    client = MlflowClient(tracking_uri=f"sqlite:///{out / 'mlflow' / 'mlflow.db'}")
    run = client.get_run((out / "mlflow" / "run-id.txt").read_text())
    assert run.info.status == "FINISHED" and run.data.params["algorithm.name"] == "fedadam"
    for name in ("train_loss", "test_distance", "bytes_up"):
        history = client.get_metric_history(run.info.run_id, name)
        assert [(m.step, m.value) for m in history] == [(row["round"], row[name]) for row in rows]


def wandb_records(data: bytes) -> list[bytes]:
    """The records of a file: LevelDB's log format after a head of 7 bytes."""
    records, part, place = [], b"", 7
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # the rest of a block has no room for a head
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(part)
            part = b""
    return records


@pytest.mark.filterwarnings("default")  # of its dependencies
def test_wandb_writes_an_offline_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed (pip install 'fedoptax[wandb]')")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.delenv("WANDB_MODE", raising=False)
    out, rows = twice(tmp_path, "wandb")
    files = sorted(out.glob("wandb/offline-run-*/*.wandb"))
    found = []
    for path in files:
        for record in map(Record.FromString, wandb_records(path.read_bytes())):
            if record.HasField("history"):
                items = {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
                found.append((int(items["_step"]), items["train_loss"]))
    assert found == [(row["round"], pytest.approx(row["train_loss"])) for row in rows]
