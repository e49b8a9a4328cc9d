"""Keys that live in a server's state, and randomness that differs from client to client.

A key is stored as the two uint32 words of a Threefry key, so that states are plain arrays.
"""

from __future__ import annotations

import secrets
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax import threefry
from fedoptax.algorithm import Batches, Tree
from fedoptax.errors import check_int


def key_words(seed: int | None) -> np.ndarray:
    """The key of a seed, uint32 (2,); None draws 64 bits from the operating system.

    Raises:
      UsageError: the seed is not a whole number from 0 to 2^64 − 1.
    """
    if seed is None:
        seed = secrets.randbits(64)
    check_int("seed", seed, 0, 2**64 - 1)
    return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


def first_key(words: np.ndarray, params: Tree) -> jax.Array:
    """The stored key before round 0. It depends on the initial parameters too, so runs of other seeds differ."""
    return jax.random.key_data(jax.random.fold_in(_key(jnp.asarray(words)), digest(params)))


def split(stored: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The stored key of the next round, and a key to use in this one, from which the former cannot be computed."""
    following, use = jax.random.split(_key(stored))
    return jax.random.key_data(following), use


def client_key(stored: jax.Array, batches: Any) -> jax.Array:
    """A key for one client in one round: the message's, mixed with the client's first minibatch.

    Where a minibatch carries keys of its own, as the engines' do, these alone are mixed in, so that padding has no
    effect; else all its numbers are.
    """
    first: Any = ()
    if isinstance(batches, Batches):
        first = batches.get(0)
    elif len(batches):
        first = batches[0]
    keys = [leaf for leaf in jax.tree.leaves(first) if _is_key(leaf)]
    return jax.random.fold_in(_key(stored), digest(keys or first))


def digest(tree: Tree) -> jax.Array:
    """A uint32 that depends on every bit of every leaf and on its place; equal in every engine. Not cryptographic."""
    total = jnp.uint32(len(jax.tree.leaves(tree)))
    for leaf in jax.tree.leaves(tree):
        words = _words(leaf)
        places = _mix(jnp.arange(words.size, dtype=jnp.uint32))
        total = _mix(total * jnp.uint32(31) + jnp.sum(_mix(words ^ places), dtype=jnp.uint32))
    return total


def _key(words: jax.Array) -> jax.Array:
    return threefry.wrapped(words)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _words(leaf: Any) -> jax.Array:
    """The bits of an array as uint32, flat."""
    array = jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.stack([array.real, array.imag])
    small = {1: jnp.uint8, 2: jnp.uint16}.get(array.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(array, small).astype(jnp.uint32).ravel()


def _mix(x: jax.Array) -> jax.Array:
    """The finaliser of MurmurHash3: each bit of the result depends on each bit of `x`."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
