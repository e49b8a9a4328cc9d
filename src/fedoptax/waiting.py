"""Values that wait for others, so that XLA overwrites an array in a loop instead of copying it.

New weights take the memory of the old ones only if the data's dependencies alone tell that nothing reads those any
more, as XLA decides it before it puts operations in order. A layer's new weights do not depend on the backward pass
through the layer, which reads the old ones, unless they are made to wait for it.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Tree = Any

LARGE = 2**15
"""How many numbers a gradient must have to wait: a smaller copy takes no time."""


def after(known: jax.Array, value: Any) -> jax.Array:
    """`value`, a floating-point number, computed no sooner than `known`, another one, is."""
    return _plus_zero(jnp.asarray(value, jnp.result_type(float)), _never(known))


def after_backward(loss: jax.Array, grads: Tree) -> tuple[jax.Array, Tree]:
    """`loss` and `grads`, but neither the loss nor a large gradient is known before those of all matrices are."""
    matrices = [g for g in jax.tree.leaves(grads) if g.size and g.ndim > 1]
    if len(matrices) < 2 or all(g.size < LARGE for g in matrices):
        return loss, grads
    numbers = [jnp.real(g[(0,) * g.ndim]).astype(loss.dtype) for g in matrices]
    # behind the barrier it is computed once, not in every operation that waits for it
    never = lax.optimization_barrier(_never(reduce(jnp.add, numbers)))
    return _plus_zero(loss, never), jax.tree.map(lambda g: _plus_zero(g, never) if g.size >= LARGE else g, grads)


def _never(known: jax.Array) -> jax.Array:
    """False: what differs from itself, NaN, does not equal itself. XLA's passes over a program do not know that."""
    return (known != known) & (known == known)


def _plus_zero(value: jax.Array, never: jax.Array) -> jax.Array:
    return value + never.astype(value.dtype)
