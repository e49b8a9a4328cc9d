"""Tasks: losses with and without masks, weighted metrics, and training losses computed in bfloat16."""

import dataclasses
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
        if "mask" not in batch:
            return 1.0
        return batch["mask"]

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
