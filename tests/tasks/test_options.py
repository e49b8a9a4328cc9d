"""The options of the named tasks: what each takes, what it refuses, and how a run's spec builds the task again."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import fedoptax as fx
from fedoptax.cli.setup import reload_task
from fedoptax.data.datasets import emnist
from fedoptax.data.datasets.source import Source
from fedoptax.tasks import TASKS
from fedoptax.tasks.recipe import PARTITION_OPTIONS, TASK_OPTIONS
from refusals import refusals


@pytest.mark.parametrize("name", TASKS)
def test_recipes_are_complete(name):
    recipe = TASKS[name]
    assert set(recipe.option_types()) <= set(TASK_OPTIONS)
    assert not recipe.models or recipe.model in recipe.models
    assert set(recipe.partitions) <= set(PARTITION_OPTIONS)
    work = {"local_epochs", "local_steps"}
    assert set(recipe.defaults) - work == {"rounds", "cohort_size", "batch_size", "eval_every"}
    assert len(work & set(recipe.defaults)) == 1


OF_OTHERS = {"beta": 1.0, "augment": "crop", "client_column": "crop"}  # options of other tasks
SHAPING = ("alpha", "shards", "similarity", "sigma", "classes")  # options of other partitions


WRONG: list[Any] = [
    *(("digits", {name: value}, f"^{name} does not apply to task 'digits'") for name, value in OF_OTHERS.items()),
    *(("digits", {"partition": "iid", name: 2}, f"^{name} does not apply to partition 'iid'") for name in SHAPING),
    ("nothing", {}, "task"), (7, {}, "task"), ("file:", {}, "task"), ("digits", {"aplha": 0.1}, "aplha"),
    ("digits", {"partition": "writers"}, "partition"), ("digits", {"model": "mpl"}, "model"),
    ("digits", {"alpha": -1.0}, "alpha"), ("digits", {"num_clients": 0}, "num_clients"),
    ("digits", {"partition": "classes", "classes": 11}, "classes"),
    ("digits", {"partition": "shards", "shards": 1000}, "shards"),
    ("digits", {"partition": "similarity", "similarity": 101.0}, "similarity"), ("digits", {"seed": -1}, "seed"),
    ("digits", {"compute_dtype": "float8"}, "compute_dtype"),
    ("digits", {"validation_fraction": 1e-4}, "validation_fraction"),
    ("counterexample", {"validation_fraction": 0.5}, "validation_fraction"),
    ("cifar10", {"augment": "corp"}, "augment"), ("quadratic", {"num_clients": 0}, "num_clients"),
    ("synthetic", {"alpha": -0.1}, "alpha"), ("synthetic", {"partition": "iid"}, "partition"),
    ("quadratic", {"metrics": "auroc"}, "'auroc' need a task that predicts classes"),
    ("digits", {"metrics": "roc"}, "^metrics must be one of"), ("digits", {"lora": 2}, "^lora"),
]  # fmt: skip
test_wrong_options_are_refused_by_name = refusals(
    (partial(fx.load_task, name, **options), argument) for name, options, argument in WRONG
)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("digits", {"num_clients": 7, "seed": 2, "devices": 9, "model": "logistic"}),
        ("digits", {"partition": "shards", "shards": 3, "num_clients": 7}),
        ("synthetic", {"num_clients": 7, "seed": 2, "beta": 0.5}),
        ("quadratic", {"num_clients": 7, "seed": 2, "compute_dtype": "bfloat16"}),
        ("synthetic", {"num_clients": 7, "validation_fraction": 0.2}),
        ("counterexample", {}),
        ("emnist-ae", {"partition": "iid", "num_clients": 3}),  # its spec names a model, which is no option
    ],
)
def test_spec_builds_the_task_again(name, options, monkeypatch):
    part = {"x": np.zeros((9, 28, 28, 1), np.uint8), "y": np.arange(9, dtype=np.int32)}
    monkeypatch.setattr(emnist, "load", lambda data_dir: Source(part, part, 9, (28, 28, 1)))
    task = fx.load_task(name, **options)
    assert {k: v for k, v in options.items() if k != "seed"}.items() <= task.spec.items()
    again = reload_task({"name": name, **task.spec}, None)
    assert (again.spec, again.num_clients) == (task.spec, task.num_clients)
    for field, array in task.clients.examples.items():
        np.testing.assert_array_equal(array, again.clients.examples[field])
