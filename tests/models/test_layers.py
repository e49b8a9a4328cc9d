"""Convolution, pooling, dense layers and group normalization give the usual numbers and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from fedoptax.models import functional, winograd
from fedoptax.models.layers import FEW, Conv, GroupNorm, conv, conv_and_pool, max_pool, product
from refusals import refusals
from small_models import KEY, assert_close_by_size, gradients, gradients_of_gradients, normal, outputs_and_gradients
from small_rounds import close

WINOGRAD = [
    # x (n, h, w, in), out, padding, dtype: tiles of 4 x 4, of 2 x 2, parts of tiles
    ((2, 6, 10, 3), 4, "VALID", jnp.float64),
    pytest.param((3, 8, 4, 2), 3, "VALID", jnp.float64, marks=pytest.mark.long),
    pytest.param((2, 5, 9, 2), 1, "SAME", jnp.float64, marks=pytest.mark.long),
    pytest.param((8, 12, 11, 24), 16, "SAME", jnp.float32, marks=pytest.mark.long),
]


def by_order(function, x, kernel):
    """Outputs, gradients, and gradients of gradients."""
    first, second = gradients(function), gradients_of_gradients(function)
    return [function(x, kernel), *first(x, kernel), *second(x, kernel)]


@pytest.mark.parametrize(("x_shape", "out", "padding", "dtype"), WINOGRAD)
def test_convolution_by_winograd_gives_the_numbers_of_lax(x_shape, out, padding, dtype):
    """Of two clients at once."""
    with jax.enable_x64(dtype == jnp.float64), jax.numpy_dtype_promotion("strict"):
        kernel = normal(1, (2, 3, 3, x_shape[3], out), dtype) / dtype(9 * x_shape[3]) ** 0.5  # else sines differ
        args = normal(0, (2, *x_shape), dtype), kernel
        ways = (partial(conv, padding=padding, lowering=by) for by in ("lax", "winograd"))
        expected, ours = (jax.jit(jax.vmap(partial(by_order, way)))(*args) for way in ways)
        assert_close_by_size(ours, expected, 500 * jnp.finfo(dtype).eps)
    assert {array.dtype for array in ours} == {jnp.dtype(dtype)}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((20, 24, 24, 32, 64), True),  # of the EMNIST CNN
        ((20, 26, 26, 1, 32), False),  # too few channels
        ((20, 24, 24, 32, 10), False),  # too few outputs
        ((20, 2, 2, 64, 64), False),  # too few tiles
        ((1, 118, 118, 32, 64), False),  # too large
    ],
)
def test_winograd_pays_for_many_channels_and_tiles(sizes, expected):
    assert winograd.is_faster(*sizes) == expected


@pytest.mark.parametrize("size", [26, pytest.param(8, marks=pytest.mark.long)])  # tiles of 4 x 4, of 2 x 2
def test_winograd_has_small_rounding_errors(size):
    """Root mean squares of the errors of output and gradients, by the size of each. Direct sums have up to 9e-7;
    the points 0, 1, -1, 2, -2 would have 1.3e-6 and 2.5e-6."""
    with jax.enable_x64(True):
        x, kernel = normal(0, (4, size, size, 32)), normal(1, (3, 3, 32, 64))
        ours = outputs_and_gradients(lambda *args: conv(*args, lowering="winograd"), x, kernel)
        exact_args = (a.astype(jnp.float64) for a in (x, kernel))
        exact = outputs_and_gradients(lambda *args: conv(*args, lowering="lax"), *exact_args)
        for found, right, most in zip(ours, exact, (1e-6, 1e-6, 1.5e-6)):  # y, x's gradient, the kernel's
            assert np.sqrt(np.mean((found - right) ** 2) / np.mean(right**2)) < most


@pytest.mark.parametrize(
    ("shape", "size", "stride", "padding"),
    [
        ((2, 7, 5, 3), 2, None, "VALID"),
        pytest.param((1, 9, 10, 2), 3, None, "VALID", marks=pytest.mark.long),
        ((2, 6, 5, 3), 3, 2, "SAME"),  # of ResNet-18
        ((1, 5, 4, 2), 2, 1, "SAME"),
        pytest.param((1, 7, 7, 2), 2, 3, "VALID", marks=pytest.mark.long),
    ],
)
def test_max_pool_gives_the_numbers_of_lax(shape, size, stride, padding):
    x = -5 + normal(0, shape)  # a zero of the padding would win
    step = stride or size

    def window(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, step, step, 1), padding)

    ours = outputs_and_gradients(lambda x: max_pool(x, size, stride, padding), x)
    close(ours, outputs_and_gradients(window, x), rtol=1e-6, atol=1e-6)


def test_max_pool_shares_the_gradient_of_ties():
    gradient = jax.jit(jax.grad(lambda x: max_pool(x, 2).sum()))(jnp.zeros((1, 2, 2, 1)))
    np.testing.assert_array_equal(gradient, 0.25)
    gradient = jax.jit(jax.grad(lambda x: max_pool(x, 2, 1).sum()))(jnp.zeros((1, 2, 3, 1)))
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0.25, 0.5, 0.25]] * 2)


@pytest.mark.parametrize(
    ("x_shape", "k_shape", "padding"),
    [
        ((2, 8, 8, 3), (5, 5, 3, 4), "VALID"),
        ((2, 7, 9, 1), (3, 3, 1, FEW), "SAME"),  # a row and a column are left over
        ((2, 6, 7, 2), (2, 4, 2, 3), "VALID"),
        pytest.param((2, 6, 7, 2), (3, 3, 2, FEW + 1), "VALID", marks=pytest.mark.long),
    ],
)
def test_pooled_convolution_gives_the_numbers_of_both_in_turn(x_shape, k_shape, padding):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        x, kernel = normal(0, x_shape, jnp.float64), normal(1, k_shape, jnp.float64)
        expected = outputs_and_gradients(lambda x, k: max_pool(conv(x, k, padding=padding), 2), x, kernel)
        ours = outputs_and_gradients(lambda x, k: conv_and_pool(x, k, padding), x, kernel)
    close(ours, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    "derive",
    [
        lambda f, x, k: jax.jvp(f, (x, k), (x, k)),
        lambda f, x, k: jax.jvp(lambda k: f(x, k), (k,), (k,)),
        lambda f, x, k: jax.jvp(lambda x: f(x, k), (x,), (x,)),
        lambda f, x, k: jax.hessian(f, argnums=1)(x, k),
        lambda f, x, k: jax.jacrev(jax.jacrev(f, argnums=0), argnums=1)(x, k),
        lambda f, x, k: jax.vmap(jax.grad(f, argnums=(0, 1)))(jnp.stack([x, 2 * x]), jnp.stack([k, -k])),
    ],
    ids=["forward", "forward in kernel", "forward in x", "hessian", "reverse twice", "vmapped"],
)
def test_product_has_derivatives_of_every_order_and_mode(derive):
    with jax.enable_x64(True):
        x, kernel = normal(0, (4, 6), jnp.float64), normal(1, (6, 3), jnp.float64)
        energies = (lambda x, k, by=by: jnp.sum(jnp.sin(by(x, k)) ** 2) for by in (product, jnp.matmul))
        ours, expected = (jax.jit(partial(derive, energy))(x, kernel) for energy in energies)
        close(ours, expected, rtol=1e-11, atol=1e-12)


FEATURES, GROUPS = 6, 3


def group_norm():
    return functional(lambda rngs: GroupNorm(FEATURES, GROUPS, 1e-5))


def test_group_norm_has_the_gradients_of_flax():
    theirs = functional(lambda rngs: nnx.GroupNorm(FEATURES, GROUPS, epsilon=1e-5, rngs=rngs))
    with jax.enable_x64(True):
        weights = {name: normal(seed, (FEATURES,), jnp.float64) for seed, name in enumerate(("scale", "bias"), start=1)}
        args = weights, normal(0, (2, 3, 4, FEATURES), jnp.float64)
        ours, expected = (jax.jit(partial(by_order, model.apply))(*args) for model in (group_norm(), theirs))
    close(ours, expected, rtol=1e-9, atol=1e-9)


def test_group_norm_keeps_the_variance_beside_a_large_mean():
    """E[x²] − E[x]² loses all digits here."""
    x, weights = 3e3 + normal(0, (1, 8, 8, FEATURES)), group_norm().init(KEY)
    np.testing.assert_array_equal(weights["scale"], 1)
    np.testing.assert_array_equal(weights["bias"], 0)
    y = np.asarray(group_norm().apply(weights, x)).reshape(64, GROUPS, 2)
    np.testing.assert_allclose(y.std(axis=(0, 2)), 1, rtol=1e-3)


X, KERNEL = jnp.ones((1, 6, 6, 2)), jnp.ones((3, 3, 2, 1))


WRONG = [
    (lambda: conv(X, KERNEL, padding="FULL"), "padding"), (lambda: conv(X, KERNEL, lowering="patch"), "lowering"),
    (lambda: conv(X, KERNEL, (2, 1), lowering="winograd"), "lowering"),
    (lambda: conv(X[0], KERNEL), "kernel"), (lambda: conv_and_pool(X, jnp.ones((9, 3, 2, 1))), "kernel"),
    (lambda: Conv(2, 4, 3, strides=(2, 2), pool=True, rngs=nnx.Rngs(0)), "strides"),
    (lambda: max_pool(X, 0), "size"), (lambda: max_pool(X, 7), "size"), (lambda: max_pool(X, 2, 0), "stride"),
    (lambda: GroupNorm(FEATURES, 4), "groups"),
]  # fmt: skip
test_wrong_arguments_are_refused_by_name = refusals((call, f"^{argument} must") for call, argument in WRONG)
