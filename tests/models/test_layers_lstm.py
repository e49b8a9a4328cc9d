"""The LSTM is the textbook's, and its fused backward pass is that of the plain scan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedoptax.errors import UsageError
from fedoptax.models import functional
from fedoptax.models.recurrent import LSTM, lstm
from small_models import init, normal

TIME, BATCH, IN, UNITS = 6, 3, 4, 5
SHAPES = ((TIME, BATCH, IN), (IN, 4 * UNITS), (UNITS, 4 * UNITS), (4 * UNITS,))


def arguments(dtype, seed=0):
    return [normal(seed + i, shape, dtype) for i, shape in enumerate(SHAPES)]


def in_numpy(x, kernel, recurrent, bias):
    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    h, c, states = np.zeros((BATCH, UNITS)), np.zeros((BATCH, UNITS)), []
    for t in range(len(x)):
        i, f, g, o = np.split(x[t] @ kernel + h @ recurrent + bias, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.stack(states)


def outputs_and_gradients(lowering, args):
    y, pullback = jax.vjp(lambda *args: lstm(*args, lowering=lowering), *args)
    return [y, *pullback(jnp.sin(y))]


def assert_close(ours, theirs, tolerance):
    """Within `tolerance` of the largest number of each array."""
    for a, b in zip(ours, theirs):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


@pytest.mark.parametrize("lowering", ["plain", "fused"])
def test_hidden_states_are_those_of_the_definition(lowering):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        args = arguments(jnp.float64)
        ours = jax.jit(lambda *args: lstm(*args, lowering=lowering))(*args)
    np.testing.assert_allclose(ours, in_numpy(*map(np.asarray, args)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.float64, 1e-12), (jnp.bfloat16, 0.05)])
def test_the_fused_gradients_are_those_of_the_plain_scan(dtype, tolerance):
    with jax.enable_x64(dtype == jnp.float64), jax.numpy_dtype_promotion("strict"):
        args = arguments(dtype)
        fused, plain = (jax.jit(outputs_and_gradients, static_argnums=0)(name, args) for name in ("fused", "plain"))
    assert {array.dtype for array in fused} == {jnp.dtype(dtype)}
    assert_close(fused, plain, tolerance)


def test_one_time_step():
    args = arguments(jnp.float32)
    args[0] = args[0][:1]
    assert_close(outputs_and_gradients("fused", args), outputs_and_gradients("plain", args), 1e-5)


def test_clients_at_once_in_a_compiled_loop():
    """Weights and inputs of three clients under `vmap`, gradient steps in a loop: as one after another, unfused."""
    clients = [jnp.stack(arrays) for arrays in zip(*(arguments(jnp.float32, seed) for seed in (0, 10, 20)))]

    def train(lowering, x, *weights):
        def loss(weights):
            return jnp.mean(lstm(x, *weights, lowering=lowering) ** 2)

        def step(_, weights):
            return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

        return lax.fori_loop(0, 3, step, weights)

    ours = jax.jit(jax.vmap(lambda *args: train("fused", *args)))(*clients)
    alone = jax.jit(lambda *args: train("plain", *args))
    for i in range(3):
        assert_close([w[i] for w in ours], alone(*(array[i] for array in clients)), 1e-5)


@pytest.mark.parametrize(("lowering", "added_up"), [("plain", True), ("fused", False)])
def test_the_fused_loop_does_not_add_up_the_weights_gradient(lowering, added_up):
    """Only the plain backward scan carries an array of the recurrent kernel's shape from step to step."""
    x, kernel, recurrent, bias = arguments(jnp.float32)
    gradient = jax.grad(lambda recurrent: jnp.sum(lstm(x, kernel, recurrent, bias, lowering)))
    equations = jax.make_jaxpr(gradient)(recurrent).jaxpr.eqns
    scans = [equation for equation in equations if equation.primitive.name == "scan"]
    assert len(scans) == 2
    first, number = scans[1].params["num_consts"], scans[1].params["num_carry"]
    carried = [variable.aval.shape for variable in scans[1].invars[first : first + number]]
    assert ((UNITS, 4 * UNITS) in carried) == added_up


def test_the_layer_starts_as_in_keras():
    """Glorot uniform kernel, orthonormal rows, a forget bias of 1 in the second quarter; one bias a gate."""
    model = functional(lambda rngs: LSTM(20, 30, rngs=rngs))
    params = init(model)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 4 * 30 * (20 + 30 + 1)
    assert np.abs(params["kernel"]).max() <= np.sqrt(6 / (20 + 120))
    assert np.var(params["kernel"]) == pytest.approx(2 / (20 + 120), rel=0.1)
    np.testing.assert_allclose(params["recurrent"] @ params["recurrent"].T, np.eye(30), atol=1e-5)
    np.testing.assert_array_equal(params["bias"].reshape(4, 30), np.repeat([[0], [1], [0], [0]], 30, axis=1))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"lowering": "fast"}, "lowering: unknown name 'fast'"),
        ({"x": jnp.ones((2, 3))}, "kernel, recurrent, bias: .* given"),
        ({"x": jnp.ones((2, 3, IN + 1))}, "kernel, recurrent, bias: .* given"),
        ({"bias": jnp.ones(1)}, "kernel, recurrent, bias: .* given"),
        ({"recurrent": jnp.ones((UNITS, 3 * UNITS))}, "kernel, recurrent, bias: .* given"),
    ],
)
def test_wrong_arguments_are_named(changed, named):
    given = dict(zip(("x", "kernel", "recurrent", "bias"), arguments(jnp.float32)))
    with pytest.raises(UsageError, match=f"^{named}"):
        lstm(**given | changed)
