"""Every task trains: on its real files where these are present, else on tiny files of the same format."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedoptax as fx
from fedoptax.engine.evaluation import evaluate_clients
from fedoptax.tasks import TASKS
from files import cifar_batch, real_data, write_cifar, write_tff

# By task: the folder of its files, options of the task and of the run, an algorithm.
REAL: dict[str, dict[str, Any]] = {
    "digits": {"algorithm": fx.fedadam(0.1, 0.1)},
    "mnist": {"folder": "mnist", "model": "fafed_fmnist_cnn", "algorithm": fx.fedavg(0.1)},
    "fashion-mnist": {
        "folder": "fashion-mnist", "model": "logistic", "partition": "similarity", "similarity": 95.0,
        "algorithm": fx.fedavg(0.1),
    },
    "cifar10": {"folder": "cifar10", "model": "fafed_cifar_cnn", "partition": "iid", "algorithm": fx.fedavg(0.05)},
    "emnist-cr": {"folder": "femnist", "model": "logistic", "algorithm": fx.fedavg(0.003)},
    "emnist-ae": {"folder": "femnist", "algorithm": fx.fedavg(10.0), "rounds": 12},
    "shakespeare": {"folder": "shakespeare", "model": "rnn_small", "batch_size": 4, "algorithm": fx.fedavg(1.0)},
    "wikitext-2": {"folder": "wikitext-2", "model": "lstm_small", "cohort_size": 2, "algorithm": fx.fedavg(5.0)},
}  # fmt: skip


def with_few_test_examples(task: fx.Task) -> fx.Task:
    """The task with the first 60 of its test examples."""
    owners = None if task.test_owners is None else task.test_owners[:60]
    return dataclasses.replace(task, test={k: a[:60] for k, a in task.test.items()}, test_owners=owners)


def train(task: fx.Task, algorithm: fx.FedAlgorithm, **options: Any) -> fx.RunResult:
    settings = {"rounds": 8, "cohort_size": 4, "batch_size": 20, "local_steps": 3}
    settings |= options
    return fx.run(with_few_test_examples(task), algorithm, eval_every=settings["rounds"], **settings)


def learned(result: fx.RunResult) -> bool:
    losses = [row["train_loss"] for row in result.history]
    return float(np.mean(losses[-3:])) < float(np.mean(losses[:2]))


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FEDOPTAX_CACHE", str(tmp_path_factory.getbasetemp() / "task-caches"))


@pytest.mark.long
@pytest.mark.parametrize("name", REAL)
def test_task_trains_on_its_real_files(name, tmp_path):
    options = dict(REAL[name])
    folder = options.pop("folder", None)
    data_dir = None if folder is None else real_data(folder)
    algorithm = options.pop("algorithm")
    run = {key: options.pop(key) for key in ("rounds", "cohort_size", "batch_size") if key in options}
    task = fx.load_task(name, data_dir=data_dir, **options)
    result = train(task, algorithm, out=tmp_path / "run", **run)
    assert learned(result), [row["train_loss"] for row in result.history]
    last = result.history[-1]
    assert np.isfinite(last[f"test_{task.primary_metric}"])
    if task.test_owners is not None:
        by_client = evaluate_clients(with_few_test_examples(task), result.params)[str(task.primary_metric)]
        values = by_client[np.isfinite(by_client)]
        assert last[f"client_{task.primary_metric}_mean"] == pytest.approx(values.mean(), rel=1e-3)
        assert last[f"client_{task.primary_metric}_spread"] == pytest.approx(values.std(), rel=1e-2, abs=1e-3)


@pytest.mark.long
def test_cifar100_trains_with_pachinko_crop_and_flip(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    fine = np.arange(400) % 100
    coarse = fine // 5
    x = np.clip(rng.normal(40 + 10 * coarse[:, None], 20, (400, 3072)), 0, 255).astype(np.uint8)
    files = {
        f"cifar-100-python/{part}": cifar_batch(x[:n], fine_labels=fine[:n].tolist(), coarse_labels=coarse[:n].tolist())
        for part, n in (("train", 400), ("test", 100))
    }
    write_cifar(tmp_path, monkeypatch, "cifar100", files)
    for name, classes in (("cifar100", 100), ("cifar100-coarse", 20)):
        options = {"partition": "pachinko"} if name == "cifar100" else {"partition": "dirichlet", "alpha": 0.5}
        task = fx.load_task(name, model="logistic", augment="crop", num_clients=10, data_dir=tmp_path, **options)
        assert task.spec["augment"] == "crop"
        assert task.clients.num_clients == 10
        result = train(task, fx.fedavg(0.05), cohort_size=10)
        assert result.params["dense1"]["kernel"].shape == (24 * 24 * 3, classes)
        assert learned(result)


WORDS = ["the", "a", "how", "to", "python", "java", "list", "sort", "use", "error"]


def tiny_stackoverflow(root: Path) -> None:
    rng = np.random.default_rng(0)
    folder = root / "stackoverflow"
    for part in ("train", "held_out", "test"):
        users = {}
        for i in range(6):
            rows = []
            for _ in range(5):
                start = int(rng.integers(0, 10))
                rows.append(" ".join(WORDS[(start + k) % 10] for k in range(int(rng.integers(2, 25)))) + " xyzzy")
            tags = ["python|sorting" if i % 2 else "java"] * 5
            fields = {"tokens": rows, "title": ["sort list"] * 5, "tags": tags, "type": ["question"] * 5}
            users[f"{i:08d}"] = {key: [value.encode() for value in values] for key, values in fields.items()}
        write_tff(folder / f"stackoverflow_{part}.h5", users)
    vocabulary = [*WORDS, *(f"rare{i}" for i in range(9_990))]
    (folder / "stackoverflow.word_count").write_text("".join(f"{w} {20_000 - i}\n" for i, w in enumerate(vocabulary)))
    tags = ["java", "python", "sorting", *(f"tag{i}" for i in range(497))]
    (folder / "stackoverflow.tag_count").write_text(json.dumps({tag: 900 - i for i, tag in enumerate(tags)}))


@pytest.mark.parametrize("name", ["stackoverflow-nwp", pytest.param("stackoverflow-lr", marks=pytest.mark.long)])
def test_stack_overflow_is_tested_on_a_sample_or_on_all(tmp_path, name):
    tiny_stackoverflow(tmp_path)
    fields = {"tokens": b"how to sort", "title": b"list", "tags": b"java"}
    users = {"1": {key: [value] * 10_003 for key, value in fields.items()}}
    write_tff(tmp_path / "stackoverflow" / "stackoverflow_test.h5", users)
    sizes = {}
    for choice in (None, "sample", "all"):
        task = fx.load_task(name, data_dir=tmp_path, test_examples=choice)
        assert task.test is not None and task.spec.get("test_examples") == choice
        sizes[choice] = len(task.test["y"])
    assert sizes == {None: 10_000, "sample": 10_000, "all": 10_003}
    with pytest.raises(fx.UsageError, match=r"^test_examples must be one of sample, all"):
        fx.load_task(name, data_dir=tmp_path, test_examples="most")


@pytest.mark.long
def test_stack_overflow_next_word_trains_and_scores_real_words_alone(tmp_path):
    tiny_stackoverflow(tmp_path)
    task = fx.load_task("stackoverflow-nwp", model="rnn_small", data_dir=tmp_path)
    assert task.clients.num_clients == 6
    result = train(task, fx.fedavg(1.0), rounds=6)
    assert learned(result)
    scored = task.metrics(result.params, {k: a[:8] for k, a in task.test.items()})["accuracy"][1]
    y = np.asarray(task.test["y"][:8])
    np.testing.assert_array_equal(np.asarray(scored) > 0, (y >= 1) & (y <= 10_000))


@pytest.mark.long
def test_stack_overflow_tags_train_and_recall_counts_tags(tmp_path):
    tiny_stackoverflow(tmp_path)
    task = fx.load_task("stackoverflow-lr", data_dir=tmp_path)
    result = train(task, fx.fedavg(100.0), batch_size=100)
    assert learned(result)
    assert result.history[-1]["test_recall_at_5"] > 0.9


def test_every_named_task_has_a_test():
    elsewhere = {"synthetic", "quadratic", "counterexample"}  # test_analytic.py
    here = {*REAL, "cifar100", "cifar100-coarse", "stackoverflow-nwp", "stackoverflow-lr"}
    assert here | elsewhere == set(TASKS)
