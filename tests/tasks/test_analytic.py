"""The tasks made from formulas: values that can be checked by hand, and what their parameters do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.tasks import analytic


def value(task: fx.Task, params: Any, i: int) -> tuple[float, Any]:
    """Loss and gradient of client i on all of its examples."""
    own = task.clients.client(i)
    batch = {**own, "mask": np.ones(len(next(iter(own.values()))), bool)}
    loss, grads = jax.jit(jax.value_and_grad(task.loss))(params, batch, jax.random.key(0))
    return float(loss), grads


def metric(task: fx.Task, params: Any, name: str) -> float:
    return float(np.mean(task.metrics(params, task.test)[name]))


@pytest.mark.parametrize(
    ("x", "values", "gradients"),
    [
        (10.0, (58.0, -19.0, -19.0), (6.0, -2.0, -2.0)), (1.0, (3.0, -1.0, -1.0), (6.0, -2.0, -2.0)),
        (0.0, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)), (-0.25, (0.1875, -0.0625, -0.0625), (-1.5, 0.5, 0.5)),
        (-4.0, (22.0, -7.0, -7.0), (-6.0, 2.0, 2.0)),
    ],
)  # fmt: skip
def test_counterexample_is_theorem_1(x, values, gradients):
    task, params = fx.load_task("counterexample"), {"x": jnp.float32(x)}
    found = [value(task, params, i) for i in range(3)]
    assert [loss for loss, _ in found] == list(values)
    assert [float(grads["x"]) for _, grads in found] == list(gradients)
    assert metric(task, params, "distance") == abs(x)


def test_optimum_of_quadratic_solves_the_normal_equations_and_excess_is_the_loss_above_it():
    with jax.enable_x64(True):
        task = analytic.quadratic(6, dimension=4, examples=5)
        optimum = task.test["optimum"][0]
        left, right = np.zeros((4, 4)), np.zeros(4)
        for i in range(6):
            own = task.clients.client(i)
            left += own["H"].mean(axis=0)
            right += np.mean([H @ b for H, b in zip(own["H"], own["b"])], axis=0)
        np.testing.assert_allclose(left @ optimum, right, rtol=1e-12)
        params = {"x": jnp.asarray(optimum)}
        gradients = np.array([value(task, params, i)[1]["x"] for i in range(6)])
        np.testing.assert_allclose(gradients.mean(axis=0), 0, atol=1e-13)
        assert np.abs(gradients).max() > 0.1  # heterogeneous: no client's own optimum
        assert metric(task, params, "distance") == metric(task, params, "excess") == 0.0
        x = np.array([1.0, -2.0, 0.5, 3.0])
        losses = [np.mean([value(task, {"x": jnp.asarray(at)}, i)[0] for i in range(6)]) for at in (x, optimum)]
        assert metric(task, {"x": jnp.asarray(x)}, "excess") == pytest.approx(losses[0] - losses[1], rel=1e-11)
        assert metric(task, {"x": jnp.asarray(x)}, "distance") == pytest.approx(np.linalg.norm(x - optimum), rel=1e-14)


def test_synthetic_is_as_published():
    task = fx.load_task("synthetic", num_clients=200, beta=4.0)
    assert np.var([task.clients.client(i)["x"].mean() for i in range(200)]) == pytest.approx(4, rel=0.25)
    sizes, test = task.clients.sizes, len(task.test["y"])
    assert sizes.min() >= 40 and test == pytest.approx(0.2 * (sizes.sum() + test), rel=0.01)
    assert np.median(sizes) == pytest.approx(0.8 * (50 + np.exp(4)), rel=0.2)
    assert sizes.max() > 20 * np.median(sizes)  # a heavy tail
    assert set(np.unique(task.test["y"])) == set(range(10))
    largest = task.clients.client(int(sizes.argmax()))["x"]
    np.testing.assert_allclose(largest.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.2)
    params = task.init(jax.random.key(0))
    assert value(task, params, 0)[0] == pytest.approx(np.log(10), rel=1e-6)
    assert metric(task, params, "loss") == pytest.approx(np.log(10), rel=1e-6)
