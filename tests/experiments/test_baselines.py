"""The baselines equal plain gradient descent, on each client's examples or on all, and resume as other runs do."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import fedoptax as fx
from command_line import fedoptax
from fedoptax._files import read_json
from fedoptax.algorithms.baselines import local
from fedoptax.engine.evaluation import choose_split
from fedoptax.engine.options import RunOptions
from fedoptax.experiments.client_models import pool
from fedoptax.experiments.record import split_options
from fedoptax.experiments.run import simulate
from refusals import refused
from same_results import rows_without_time
from small_rounds import close

LR, ROUNDS, CLIENTS = 0.1, 3, 4


@pytest.fixture(scope="module")
def task():
    return fx.load_task("digits", model="logistic", num_clients=CLIENTS, alpha=0.1)


def descend(task: fx.Task, examples: dict[str, np.ndarray], steps: int) -> dict:
    """Gradient descent on all examples at once, from the parameters of seed 0."""
    key = jax.random.key(0)
    params = task.init(jax.random.fold_in(key, 0))
    batch = examples | {"mask": np.ones(len(examples["y"]), bool)}
    gradient = jax.jit(jax.grad(task.loss))
    for _ in range(steps):
        params = jax.tree.map(lambda p, g: p - np.float32(LR) * np.asarray(g), params, gradient(params, batch, key))
    return params


def run(name: str, task: fx.Task, **options):
    own = {"rounds": ROUNDS, "cohort_size": CLIENTS, "batch_size": 2000, "mesh": 1, "eval_every": 2, **options}
    return simulate(task, local(LR), *split_options(own), name)


def test_local_is_descent_of_every_client_and_is_tested_with_its_own_model(task):
    result = run("local", task)
    expected = [descend(task, task.clients.client(i), ROUNDS) for i in range(CLIENTS)]
    close(result.params, jax.tree.map(lambda *leaves: np.stack(leaves), *expected), rtol=1e-4)
    right = np.zeros(len(task.test["y"]))
    metrics = jax.jit(task.metrics)
    for i, params in enumerate(expected):
        rows = task.test_owners == i
        right[rows] = metrics(params, task.test)["accuracy"][rows]
    by_client = [right[task.test_owners == i].mean() for i in range(CLIENTS)]
    last = result.history[-1]
    assert last["test_accuracy"] == pytest.approx(right.mean(), abs=1e-6)
    assert last["client_accuracy_mean"] == pytest.approx(np.mean(by_client), abs=1e-6)
    assert last["client_accuracy_spread"] == pytest.approx(np.std(by_client), abs=1e-6)
    assert last["client_accuracy_worst_decile"] == pytest.approx(min(by_client), abs=1e-6)
    assert [row["test_accuracy"] is None for row in result.history] == [True, False, False]
    assert all(row["bytes_up"] == row["bytes_down"] == 0 for row in result.history)


def test_centralized_is_descent_on_all_examples_with_as_many_steps(task):
    result = run("centralized", task)
    expected = descend(task, task.clients.examples, ROUNDS * CLIENTS)
    close(result.params, expected, rtol=1e-4)
    accuracy = float(np.mean(jax.jit(task.metrics)(expected, task.test)["accuracy"]))
    assert result.history[-1]["test_accuracy"] == pytest.approx(accuracy, abs=1e-6)
    other = fx.with_validation(replace(task, test_owners=np.maximum(task.test_owners, 1)), 0.3)  # none of client 0
    assert choose_split(pool(other, RunOptions(cohort_size=2))[0]) == choose_split(other) == "test"


def test_a_baseline_ignores_wrappers_and_pooled_examples_need_no_robust_mean(task, tmp_path):
    options = {"rounds": 1, "cohort_size": CLIENTS, "batch_size": 2000, "mesh": 1}
    compared = fx.compare(task, ["fedavg", "local"], tmp_path, seeds=1, wrappers={"personal": "*bias"}, **options)
    assert set(compared.histories) == {"fedavg", "local"}
    assert "wrappers" not in read_json(tmp_path / "local" / "seed-0" / "config.json")
    pooled = run("centralized", task, rounds=1, aggregate="median", faults={"deadline": 1.0})
    assert pooled.history.last("train_loss") > 0  # one client, that has all the time
    for name in ("fedavg", "local"):  # one with personal parameters, one with models of its own
        refused(lambda: fx.load_model(tmp_path / name / "seed-0"), "each client has its own")  # noqa: B023
    refused(lambda: run("centralized", task, cohort_size=CLIENTS + 1), "cohort_size")


def test_baselines_stand_in_the_table_and_resume(clean_home, monkeypatch, capsys):
    monkeypatch.setattr("fedoptax.report.draw_figures", lambda report: {})
    small = ["--task", "digits", "--model", "logistic", "--num-clients", "8", "--cohort-size", "3"]
    names = ["fedavg", "local", "centralized"]
    options = ["--seeds", "1", "--rounds", "4", "--personalize", "2", "--out", "a"]
    assert fedoptax("compare", *small, "--algorithms", ",".join(names), *options) == 0
    assert "warning" not in capsys.readouterr().err  # their rates have one source
    table = Path("a/table.md").read_text()
    assert "Personalized worst 10 %" in table and table.count(" → ") == 3  # of FedAvg alone
    assert all(f"| {name} " in table for name in names) and table.count("| preset ") == 3
    assert fedoptax("run", *small, "--algorithm", "local", "--rounds", "2", "--out", "local") == 0
    assert fedoptax("resume", "local", "--rounds", "4") == 0  # centralized training resumes by the same code
    assert rows_without_time(Path("local")) == rows_without_time(Path("a/local/seed-0"))
