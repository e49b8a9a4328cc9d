"""The layer of a matrix product: equal to a plain one, differentiated in any way, its narrow gradient transposed."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedoptax.models.linear import NARROW, Linear, product

Multiply = Callable[[jax.Array, jax.Array], jax.Array]
SIZES = [(20, 784, 10), (5, 7, 1), (1, 3, 2), (3, 4, NARROW), (3, 4, NARROW + 1)]


def drawn(n: int, fan_in: int, out: int) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(n, fan_in))), jnp.asarray(rng.normal(size=(fan_in, out)))


def energy(multiply: Multiply, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jnp.sum(jnp.sin(multiply(x, kernel)) ** 2)


def plain(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return x @ kernel


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("jitted", [True, False])
def test_product_and_gradients_are_those_of_a_plain_product(size: tuple[int, int, int], jitted: bool) -> None:
    with jax.enable_x64(True):
        x, kernel = drawn(*size)

        def both(multiply: Multiply) -> tuple[jax.Array, ...]:
            slopes = jax.grad(energy, (1, 2))
            return (multiply(x, kernel), *slopes(multiply, x, kernel))

        found = (jax.jit(both, static_argnums=0) if jitted else both)(product)
        for one, other in zip(found, both(plain), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "derive",
    [
        lambda f: jax.jvp(f, *[tuple(drawn(4, 6, 3))] * 2),
        lambda f: jax.jvp(lambda k: f(drawn(4, 6, 3)[0], k), (drawn(4, 6, 3)[1],), (drawn(4, 6, 3)[1],)),
        lambda f: jax.jvp(lambda x: f(x, drawn(4, 6, 3)[1]), (drawn(4, 6, 3)[0],), (drawn(4, 6, 3)[0],)),
        lambda f: jax.hessian(f, argnums=1)(*drawn(4, 6, 3)),
        lambda f: jax.jacrev(jax.jacrev(f, argnums=0), argnums=1)(*drawn(4, 6, 3)),
        lambda f: jax.jacrev(jax.jacfwd(f, argnums=1), argnums=1)(*drawn(4, 6, 3)),
        lambda f: jax.vmap(jax.grad(f, argnums=1), (None, 0))(drawn(4, 6, 3)[0], jnp.ones((5, 6, 3))),
        lambda f: jax.vmap(jax.grad(f, argnums=(0, 1)))(jnp.ones((5, 4, 6)), jnp.ones((5, 6, 3))),
    ],
    ids=[
        "forward",
        "forward in kernel",
        "forward in x",
        "hessian",
        "reverse twice",
        "reverse of forward",
        "kernels",
        "all",
    ],
)
def test_it_can_be_differentiated_in_any_way(derive: Callable[[Callable[..., jax.Array]], Any]) -> None:
    with jax.enable_x64(True):
        found, wanted = (derive(partial(energy, by)) for by in (product, plain))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12), found, wanted)


def products(fan_in: int, out: int) -> list[str]:
    """The forms of the matrix products in the optimized gradient by the kernel."""
    x, kernel = (jnp.asarray(a, jnp.float32) for a in drawn(20, fan_in, out))
    text = jax.jit(jax.grad(lambda k: energy(product, x, k))).lower(kernel).compile().as_text()
    return re.findall(r"= f32\[([\d,]+)\]\S* dot\(", text)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a lowering for CPU")
def test_the_gradient_of_a_narrow_kernel_is_computed_transposed() -> None:
    assert "10,784" in products(784, 10) and "784,10" not in products(784, 10)
    wide = NARROW + 1
    assert f"{wide},784" not in products(784, wide) and f"784,{wide}" in products(784, wide)


def test_other_platforms_take_the_plain_product() -> None:
    x, kernel = (jnp.asarray(a, jnp.float32) for a in drawn(20, 784, 10))
    gradient = jax.jit(jax.grad(lambda k: energy(product, x, k))).trace(kernel)
    text = {platform: gradient.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "cuda")}
    assert "optimization_barrier" in text["cpu"] and "optimization_barrier" not in text["cuda"]


@pytest.mark.parametrize("shape", [(4, 6), (2, 4, 6)])
def test_the_layer_is_flax_s(shape: tuple[int, ...]) -> None:
    ours, theirs = (layer(6, 3, rngs=nnx.Rngs(1)) for layer in (Linear, nnx.Linear))
    jax.tree.map(np.testing.assert_array_equal, nnx.state(ours), nnx.state(theirs))
    x = jnp.asarray(np.random.default_rng(2).normal(size=shape), jnp.float32)
    np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-6)
    assert ours(x.astype(jnp.int32)).dtype == theirs(x.astype(jnp.int32)).dtype == jnp.float32
