"""Tasks: losses with and without masks, weighted metrics, and training losses computed in bfloat16."""

import copy
import dataclasses
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.data.federated import FederatedData
from fedoptax.engine.batches import Minibatch, task_grad_fn
from fedoptax.engine.evaluation import column_names, evaluate, evaluation_data, primary_metric
from fedoptax.errors import UsageError
from fedoptax.tasks.task import Task, masked_mean, padded_loss
from small import line, log_probabilities, small_task

pytestmark = pytest.mark.usefixtures("clean_home")

FULL, NARROW = (
    fx.load_task("digits", model="logistic", num_clients=8, compute_dtype=dtype) for dtype in ("float32", "bfloat16")
)


def make_batch(task: fx.Task) -> Minibatch:
    examples = {name: jnp.asarray(array[:20]) for name, array in task.clients.examples.items()}
    return Minibatch({**examples, "mask": jnp.arange(20) < 17}, jax.random.key(1))


def test_bfloat16_gradients_come_back_as_float32() -> None:
    params = {"dense1": {"kernel": jnp.full((64, 10), 0.1).at[:, 3].set(0.2), "bias": jnp.arange(10) / 10}}
    loss, grads = jax.jit(task_grad_fn(NARROW))(params, make_batch(NARROW))
    wanted_loss, wanted = jax.jit(task_grad_fn(FULL))(params, make_batch(FULL))
    assert loss.dtype == jnp.float32 and {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
    assert float(loss) == pytest.approx(float(wanted_loss), rel=2**-7)
    for got, exact in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted)):
        scale = float(jnp.abs(exact).max())
        np.testing.assert_allclose(got, exact, rtol=0, atol=0.02 * scale)
        assert not np.array_equal(got, exact)


@pytest.mark.long
def test_bfloat16_leaves_states_and_messages_as_they_are() -> None:
    options = {"rounds": 2, "cohort_size": 3, "batch_size": 10}
    tasks = [fx.load_task("quadratic", num_clients=8, compute_dtype=dtype) for dtype in ("bfloat16", "float32")]
    narrow, full = (fx.run(task, fx.fafed(lr=0.01), **options) for task in tasks)
    forms = [[(a.shape, a.dtype) for a in jax.tree.leaves((r.params, r.state))] for r in (narrow, full)]
    assert forms[0] == forms[1]
    assert narrow.history[-1]["bytes_up"] == full.history[-1]["bytes_up"]


@pytest.mark.long
def test_bfloat16_learns_digits_about_as_well() -> None:
    options = {"rounds": 20, "cohort_size": 8, "batch_size": 10}
    accuracies = [
        fx.run(task, fx.fedadam(client_lr=0.1, server_lr=0.03), **options).history.last("test_accuracy")
        for task in (FULL, NARROW)
    ]
    assert accuracies[0] > 0.8 and accuracies[1] == pytest.approx(accuracies[0], abs=0.03)


@pytest.mark.parametrize("way", ["masked_mean", "get", "in", "item", "copied", "jitted", "none"])
def test_a_loss_that_reads_the_mask_is_called_with_it(way: str) -> None:
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
        "item": lambda params, batch, key: jnp.sum(values(params, batch) * batch["mask"]) / 2,
        "copied": lambda params, batch, key: jnp.sum(values(params, batch) * {**batch}["mask"]) / 2,
        "none": lambda params, batch, key: jnp.mean(values(params, batch)),
    }
    losses["jitted"] = jax.jit(losses["masked_mean"])
    batch = {"x": jnp.asarray([1.0, 5.0, 100.0]), "mask": jnp.asarray([True, True, False])}
    assert float(padded_loss(losses[way], jnp.float32(2.0), batch, jax.random.key(0))) == 6.0
    assert shapes[-1] == ((1,) if way == "none" else (3,))


def test_a_metric_of_values_and_weights_is_a_weighted_mean() -> None:
    data = FederatedData.from_clients([{"x": np.ones(3, np.float32)}])
    test = {"x": np.array([1, 3, 5], np.float32), "w": np.array([1, 3, 0], np.float32)}

    def metrics(params: Any, batch: Any) -> dict[str, Any]:
        return {"zz": batch["x"], "pair": (batch["x"], batch["w"])}

    task = Task("pairs", lambda key: jnp.zeros(()), lambda params, batch, key: params, metrics, data, test, label=None)
    result = evaluate(task, jnp.zeros(()), evaluation_data(task))
    assert float(result["test_pair"]) == pytest.approx((1 * 1 + 3 * 3) / 4)
    assert primary_metric(task) == "pair"
    for changes in ({"clip_norm": -1.0}, {"clip_norm": 0.0}, {"eval_batch": 0}, {"eval_batch": 2.5}):
        with pytest.raises(UsageError, match=next(iter(changes))):
            dataclasses.replace(task, **changes)
    with pytest.raises(UsageError, match="primary_metric"):
        column_names(dataclasses.replace(task, primary_metric="pairs"), jnp.zeros(()), evaluation_data(task))


