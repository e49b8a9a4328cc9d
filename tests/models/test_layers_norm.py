"""Group normalization is the usual one, in every dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedoptax.errors import UsageError
from fedoptax.models import functional
from fedoptax.models.normalization import GroupNorm
from small_models import KEY, normal

FEATURES, GROUPS = 6, 3


def ours(epsilon=1e-5):
    return functional(lambda rngs: GroupNorm(FEATURES, GROUPS, epsilon))


def params(dtype=jnp.float32):
    return {"scale": normal(1, (FEATURES,), dtype), "bias": normal(2, (FEATURES,), dtype)}


def in_numpy(x, scale, bias, epsilon):
    n, height, width, features = x.shape
    groups = x.reshape(n, height, width, GROUPS, features // GROUPS)
    mean, variance = (f(groups, axis=(1, 2, 4), keepdims=True) for f in (np.mean, np.var))
    return ((groups - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * scale + bias


def test_each_group_is_normalized():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        x, weights = normal(0, (2, 3, 4, FEATURES), jnp.float64), params(jnp.float64)
        y = jax.jit(ours(epsilon=0.1).apply)(weights, x)
    assert y.dtype == jnp.float64
    expected = in_numpy(np.asarray(x), np.asarray(weights["scale"]), np.asarray(weights["bias"]), 0.1)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-13)


def test_gradients_are_those_of_flax():
    theirs = functional(lambda rngs: nnx.GroupNorm(FEATURES, GROUPS, epsilon=1e-5, rngs=rngs))

    @jax.jit
    def gradients(weights, x):
        losses = (lambda *args, model=model: jnp.sum(jnp.sin(model.apply(*args))) for model in (ours(), theirs))
        return [jax.grad(loss, (0, 1))(weights, x) for loss in losses]

    a, b = gradients(params(), normal(0, (2, 3, 4, FEATURES)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), a, b)


def test_a_large_mean_does_not_cost_the_variance():
    """E[x²] − E[x]² loses all digits here."""
    x = 3e3 + normal(0, (1, 8, 8, FEATURES))
    weights = {"scale": jnp.ones(FEATURES), "bias": jnp.zeros(FEATURES)}
    y = np.asarray(ours().apply(weights, x)).reshape(64, GROUPS, 2)
    np.testing.assert_allclose(y.std(axis=(0, 2)), 1, rtol=1e-3)


def test_bfloat16_in_and_out():
    x, weights = normal(0, (2, 3, 4, FEATURES), jnp.bfloat16), params(jnp.bfloat16)
    with jax.numpy_dtype_promotion("strict"):
        y = ours().apply(weights, x)
    assert y.dtype == jnp.bfloat16
    expected = in_numpy(*(np.asarray(a, np.float64) for a in (x, weights["scale"], weights["bias"])), 1e-5)
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=0.02, atol=0.02)


def test_the_scale_starts_at_one_and_the_bias_at_zero():
    start = ours().init(KEY)
    np.testing.assert_array_equal(start["scale"], 1)
    np.testing.assert_array_equal(start["bias"], 0)


@pytest.mark.parametrize("groups", [0, 4])
def test_groups_that_do_not_divide_are_refused(groups):
    with pytest.raises(UsageError, match=f"^groups: {groups} given for 6 channels"):
        GroupNorm(FEATURES, groups)
