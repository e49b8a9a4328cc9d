"""The named image tasks: every partition, every model, real files where they are at hand; wrong options by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedoptax as fx

DATA = Path(os.environ.get("FEDOPTAX_DATA") or Path(__file__).parents[3] / "shared" / "data")


def needs(*folders: str) -> None:
    for folder in folders:
        if not (DATA / folder).is_dir():
            pytest.skip(f"no folder {folder}/ under $FEDOPTAX_DATA or shared/data")


@pytest.mark.parametrize("options", [
    {"partition": "iid"}, {"partition": "dirichlet", "alpha": 0.1}, {"partition": "dirichlet-by-class"},
    {"partition": "classes", "classes": 3},
])  # fmt: skip
def test_every_partition_holds_every_example_once(options: dict[str, Any]) -> None:
    task = fx.load_task("digits", num_clients=20, **options)
    assert (task.clients.num_clients, int(task.clients.offsets[-1])) == (20, 1438)
    labels = [set(task.clients.client(i)["y"].tolist()) for i in range(20)]
    if options["partition"] == "classes":
        assert {len(held) for held in labels} == {3}
    whole = fx.load_task("digits", partition="iid", num_clients=1)
    assert sorted(map(bytes, task.clients.examples["x"])) == sorted(map(bytes, whole.clients.examples["x"]))
    assert task.spec["partition"] == options["partition"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", *(pytest.param(m, marks=pytest.mark.long) for m in ("logistic", "cnn"))])
def test_every_model_learns_digits(model: str) -> None:
    task = fx.load_task("digits", model=model, partition="iid", num_clients=10)
    history = fx.run(task, fx.fedadam(0.1, 0.1), rounds=15, cohort_size=5, batch_size=20, eval_every=5).history
    assert history[-1]["test_accuracy"] > 0.6
    assert history[-1]["train_loss"] < 0.7 * history[0]["train_loss"]


@pytest.mark.long
def test_mnist_by_writer_trains() -> None:
    needs("mnist", "qmnist")
    task = fx.load_task("mnist", partition="writers", model="logistic", data_dir=DATA)
    assert (task.clients.num_clients, int(task.clients.offsets[-1])) == (539, 60_000)
    assert (task.clients.sizes.min(), task.clients.sizes.max(), np.median(task.clients.sizes)) == (19, 131, 116)
    history = fx.run(task, fx.fedavg(0.1), rounds=10, cohort_size=10, eval_every=10).history
    assert history[-1]["test_accuracy"] > 0.6
    with pytest.raises(fx.UsageError, match="num_clients: 540 given, allowed is 1 to 539"):
        fx.load_task("mnist", partition="writers", num_clients=540, data_dir=DATA)


@pytest.mark.long  # three rounds of it are in test_task_training.py
def test_fashion_mnist_trains() -> None:
    needs("fashion-mnist")
    task = fx.load_task("fashion-mnist", data_dir=DATA)
    assert task.spec["model"] == "cnn"
    history = fx.run(task, fx.fedadam(0.1, 0.03), rounds=3, cohort_size=5, eval_every=3).history
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    assert history[-1]["test_accuracy"] > 0.2


@pytest.mark.parametrize(("options", "text"), [
    ({"partition": "writers"}, "partition of task 'digits': unknown name 'writers'"),
    ({"model": "gpt"}, "model of task 'digits': unknown name 'gpt'"),
    ({"alpha": -1.0}, "alpha"),
    ({"num_clients": 5000}, "num_clients"),
    ({"partition": "classes", "classes": 11}, "classes"),
])  # fmt: skip
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(fx.UsageError) as caught:
        fx.load_task("digits", **options)
    assert str(caught.value).startswith(text)
