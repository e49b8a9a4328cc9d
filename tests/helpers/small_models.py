"""What the tests of models share."""

import jax
import jax.numpy as jnp
import numpy as np

KEY = jax.random.key(0, impl="rbg")  # compiles several times faster than the default generator


def normal(seed, shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def init(model):
    return jax.jit(model.init)(KEY)


def some_params(model):
    """Parameters, for which nothing is compiled."""

    def make(leaf):
        return jnp.asarray(0.1 * np.random.default_rng(leaf.size).normal(size=leaf.shape), jnp.float32)

    return jax.tree.map(make, jax.eval_shape(model.init, KEY))


def size(model):
    """The number of parameters, without making any."""
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, KEY)))


def outputs_and_gradients(function, *args):
    """The outputs, and the gradients of all arguments for some gradient of the outputs; compiled."""

    def evaluate(*args):
        y, pullback = jax.vjp(function, *args)
        return [y, *pullback(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))]

    return jax.jit(evaluate)(*args)


def gradients(function):
    """The gradients of a function of two arguments, of the sum of the sines of its outputs."""
    return jax.grad(lambda *args: jnp.sum(jnp.sin(function(*args))), (0, 1))


def gradients_of_gradients(function):
    """The gradients of the sum of the cosines of its gradients."""
    first = gradients(function)
    return jax.grad(lambda *args: sum(jnp.sum(jnp.cos(g)) for g in jax.tree.leaves(first(*args))), (0, 1))


def assert_close_by_size(ours, expected, tolerance):
    """Within `tolerance` of the largest number of each array."""
    for a, b in zip(ours, expected, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


def assert_dtype_of_params(model, x, shape, dtype):
    """Parameters start in float32; logits of this shape and gradients have the dtype that the parameters are given."""
    with jax.enable_x64(dtype == jnp.float64), jax.numpy_dtype_promotion("strict"):
        shapes = jax.eval_shape(model.init, KEY)
        assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}
        params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), shapes)
        for key in (None, KEY):
            logits = jax.eval_shape(model.apply, params, x, key)
            assert (logits.shape, logits.dtype) == (shape, dtype)
            gradient = jax.grad(lambda params, key=key: jnp.sum(model.apply(params, x, key)))
            leaves = jax.tree.leaves(jax.eval_shape(gradient, params))
            assert {leaf.dtype for leaf in leaves} == {jnp.dtype(dtype)}
