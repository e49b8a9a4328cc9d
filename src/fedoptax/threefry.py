"""Keys of JAX's default random numbers, the same bit for bit, which CPUs draw five times faster.

For CPUs JAX lowers Threefry to a loop in memory. Written out, it becomes part of whatever reads the numbers: a mask
of dropout takes a sixth of the time, and compiling takes less, too (LOG.md has the numbers). Keys are derived from
keys as JAX does it: written out, they would be derived anew in all that reads them.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl, threefry_prng_impl

from fedoptax._tree import on_device

NAME = "threefry2x32"  # what JAX calls the generator
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_WORD = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}


def key(seed: Any) -> jax.Array:
    """As `jax.random.key(seed)`."""
    if isinstance(seed, int) and 0 <= seed < 2**32:  # without compiling anything
        return wrapped(np.array([0, seed], np.uint32))
    return wrapped(jax.random.key_data(jax.random.key(seed, impl=NAME)))


def wrapped(words: np.ndarray | jax.Array) -> jax.Array:
    """As `jax.random.wrap_key_data(words)`: a key of its two words, uint32 (…, 2)."""
    words = on_device(words) if isinstance(words, np.ndarray) else words
    return jax.random.wrap_key_data(words, impl=WRITTEN_OUT)


@jax.jit
def hashed(key: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al., SC 2011) of two words, element by element.

    Args:
      key: uint32 (2,).
      first, second: uint32, of equal shape.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x, y = first + schedule[0], second + schedule[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << distance) | (y >> (32 - distance)))
        x, y = x + schedule[(group + 1) % 3], y + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _random_bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    size = math.prod(shape)
    if width not in _WORD or size >= 2**32:  # rare: as JAX does it
        return jax.random.bits(jax.random.wrap_key_data(key, impl=NAME), shape, jnp.dtype(f"uint{width}"))
    numbers = jnp.arange(size, dtype=jnp.uint32).reshape(shape)
    x, y = hashed(key, jnp.zeros(shape, jnp.uint32), numbers)
    return (x ^ y).astype(_WORD[width])


WRITTEN_OUT = define_prng_impl(
    key_shape=(2,),
    seed=threefry_prng_impl.seed,
    split=threefry_prng_impl.split,
    fold_in=threefry_prng_impl.fold_in,
    random_bits=_random_bits,
    name=NAME,
    tag="fry, written out",
)
