"""The LSTM is the textbook's, and its own backward pass gives the gradients of automatic differentiation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedoptax.models import functional
from fedoptax.models.recurrent import LSTM, lstm
from refusals import refused
from small_models import assert_close_by_size, init, normal, outputs_and_gradients

TIME, BATCH, IN, UNITS = 6, 3, 4, 5
SHAPES = ((TIME, BATCH, IN), (IN, 4 * UNITS), (UNITS, 4 * UNITS), (4 * UNITS,))


def arguments(dtype, seed=0):
    return [normal(seed + i, shape, dtype) for i, shape in enumerate(SHAPES)]


def plain_lstm(x, kernel, recurrent, bias):
    """By the definition, one time step after another, differentiated by JAX."""
    h = c = jnp.zeros((x.shape[1], UNITS), x.dtype)
    states = []
    for t in range(len(x)):
        i, f, g, o = jnp.split(x[t] @ kernel + h @ recurrent + bias, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        states.append(h)
    return jnp.stack(states)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (jnp.float32, 1e-5),
        pytest.param(jnp.float64, 1e-12, marks=pytest.mark.long),
        pytest.param(jnp.bfloat16, 0.05, marks=pytest.mark.long),
    ],
)
def test_hidden_states_and_gradients_are_those_of_the_definition(dtype, tolerance):
    with jax.enable_x64(dtype == jnp.float64), jax.numpy_dtype_promotion("strict"):
        ours, plain = (outputs_and_gradients(function, *arguments(dtype)) for function in (lstm, plain_lstm))
    assert {array.dtype for array in ours} == {jnp.dtype(dtype)}
    assert_close_by_size(ours, plain, tolerance)


@pytest.mark.long
def test_lstm_trains_clients_at_once_in_a_compiled_loop():
    """Weights and inputs of three clients under `vmap`, gradient steps in a loop: as one after another."""
    clients = [jnp.stack(arrays) for arrays in zip(*(arguments(jnp.float32, seed) for seed in (0, 10, 20)))]

    def train(function, x, *weights):
        def step(_, weights):
            gradients = jax.grad(lambda weights: jnp.mean(function(x, *weights) ** 2))(weights)
            return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

        return lax.fori_loop(0, 3, step, weights)

    ours = jax.jit(jax.vmap(partial(train, lstm)))(*clients)
    alone = jax.jit(partial(train, plain_lstm))
    for i in range(3):
        assert_close_by_size([w[i] for w in ours], alone(*(array[i] for array in clients)), 1e-5)


def test_the_layer_starts_as_in_keras():
    """Glorot uniform kernel, orthonormal rows, a forget bias of 1 in the second quarter; one bias per gate."""
    model = functional(lambda rngs: LSTM(20, 30, rngs=rngs))
    params = init(model)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 4 * 30 * (20 + 30 + 1)
    assert np.abs(params["kernel"]).max() <= np.sqrt(6 / (20 + 120))
    assert np.var(params["kernel"]) == pytest.approx(2 / (20 + 120), rel=0.1)
    np.testing.assert_allclose(params["recurrent"] @ params["recurrent"].T, np.eye(30), atol=1e-5)
    np.testing.assert_array_equal(params["bias"].reshape(4, 30), np.repeat([[0], [1], [0], [0]], 30, axis=1))


def test_shapes_that_do_not_fit_are_refused():
    fitting = dict(zip(("x", "kernel", "recurrent", "bias"), arguments(jnp.float32)))
    for changed in ({"x": jnp.ones((2, 3))}, {"bias": jnp.ones(1)}, {"recurrent": jnp.ones((UNITS, 3 * UNITS))}):
        refused(lambda: lstm(**fitting | changed), "kernel, recurrent and bias must")  # noqa: B023
