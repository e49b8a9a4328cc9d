"""The convolution and the pooling that stay fast in compiled loops are the usual ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedoptax.errors import UsageError
from fedoptax.models import functional, layers
from fedoptax.models.layers import Conv, conv, max_pool

CONVS = [
    # x (n, h, w, in), kernel (h, w, in, out), strides, padding
    ((2, 6, 7, 3), (3, 3, 3, 4), (1, 1), "VALID"),
    ((2, 6, 7, 3), (3, 3, 3, 4), (1, 1), "SAME"),
    ((1, 9, 8, 2), (3, 2, 2, 5), (2, 3), "VALID"),
    ((1, 9, 8, 2), (4, 3, 2, 5), (3, 2), "SAME"),
    ((3, 5, 5, 1), (5, 5, 1, 2), (1, 1), "VALID"),
    ((2, 4, 4, 3), (1, 1, 3, 2), (2, 2), "SAME"),
]


def normal(seed, shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


@pytest.mark.parametrize(("case", "dtype"), [(c, jnp.float64) for c in CONVS] + [(c, jnp.float32) for c in CONVS[2:4]])
def test_conv_as_patches_is_conv(case, dtype):
    x_shape, k_shape, strides, padding = case

    def outputs_and_gradients(x, kernel):
        dimensions = ("NHWC", "HWIO", "NHWC")
        lowerings = {
            "xla": lambda x, k: lax.conv_general_dilated(x, k, strides, padding, dimension_numbers=dimensions),
            "patches": lambda x, k: conv(x, k, strides, padding, "patches"),
            "auto": lambda x, k: conv(x, k, strides, padding),
            "lax": lambda x, k: conv(x, k, strides, padding, "lax"),
        }
        results = {}
        for name, function in lowerings.items():
            y, pullback = jax.vjp(function, x, kernel)
            results[name] = (y, *pullback(jnp.sin(y)))
        return results

    with jax.enable_x64(dtype == jnp.float64), jax.numpy_dtype_promotion("strict"):
        results = jax.jit(outputs_and_gradients)(normal(0, x_shape, dtype), normal(1, k_shape, dtype))
    tolerance = 1e-12 if dtype == jnp.float64 else 1e-5
    expected = results.pop("xla")
    for ours in results.values():
        for a, b in zip(ours, expected):
            assert a.dtype == dtype
            np.testing.assert_allclose(a, b, rtol=10 * tolerance, atol=tolerance)


WINOGRAD = [
    # x (n, h, w, in), out, padding: tiles of 4 x 4 and of 2 x 2, one tile, parts of tiles, chosen by "auto" (the last)
    ((2, 6, 10, 3), 4, "VALID"),
    ((1, 3, 3, 2), 3, "VALID"),
    ((3, 8, 4, 2), 3, "VALID"),
    ((2, 5, 9, 2), 1, "SAME"),
    ((8, 12, 11, 24), 16, "SAME"),
]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize(("x_shape", "out", "padding"), WINOGRAD)
def test_winograds_convolution_is_conv(x_shape, out, padding, dtype):
    """Output and both gradients; in float64 the gradients of gradients too."""

    def outputs_and_gradients(lowering, x, kernel):
        def convolve(x, kernel):
            return conv(x, kernel, padding=padding, lowering=lowering)

        def slope(x, kernel):
            return sum(
                jnp.sum(jnp.cos(g)) for g in jax.grad(lambda *a: jnp.sum(jnp.sin(convolve(*a))), (0, 1))(x, kernel)
            )

        y, pullback = jax.vjp(convolve, x, kernel)
        twice = jax.grad(slope, (0, 1))(x, kernel) if dtype == jnp.float64 else ()  # float32 has too few digits for it
        return y, *pullback(normal(2, y.shape, dtype)), *twice

    with jax.enable_x64(dtype == jnp.float64), jax.numpy_dtype_promotion("strict"):
        x, kernel = normal(0, x_shape, dtype), normal(1, (3, 3, x_shape[3], out), dtype)
        run = jax.jit(outputs_and_gradients, static_argnums=0)
        results = {lowering: run(lowering, x, kernel) for lowering in ("winograd", "auto", "lax")}
    for lowering in ("winograd", "auto"):
        for ours, expected in zip(results[lowering], results["lax"]):
            assert ours.dtype == dtype
            largest = np.abs(np.asarray(expected)).max()  # tiles are summed whole: small results err like large ones
            np.testing.assert_allclose(ours, expected, atol=50 * jnp.finfo(dtype).eps * largest)


@pytest.mark.parametrize(
    ("x_shape", "out", "dtype", "cores", "expected"),
    [
        ((20, 26, 26, 32), 64, jnp.float32, 1, True),
        ((20, 26, 26, 32), 64, jnp.float32, 2, True),
        ((20, 26, 26, 32), 64, jnp.float32, 3, False),  # they share out the product of patches
        ((20, 26, 26, 32), 64, jnp.bfloat16, 1, False),  # its digits are too few for sums of pixels
        ((20, 28, 28, 1), 32, jnp.float32, 1, False),  # too few channels
        ((20, 26, 26, 32), 10, jnp.float32, 1, False),  # too few outputs
        ((20, 4, 4, 64), 64, jnp.float32, 1, False),  # too few tiles
        ((1, 120, 120, 32), 64, jnp.float32, 1, False),  # too large
    ],
)
def test_auto_takes_winograd_where_it_pays(x_shape, out, dtype, cores, expected, monkeypatch):
    monkeypatch.setattr(layers, "cores_a_device", lambda: cores)
    x, kernel = jnp.zeros(x_shape, dtype), jnp.zeros((3, 3, x_shape[3], out), dtype)
    text = jax.jit(lambda *a: conv(*a)).lower(x, kernel).as_text()  # a new function: traced anew
    weights = [f"tensor<{places}x{x_shape[3]}x{out}x" for places in (16, 36)]  # transformed, by either size of tile
    assert any(one in text for one in weights) == expected


@pytest.mark.parametrize("size", [26, 8])  # tiles of 4 x 4, of 2 x 2
def test_winograds_rounding_errors_are_small(size):
    """Root mean squares of the errors of output and gradients, by the size of each. Direct sums have up to 9e-7;
    the points 0, 1, -1, 2, -2 would have 1.3e-6 and 2.5e-6."""
    x, kernel, y_bar = normal(0, (4, size, size, 32)), normal(1, (3, 3, 32, 64)), normal(2, (4, size - 2, size - 2, 64))

    def results(dtype, lowering):
        y, pullback = jax.vjp(lambda *a: conv(*a, lowering=lowering), x.astype(dtype), kernel.astype(dtype))
        return y, *pullback(y_bar.astype(dtype))

    with jax.enable_x64(True):
        allowed = (1e-6, 1e-6, 1.5e-6)  # y, x's gradient, the kernel's
        for ours, exact, most in zip(results(jnp.float32, "winograd"), results(jnp.float64, "lax"), allowed):
            error = jnp.sqrt(jnp.mean((ours - exact) ** 2) / jnp.mean(exact**2))
            assert error < most


@pytest.mark.parametrize("lowering", ["patches", "winograd", "auto"])
def test_conv_vmapped_over_weights_in_a_loop(lowering):
    """One kernel a client, gradient steps in a compiled loop: as with `lax`, client by client."""
    x, kernels = normal(0, (3, 2, 6, 6, 2)), normal(1, (3, 3, 3, 2, 4))

    def train(lowering, x, kernel):
        gradient = jax.grad(lambda kernel: jnp.sum(jnp.tanh(conv(x, kernel, lowering=lowering)) ** 2))
        return lax.fori_loop(0, 3, lambda _, kernel: kernel - 0.01 * gradient(kernel), kernel)

    ours = jax.jit(jax.vmap(lambda x, kernel: train(lowering, x, kernel)))(x, kernels)
    alone = jax.jit(lambda x, kernel: train("lax", x, kernel))
    for i in range(3):
        np.testing.assert_allclose(ours[i], alone(x[i], kernels[i]), rtol=1e-4, atol=1e-5)


def test_the_platform_chooses_the_lowering():
    """The compiled CPU program has no convolution, and no run-time choice; a program for CUDA has one."""
    x, kernel = normal(0, (2, 6, 6, 2)), normal(1, (3, 3, 2, 4))
    traced = jax.jit(jax.grad(lambda kernel: jnp.sum(conv(x, kernel) ** 2))).trace(kernel)
    for platform, expected in (("cpu", False), ("cuda", True)):
        lowered = traced.lower(lowering_platforms=(platform,))
        assert ("stablehlo.convolution" in lowered.as_text()) == expected, platform
    if jax.default_backend() == "cpu":
        assert "conditional(" not in traced.lower().compile().as_text()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"padding": "FULL"}, "padding"),
        ({"lowering": "patch"}, "lowering: unknown name 'patch'; did you mean 'patches'"),
        ({"lowering": "winograd", "strides": (2, 1)}, "lowering: 'winograd' given for a kernel of 3 x 3 with strides"),
        ({"kernel": jnp.ones((3, 3, 5, 1))}, "kernel"),
        ({"kernel": jnp.ones((9, 3, 2, 1))}, "kernel"),
        ({"x": jnp.ones((6, 6, 2))}, "kernel"),
    ],
)
def test_conv_names_wrong_arguments(arguments, named):
    with pytest.raises(UsageError, match=named):
        conv(**{"x": jnp.ones((1, 6, 6, 2)), "kernel": jnp.ones((3, 3, 2, 1)), **arguments})


@pytest.mark.parametrize(("shape", "size"), [((2, 6, 4, 3), 2), ((2, 7, 5, 3), 2), ((1, 9, 10, 2), 3)])
def test_max_pool_is_a_window_maximum(shape, size):
    x = normal(0, shape)

    def window(x):
        sizes = (1, size, size, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, sizes, sizes, "VALID")

    @jax.jit
    def outputs_and_gradients(x):
        results = []
        for function in (lambda x: max_pool(x, size), window):
            y, pullback = jax.vjp(function, x)
            results.append((y, *pullback(jnp.sin(y))))
        return results

    ours, theirs = outputs_and_gradients(x)
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, b)


@pytest.mark.parametrize(
    ("shape", "size", "stride", "padding"),
    [
        ((2, 6, 5, 3), 3, 2, "SAME"),  # of ResNet-18
        ((2, 7, 8, 3), 3, 2, "VALID"),
        ((1, 5, 4, 2), 2, 1, "SAME"),
        ((1, 7, 7, 2), 2, 3, "VALID"),
        ((2, 5, 7, 1), 2, 2, "SAME"),
    ],
)
def test_overlapping_and_padded_windows(shape, size, stride, padding):
    x = -5 + normal(0, shape)  # a zero of the padding would win

    def window(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), padding)

    @jax.jit
    def outputs_and_gradients(x):
        results = []
        for function in (lambda x: max_pool(x, size, stride, padding), window):
            y, pullback = jax.vjp(function, x)
            results.append((y, *pullback(jnp.sin(y))))
        return results

    ours, theirs = outputs_and_gradients(x)
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_max_pool_shares_the_gradient_of_ties():
    np.testing.assert_array_equal(jax.grad(lambda x: max_pool(x, 2).sum())(jnp.zeros((1, 2, 2, 1))), 0.25)


@pytest.mark.parametrize("ties", [False, True])
def test_max_pool_has_derivatives_of_every_order_and_mode(ties):
    """They are JAX's own of a maximum over axes: forward, backward, backward twice, a Hessian's product."""
    x = normal(0, (2, 4, 6, 3))
    x = jnp.round(x) if ties else x

    def plain(x):
        return x.reshape(2, 2, 2, 3, 2, 3).max(axis=(2, 4))

    def derivatives(pool):
        def score(x):
            return jnp.sum(jnp.sin(pool(x)) * x[:, :2, :3])

        slope = jax.grad(score)
        twice = jax.grad(lambda x: jnp.sum(jnp.cos(slope(x))))
        return jax.jvp(pool, (x,), (jnp.cos(x),)), slope(x), twice(x), jax.jvp(slope, (x,), (jnp.cos(x),))[1]

    ours, expected = derivatives(lambda x: max_pool(x, 2)), derivatives(plain)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected)):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [0, 3])
def test_max_pool_names_a_wrong_size(size):
    with pytest.raises(UsageError, match="size"):
        max_pool(jnp.ones((1, 2, 5, 1)), size)


def test_max_pool_shares_the_gradient_of_ties_between_windows_that_overlap():
    gradient = jax.grad(lambda x: max_pool(x, 2, 1).sum())(jnp.zeros((1, 2, 3, 1)))
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0.25, 0.5, 0.25]] * 2)


@pytest.mark.parametrize(("arguments", "named"), [((2, 0), "stride: 0"), ((2, 1, "FULL"), "padding: unknown")])
def test_max_pool_names_wrong_arguments(arguments, named):
    with pytest.raises(UsageError, match=f"^{named}"):
        max_pool(jnp.ones((1, 2, 5, 1)), *arguments)


def test_conv_layer_strides():
    model = functional(lambda rngs: Conv(2, 3, 3, strides=(2, 2), padding="SAME", rngs=rngs))
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert jax.eval_shape(model.apply, params, jnp.ones((1, 7, 8, 2))).shape == (1, 4, 4, 3)
