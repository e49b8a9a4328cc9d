"""How a task's training and test examples are divided among clients."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.data.datasets.source import Source
from fedoptax.engine.sampling import sample_cohort
from fedoptax.tasks import TASKS, TaskOptions
from fedoptax.tasks.recipe import CENTRAL, make_task
from refusals import refused
from small import small_task

LEARNED: dict[str, Any] = {"init": lambda key: 0, "loss": lambda p, b, key: 0, "metrics": lambda p, b: {}}


def source(groups: Any, test_groups: Any) -> Source:
    n, m = len(groups), len(test_groups)
    train, test = ({"x": np.arange(k) + first, "y": np.arange(k) % 3} for k, first in ((n, 0), (m, 100)))
    return Source(train, test, 3, (), np.asarray(groups), np.asarray(test_groups))


def by_writer(data: Source, num_clients: int | None = None) -> fx.Task:
    """The task of a data set whose clients are its writers, or the first of them."""
    options = TaskOptions(partition="writers", num_clients=num_clients)
    return make_task("mnist", TASKS["mnist"], options, data, **LEARNED)


@pytest.mark.parametrize("options", [
    {"partition": "dirichlet", "alpha": 0.1}, {"partition": "classes", "classes": 3},
    *({"partition": name} for name in CENTRAL if name not in ("dirichlet", "classes")),
], ids=lambda options: options["partition"])  # fmt: skip
def test_a_partition_holds_every_example_once_and_test_examples_follow(options):
    task = fx.load_task("digits", num_clients=20, **options)
    assert (task.clients.num_clients, int(task.clients.offsets[-1])) == (20, 1438)
    train = np.stack([np.bincount(task.clients.client(i)["y"], minlength=10) for i in range(20)])
    if options["partition"] == "classes":
        assert {np.count_nonzero(row) for row in train} == {3}
    everything = fx.load_task("digits", partition="iid", num_clients=1)
    assert sorted(map(bytes, task.clients.examples["x"])) == sorted(map(bytes, everything.clients.examples["x"]))
    assert options.items() <= task.spec.items()
    other = fx.load_task("digits", num_clients=20, seed=1, **options)
    assert (other.clients.examples["x"] != task.clients.examples["x"]).any()
    assert task.test is not None and task.test_owners is not None and len(task.test_owners) == 359
    test = np.zeros((20, 10))
    np.add.at(test, (task.test_owners, task.test["y"]), 1)
    expected = test.sum(0) * train / train.sum(0)
    assert np.abs(test - expected).max() < 1 + 1e-9  # rounding only


@pytest.mark.parametrize("fraction", [0.1, 0.99])
def test_validation_takes_its_share_of_each_client_and_leaves_the_rest(fraction):
    whole = small_task(sizes=(7, 3, 11, 1, 6, 40))
    task = fx.with_validation(whole, fraction)
    for i, size in enumerate(whole.clients.sizes):
        taken = {name: array[task.validation_owners == i] for name, array in task.validation.items()}
        left = task.clients.client(i)
        assert len(taken["y"]) == min(round(fraction * size), size - 1) == size - len(left["y"])
        both = np.concatenate([left["x"], taken["x"]])
        assert sorted(map(bytes, both)) == sorted(map(bytes, whole.clients.client(i)["x"]))
    again, other = (fx.with_validation(replace(whole, spec={"partition_seed": seed}), fraction) for seed in (0, 1))
    np.testing.assert_array_equal(again.validation["x"], task.validation["x"])
    assert (other.validation["x"] != task.validation["x"]).any()
    assert task.test is whole.test
    refused(lambda: fx.with_validation(task, fraction), "validation")


def test_natural_clients_keep_their_test_examples():
    task = by_writer(source([5, 2, 5, 7, 2], [7, 2, 9, 5]))
    assert [task.clients.client(i)["x"].tolist() for i in range(3)] == [[1, 4], [0, 2], [3]]
    np.testing.assert_array_equal(task.test_owners, [2, 0, 3, 1])  # 9 trains nowhere and comes last
    assert task.spec == {"model": "mlp", "partition": "writers", "num_clients": 3, "partition_seed": 0}


def test_first_natural_clients_keep_only_their_own_test_examples():
    task = by_writer(source([2, 2, 5, 5, 7], [7, 2, 9, 5]), num_clients=2)
    assert task.clients.num_clients == 2
    np.testing.assert_array_equal(task.test["x"], [101, 103])
    np.testing.assert_array_equal(task.test_owners, [0, 1])
    others = by_writer(source([2, 2, 5], [9, 8, 9]), num_clients=1)  # of other writers all are kept
    np.testing.assert_array_equal(others.test["x"], [100, 101, 102])
    np.testing.assert_array_equal(others.test_owners, [2, 1, 2])  # the one who trains is 0
    refused(lambda: by_writer(source([2, 2, 5, 5, 7], [7]), num_clients=4), "must be <= 3, the number of writers")
    data = source([2, 2, 5], [2])  # sorted by client, so not copied
    assert np.shares_memory(by_writer(data).clients.examples["x"], data.train["x"])


@pytest.mark.long
def test_active_devices_share_the_examples_of_each_round():
    """Fed-LAMB's other reading: 20 devices without data, of which 7 share all the examples in each round."""
    task, algorithm = small_task(devices=20), fx.scaffold(0.3)
    options: dict[str, Any] = {"rounds": 3, "cohort_size": 7, "batch_size": 4}
    ways: Any = ({}, {"engine": "eager"}, {"examples": "stream"}, {"client_states": "host"})
    runs = [fx.run(task, algorithm, **options, **way) for way in ways]
    for other in runs[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), runs[0].params, other.params)
    controls = runs[0].clients.tree["hidden"]["bias"]
    cohorts = {int(i) for r in range(3) for i in sample_cohort(jax.random.key(0), r, 20, 7)}
    assert {i for i in range(20) if np.any(controls[i])} == cohorts
    refused(lambda: fx.run(task, algorithm, rounds=1, cohort_size=5), "cohort_size")
    assert fx.load_task("digits", num_clients=10, devices=30).num_clients == 30
