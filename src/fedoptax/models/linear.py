"""The layer of one matrix product, whose gradient by a narrow kernel is fast on CPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

NARROW = 64  # columns of a kernel up to which its transposed gradient was measured to be faster (LOG.md)


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x @ kernel. On a CPU the gradient of a kernel with few columns is computed transposed.

    That gradient, xᵀ g, has a transposed left side and few columns, which XLA multiplies slowly on a CPU: for 20
    examples and a kernel of 784 × 10 in three times the time of gᵀ x, transposed. It can be differentiated in any way.

    Args:
      x: (n, in).
      kernel: (in, out), of x's dtype.

    Returns:
      (n, out), of x's dtype.
    """
    if kernel.shape[1] > NARROW:
        return x @ kernel
    return lax.platform_dependent(x, kernel, cpu=_narrow, default=lambda x, kernel: x @ kernel)


@jax.custom_jvp
def _narrow(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return x @ kernel


def _narrow_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[jax.Array, Any]:
    (x, kernel), (dx, dkernel) = primals, tangents
    changes = [] if _is_zero(dx) else [dx @ kernel]
    changes += [] if _is_zero(dkernel) else [_turned(x, dkernel)]
    y = _narrow(x, kernel)
    return y, sum(changes[1:], changes[0]) if changes else jnp.zeros_like(y)


_narrow.defjvp(_narrow_jvp, symbolic_zeros=True)


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


def _turned(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x @ kernel as (kernelᵀ xᵀ)ᵀ; the barriers keep XLA from turning it, and what is made of it backwards, back."""
    columns = lax.optimization_barrier(kernel.T)
    return lax.optimization_barrier(lax.dot_general(columns, x, (((1,), (1,)), ((), ())))).T


class Linear(nnx.Linear):
    """`flax.nnx.Linear` whose product is `product`: the same parameters and numbers. Arguments as there."""

    def __init__(self, in_features: int, out_features: int, **options: Any) -> None:
        super().__init__(in_features, out_features, dot_general=_dot_general, **options)


def _dot_general(x: jax.Array, kernel: jax.Array, dimensions: Any, **options: Any) -> jax.Array:
    """`product` where it can stand for what Flax asks `lax.dot_general` for."""
    plain = x.ndim == 2 and all(value is None for value in options.values())
    return product(x, kernel) if plain else lax.dot_general(x, kernel, dimensions, **options)
