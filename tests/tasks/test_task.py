"""Tasks: losses with and without masks, divergence, and pickling."""

import copy
import dataclasses
import pickle
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.experiments.result import DivergedError
from fedoptax.tasks.task import masked_mean, padded_loss
from refusals import refusals, refused
from small import line, log_probabilities, small_task

pytestmark = pytest.mark.usefixtures("clean_home")

DIGITS = fx.load_task("digits", model="logistic", num_clients=8)


@pytest.mark.parametrize("way", ["masked_mean", "get", "in", "jitted", "none"])
def test_a_loss_that_reads_the_mask_is_called_with_it(way):
    """It is called once, with the whole batch; one that does not look is called example by example."""
    shapes: list[tuple[int, ...]] = []

    def values(params: Any, batch: Any) -> jax.Array:
        shapes.append(batch["x"].shape)
        return params * batch["x"]

    def by_get(batch: Any) -> Any:
        return batch.get("mask", 1.0)

    def by_in(batch: Any) -> Any:
        return batch["mask"] if "mask" in batch else 1.0  # noqa: SIM401, another way than `get`

    losses = {
        "masked_mean": lambda params, batch, key: masked_mean(values(params, batch), batch),
        "get": lambda params, batch, key: jnp.sum(values(params, batch) * by_get(batch)) / jnp.sum(by_get(batch)),
        "in": lambda params, batch, key: jnp.sum(values(params, batch) * by_in(batch)) / jnp.sum(by_in(batch)),
        "none": lambda params, batch, key: jnp.mean(values(params, batch)),
    }
    losses["jitted"] = jax.jit(losses["masked_mean"])
    batch = {"x": jnp.asarray([1.0, 5.0, 100.0]), "mask": jnp.asarray([True, True, False])}
    assert float(padded_loss(losses[way], jnp.float32(2.0), batch, jax.random.key(0))) == 6.0
    assert shapes[-1] == ((1,) if way == "none" else (3,))


MASK = jnp.asarray([True, True, False])
WRONG_LOSSES: dict[str, tuple[Any, str]] = {
    "a loss per example": (lambda p, b, key: -log_probabilities(p, b), r"float32\[4\]"),
    "a masked loss per example": (lambda p, b, key: -log_probabilities(p, b) * b["mask"], r"float32\[4\]"),
    "a whole loss": (lambda p, b, key: jnp.sum(b["y"]), r"int32\[\]"),
    "a loss with more": (lambda p, b, key: (jnp.mean(log_probabilities(p, b)), {}), "tuple"),
}


@pytest.mark.parametrize(
    ("values", "mean", "masked"),
    [
        (jnp.asarray([True, False, True]), 2 / 3, 0.5), (jnp.asarray([100, 100, -100], jnp.int8), 100 / 3, 100),
        (jnp.asarray([40000, 40000, 40000], jnp.float16), 40000, 40000), (jnp.asarray([1.0, 2.0, 6.0]), 3, 1.5),
    ],
    ids=lambda value: getattr(value, "dtype", None) and value.dtype.name,
)  # fmt: skip
def test_a_masked_mean_is_the_mean_in_float32(values, mean, masked):
    for batch, wanted in (({}, mean), ({"mask": MASK}, masked), ({"mask": MASK & False}, 0)):
        got = masked_mean(values, batch)
        assert got.dtype == jnp.float32 and float(got) == pytest.approx(wanted, rel=1e-6)


SEVEN_NAMES = {"client_names": tuple("abcdefg"), "test_owners": np.full(len(small_task().test["x"]), 7)}
WRONG_TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "complex parameters": ({"init": lambda key: {"w": jnp.zeros(3, complex)}}, r"'w'.*complex64\[3\]"),
    "no parameters": ({"init": lambda key: {"w": None}}, "init"),
    "keys of two kinds": ({"init": lambda key: {1: jnp.zeros(2), "a": jnp.zeros(2)}}, "init"),
    "arguments": ({"loss": lambda params, batch: 0.0}, r"loss.*\(params, batch, key\)"),
    "a number of classes": ({"classes": 3}, "classes"),
    "another metric": ({"primary_metric": "pairs"}, "primary_metric"),
    **{f"a norm of {norm}": ({"clip_norm": norm}, "clip_norm") for norm in (-1.0, 0.0)},
    **{f"{size} examples at once": ({"eval_batch": size}, "eval_batch") for size in (0, 2.5)},
    "names without one of a client that only tests": (SEVEN_NAMES, "client_names must be 8"),
    "text for a truth value": ({"higher_is_better": "no"}, "higher_is_better"),
    **{
        f"{which}, {clip}": ({"loss": loss, "clip_norm": clip}, f"loss .*'small' must return one floating.*{form}")
        for which, (loss, form) in WRONG_LOSSES.items()
        for clip in (None, 1.0)
    },
}


def run_once(**changes: Any) -> fx.RunResult:
    return fx.run(small_task(**changes), fx.fedavg(0.1), rounds=1, cohort_size=2, batch_size=4)


test_what_is_no_task_is_refused_by_name = refusals(
    {which: (partial(run_once, **changes), name) for which, (changes, name) in WRONG_TASKS.items()}
)


def test_a_run_that_diverges_names_the_clients_of_its_last_round():
    task = dataclasses.replace(line(), client_names=tuple("abcdefgh"))
    with pytest.raises(DivergedError, match=r"not finite in a round of b, e$"):
        fx.run(task, fx.fedavg(1e38), rounds=9, cohort_size=2)


def test_a_task_of_load_task_is_pickled_by_its_spec_and_another_says_why_not():
    task = pickle.loads(pickle.dumps(DIGITS))
    assert task.spec == DIGITS.spec
    np.testing.assert_array_equal(task.clients.examples["x"], DIGITS.clients.examples["x"])
    for other in (line(), dataclasses.replace(DIGITS, clip_norm=1.0)):
        refused(partial(pickle.dumps, other), "cannot be pickled", "load_task")
        assert copy.deepcopy(other) is other
    refused(lambda: pickle.dumps(fx.fedavg(0.1)), "FedAlgorithm cannot be pickled", "functools.partial")