MASK = jnp.asarray([True, True, False])
WRONG_LOSSES: dict[str, tuple[Any, str]] = {
    "one per example": (lambda p, b, key: -log_probabilities(p, b), r"float32\[4\]"),
    "masked, one per example": (lambda p, b, key: -log_probabilities(p, b) * b["mask"], r"float32\[4\]"),
    "one in a row": (lambda p, b, key: jnp.mean(log_probabilities(p, b))[None], r"float32\[1\]"),
    "NumPy's": (lambda p, b, key: np.ones(4), r"float32\[4\]"),
    "whole": (lambda p, b, key: jnp.sum(b["y"]), r"int32\[\]"),
    "Python's whole": (lambda p, b, key: 1, r"int32\[\]"),
    "complex": (lambda p, b, key: jnp.mean(log_probabilities(p, b)) + 1j, r"complex64\[\]"),
    "with more": (lambda p, b, key: (jnp.mean(log_probabilities(p, b)), {}), "tuple"),
    "none": (lambda p, b, key: None, "None"),
}


@pytest.mark.parametrize("which", WRONG_LOSSES)
def test_a_loss_that_is_not_one_number_is_refused_with_its_form(which: str) -> None:
    loss, form = WRONG_LOSSES[which]
    for changes in ({}, {"clip_norm": 1.0}):
        with pytest.raises(UsageError, match=f"loss of task 'small' must return one floating-point number.*{form}"):
            fx.run(small_task(loss, **changes), fx.fedavg(0.1), rounds=1, cohort_size=2, batch_size=4)


@pytest.mark.parametrize(
    "value", [0.5, np.float64(0.5), jnp.float16(0.5), jnp.float32(0.5)], ids=lambda v: type(v).__name__
)
def test_a_number_of_any_floating_kind_is_a_loss(value: Any) -> None:
    batch = {"x": jnp.ones(3), "mask": MASK}
    loss, grad = jax.value_and_grad(lambda p: padded_loss(lambda p, b, key: value, p, batch, jax.random.key(0)))(1.0)
    assert (loss.shape, float(loss), float(grad)) == ((), 0.5, 0.0)


@pytest.mark.parametrize(
    ("values", "mean", "masked"),
    [
        (jnp.asarray([True, False, True]), 2 / 3, 0.5), (jnp.asarray([100, 100, -100], jnp.int8), 100 / 3, 100),
        (jnp.asarray([40000, 40000, 40000], jnp.float16), 40000, 40000), (jnp.asarray([1.0, 2.0, 6.0]), 3, 1.5),
        (np.asarray([1, 2, 6]), 3, 1.5),
    ],
    ids=lambda value: getattr(value, "dtype", None) and value.dtype.name,
)  # fmt: skip
def test_a_masked_mean_is_the_mean_in_float32(values: Any, mean: float, masked: float) -> None:
    for batch, wanted in (({}, mean), ({"mask": MASK}, masked), ({"mask": MASK & False}, 0)):
        got = masked_mean(values, batch)
        assert got.dtype == jnp.float32 and float(got) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    "values", [jnp.ones((3, 1)), jnp.ones(()), 2.0, jnp.ones(4), jnp.ones(3) + 1j, None, [1.0] * 3]
)
def test_values_that_are_not_one_per_example_have_no_masked_mean(values: Any) -> None:
    with pytest.raises(UsageError, match=r"values must be numbers of shape \(3,\), got"):
        masked_mean(values, {"mask": MASK})


WRONG_TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "whole parameters": ({"init": lambda key: {"w": jnp.zeros(3, int)}}, r"'w'.*int32\[3\]"),
    "Python's numbers": ({"init": lambda key: [[1.0]]}, "'0/0'.*got 1.0"),
    "texts": ({"init": lambda key: {"w": "x"}}, "'w'.*str"),
    "no parameters": ({"init": lambda key: {"w": None}}, "init"),
    "keys of two kinds": ({"init": lambda key: {1: jnp.zeros(2), "a": jnp.zeros(2)}}, "init"),
    "arguments": ({"loss": lambda params, batch: 0.0}, r"loss.*\(params, batch, key\)"),
    "a number of classes": ({"classes": 3}, "classes"),
    "text for a truth value": ({"higher_is_better": "no"}, "higher_is_better"),
}


@pytest.mark.parametrize("which", WRONG_TASKS)
def test_what_is_no_task_is_refused_by_name(which: str) -> None:
    changes, name = WRONG_TASKS[which]
    with pytest.raises(UsageError, match=name) as error:
        fx.run(small_task(**changes), fx.fedavg(0.1), rounds=1, cohort_size=2)
    assert "\n" not in str(error.value)


def test_parameters_of_numpy_are_those_of_jax(recwarn: pytest.WarningsRecorder) -> None:
    task = dataclasses.replace(line(), init=lambda key: np.full(3, 2.0))
    one, other = (fx.run(t, fx.fedadam(0.1, 0.1), rounds=2, cohort_size=3) for t in (task, line()))
    np.testing.assert_array_equal(one.params, other.params)
    assert not recwarn.list


def test_a_task_of_load_task_is_pickled_by_its_spec_and_another_says_why_not() -> None:
    task = pickle.loads(pickle.dumps(FULL))
    assert task.spec == FULL.spec
    np.testing.assert_array_equal(task.clients.examples["x"], FULL.clients.examples["x"])
    for other in (line(), dataclasses.replace(FULL, clip_norm=1.0)):
        with pytest.raises(UsageError, match=r"cannot be pickled.*load_task"):
            pickle.dumps(other)
        assert copy.deepcopy(other) is other
    with pytest.raises(UsageError, match=r"FedAlgorithm cannot be pickled.*functools\.partial"):
        pickle.dumps(fx.fedavg(0.1))
