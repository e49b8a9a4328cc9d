"""Numerical robustness: every algorithm under extreme gradients, rates, types and clients. No silent NaN, no warning.

The gradients are given, not derived, so that each case is exactly what its name says.
"""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
import laws
from fedoptax.algorithm import FedAlgorithm
from fedoptax.tree import all_finite
from laws import START
from laws_table import CORE, ROWS

SIGNS = {"layer": {"kernel": np.array([[1.0, -1.0], [1.0, 1.0]]), "bias": np.array([-1.0, 1.0])}}
every = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in (*CORE, "fedadam", "fedlamb") else [pytest.mark.long]) for name in ROWS],
)
RATES = ("client_lr", "lr", "server_lr")


def given_gradient(params: Any, batch: Any) -> tuple[jax.Array, Any]:
    """A batch is the size of every coordinate of its gradient; its sign is fixed."""
    grads = jax.tree.map(lambda p, s: (batch * jnp.asarray(s, jnp.float32)).astype(p.dtype), params, SIGNS)
    return jnp.abs(batch), grads


def rounds_of(
    algorithm: FedAlgorithm, gradients: list[list[float]], dtype: str = "float32", start: Any = START
) -> tuple[Any, list[Any], list[float]]:
    """Three eager rounds of clients with these gradients, a number a local step; the states and the losses."""
    params = jax.tree.map(lambda a: jnp.asarray(a, dtype), start)
    batches = [[jnp.float32(g) for g in own] for own in gradients]
    server, clients, losses = algorithm.init(params), [algorithm.init_client(params) for _ in batches], []
    for _ in range(3):
        server, clients, info = fx.eager.run_round(algorithm, given_gradient, server, clients, batches)
        losses.append(float(info.train_loss))
    return server, clients, losses


def assert_finite(*trees: Any) -> None:
    for tree in trees:
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            values = np.asarray(leaf, np.float64)
            assert np.isfinite(values).all(), f"{jax.tree_util.keystr(path)}: {values}"


FINITE: dict[str, tuple[list[list[float]], str]] = {  # gradients, dtype
    **{f"size {a}": ([[a, a], [a], [-a, a, a]], "float32") for a in (1e-40, 1e-25, 1e-12, 1e6, 1e15)},
    **{f"size {a} in bfloat16": ([[a, -a], [a]], "bfloat16") for a in (1e-30, 1e-3, 1.0, 1e4)},
    "a client without batches": ([[], [0.5]], "float32"), "no batches": ([[]], "float32"),
}  # fmt: skip


@every
def test_gradients_with_finite_squares_and_empty_clients_leave_everything_finite(name):
    for case, (gradients, dtype) in FINITE.items():
        assert_finite({case: rounds_of(ROWS[name](), gradients, dtype)})


@every
def test_zero_gradients_move_nothing(name):
    """Also where parameters, norms and second moments are all 0; weight decay alone may shrink parameters."""
    algorithm = ROWS[name]()
    for start in (START, jax.tree.map(np.zeros_like, START)):
        server, clients, losses = rounds_of(algorithm, [[0.0, 0.0], [0.0]], start=start)
        assert_finite(server, clients, losses)
        made_of = [inspect.signature(fx.ALGORITHMS[word]) for word in name.split() if word in fx.ALGORITHMS]
        if not any("weight_decay" in signature.parameters for signature in made_of):
            laws.close(algorithm.params(server), jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), start), 1e-7, 0)
        jax.tree.map(lambda a, b: np.testing.assert_array_less(abs(a), abs(b) + 1e-6), algorithm.params(server), start)


@every
def test_overflow_is_seen_in_the_state(name):
    """Gradients of 1e30, whose squares are infinite in float32: the server's state is finite, or is known not to be."""
    algorithm = ROWS[name]()
    server, _, _ = rounds_of(algorithm, [[1e30, 1e30], [1e30]])
    finite = all(np.isfinite(np.asarray(a, np.float64)).all() for a in jax.tree.leaves(server))
    assert bool(all_finite(server)) == finite


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_extreme_rates_end_finite_or_are_reported(name):
    """`run` with rates of 1e-30 and 1e30: it completes with finite results, or says that it diverged and keeps the last
    finite state. The history holds no NaN either way."""
    make = ROWS[name]
    names = [n for n in RATES if n in inspect.signature(make).parameters]
    free = [n for n in names if isinstance(inspect.signature(make).parameters[n].default, float)]
    if not free:
        pytest.skip("its rates are made of other constants")
    points = fx.sweep(
        laws.TASK, make, {n: [1e-30, 1e30] for n in free}, rounds=4, cohort_size=3, batch_size=2, progress=False
    )
    for point in points:
        assert point.status in ("completed", "diverged")
        assert_finite(point.params, point.state)
        assert (point.status == "completed") == (len(point.history) == 4)
        for row in point.history:
            assert all(value is None or np.isfinite(value) for value in row.values() if not isinstance(value, str))
