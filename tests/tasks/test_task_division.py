"""Who holds what, as a task's options ask: training and test examples, natural clients, options that do not fit."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.cli.data_commands import table
from fedoptax.data.sources import Source
from fedoptax.engine.sampling import cohort_of_round
from fedoptax.tasks import TASKS
from fedoptax.tasks.division import CENTRAL, DEFAULTS, PARTITION_OPTIONS, divide
from fedoptax.tasks.recipe import OPTIONS, Options
from small import small_task

RECIPE = TASKS["mnist"]


def source(groups: Any, test_groups: Any) -> Source:
    n, m = len(groups), len(test_groups)
    return Source(
        {"x": np.arange(n), "y": np.arange(n) % 3},
        {"x": np.arange(m) + 100, "y": np.arange(m) % 3},
        3,
        (),
        np.asarray(groups),
        np.asarray(test_groups),
    )


@pytest.mark.parametrize("partition", CENTRAL)
def test_test_examples_follow_the_training_examples(partition: str) -> None:
    task = fx.load_task("digits", partition=partition, num_clients=8)
    assert task.test is not None
    assert task.test_owners is not None
    assert len(task.test_owners) == len(task.test["y"]) == 359
    train = np.stack([np.bincount(task.clients.client(i)["y"], minlength=10) for i in range(8)])
    test = np.zeros((8, 10))
    np.add.at(test, (task.test_owners, task.test["y"]), 1)
    expected = test.sum(0) * train / train.sum(0)
    assert np.abs(test - expected).max() < 1 + 1e-9  # rounding only


def test_natural_clients_keep_their_test_examples() -> None:
    division = divide(source([5, 2, 5, 7, 2], [7, 2, 9, 5]), RECIPE, Options(partition="writers"))
    assert [division.clients.client(i)["x"].tolist() for i in range(3)] == [[1, 4], [0, 2], [3]]
    np.testing.assert_array_equal(division.test_owners, [2, 0, 3, 1])  # 9 trains nowhere and comes last
    assert division.spec == {"partition": "writers", "num_clients": 3, "partition_seed": 0}


def test_who_only_tests_is_numbered_after_who_trains() -> None:
    division = divide(source([5, 2, 5, 7, 2], [4, 2, 4, 5, 3]), RECIPE, Options(partition="writers"))
    np.testing.assert_array_equal(division.test_owners, [4, 0, 4, 1, 3])
    others = divide(source([5, 2], [4, 3, 4]), RECIPE, Options(partition="writers"))
    np.testing.assert_array_equal(others.test_owners, [3, 2, 3])
    task = dataclasses.replace(small_task(), clients=division.clients, test_owners=division.test_owners)
    column = [row[2] for row in table(task)]
    assert column == ["test_examples", 1, 1, 0]
    theirs = dataclasses.replace(task, clients=others.clients, test_owners=others.test_owners)
    assert [row[2] for row in table(theirs)] == ["test_examples", "", ""]


def test_the_first_natural_clients_keep_theirs_only() -> None:
    division = divide(source([2, 2, 5, 5, 7], [7, 2, 9, 5]), RECIPE, Options(partition="writers", num_clients=2))
    assert division.clients.num_clients == 2
    np.testing.assert_array_equal(division.test["x"], [101, 103])
    np.testing.assert_array_equal(division.test_owners, [0, 1])
    with pytest.raises(fx.UsageError, match="num_clients: 4 given, allowed is 1 to 3, the number of writers"):
        divide(source([2, 2, 5, 5, 7], [7]), RECIPE, Options(partition="writers", num_clients=4))


def test_other_peoples_test_examples_are_all_kept() -> None:
    division = divide(source([2, 2, 5], [9, 8, 9]), RECIPE, Options(partition="writers", num_clients=1))
    np.testing.assert_array_equal(division.test["x"], [100, 101, 102])
    np.testing.assert_array_equal(division.test_owners, [2, 1, 2])  # the one who trains is 0


def test_examples_that_lie_client_after_client_are_not_moved() -> None:
    given = source([2, 2, 5], [2])
    division = divide(given, RECIPE, Options(partition="writers"))
    assert division.clients.examples["x"] is given.train["x"]


def test_options_of_another_partition_are_refused() -> None:
    for option, value in (("alpha", 0.5), ("shards", 2), ("similarity", 10.0), ("sigma", 1.0), ("classes", 2)):
        with pytest.raises(fx.UsageError, match=f"{option}: .* given, the options of partition 'iid' are num_clients"):
            fx.load_task("digits", partition="iid", **{option: value})


def test_every_option_has_a_default_and_every_recipe_knows_its_own() -> None:
    for partition, options in PARTITION_OPTIONS.items():
        for option in set(options) - {"num_clients"}:
            assert (partition, option) in DEFAULTS
    for name, recipe in TASKS.items():
        assert set(recipe.allowed()) <= set(OPTIONS), name
        assert recipe.model in (*recipe.models, recipe.model)
        for key in recipe.defaults:
            assert key in ("rounds", "cohort_size", "batch_size", "local_epochs", "local_steps", "eval_every")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "digits", "augment": "crop"}, "augment: 'crop' given, task 'digits' has no such option"),
        ({"name": "cifar10", "augment": "corp"}, "augment: unknown name 'corp'; did you mean 'crop'?"),
        ({"name": "digits", "model": "mpl"}, "model of task 'digits': unknown name 'mpl'; did you mean 'mlp'?"),
        ({"name": "digits", "partition": "writers"}, "partition of task 'digits': unknown name 'writers'"),
        ({"name": "synthetic", "classes": 2}, "classes: 2 given, task 'synthetic' has no such option"),
        ({"name": "digits", "partition": "shards", "shards": 0}, "shards: 0 given; from 1 to "),
        ({"name": "digits", "partition": "similarity", "similarity": 101.0}, "similarity: 101.0 given; a percentage"),
        ({"name": "nothing"}, "task: unknown name 'nothing'"),
        ({"name": "file:"}, "task: 'file:' given, allowed is file:PATH"),
    ],
)
def test_what_a_task_does_not_have_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fx.UsageError) as error:
        fx.load_task(**options)
    assert message in str(error.value)


@pytest.mark.long
def test_shares_go_to_the_active_devices_of_each_round() -> None:
    """Fed-LAMB's other reading: 20 devices without data, of which 7 share all the examples in each round."""
    task, algorithm = small_task(devices=20), fx.scaffold(0.3)
    options: dict[str, Any] = {"rounds": 3, "cohort_size": 7, "batch_size": 4}
    runs = [
        fx.run(task, algorithm, **options, **how)
        for how in ({}, {"engine": "eager"}, {"examples": "stream"}, {"client_states": "host"})
    ]
    for other in runs[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), runs[0].params, other.params)
    controls = runs[0].clients.tree["hidden"]["bias"]
    cohorts = {int(i) for r in range(3) for i in cohort_of_round(jax.random.key(0), r, 20, 7)}
    assert {i for i in range(20) if np.any(controls[i])} == cohorts
    with pytest.raises(fx.UsageError, match="cohort_size: 5 given, allowed is 7, the number of shares"):
        fx.run(task, algorithm, rounds=1, cohort_size=5)
    with pytest.raises(fx.UsageError, match="devices: 9 given, allowed is at least num_clients, 10"):
        fx.load_task("digits", num_clients=10, devices=9)
    assert fx.load_task("digits", num_clients=10, devices=30).num_clients == 30
