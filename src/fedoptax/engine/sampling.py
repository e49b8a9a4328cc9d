"""Sampling of cohorts, and the order of a client's examples: pure functions of a key, inside XLA."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FLOYD_LIMIT = 2048
_LAST = np.uint32(0xFFFFFFFF)  # sorts behind every 31-bit random number
SETTINGS = ("jax_default_prng_impl", "jax_threefry_partitionable", "jax_random_seed_offset", "jax_enable_x64")


def random_settings() -> dict[str, Any]:
    """JAX's settings that decide, with the seed, all random numbers of a run."""
    return {name: getattr(jax.config, name) for name in SETTINGS}


def round_key(key: jax.Array, round: jax.Array | int) -> jax.Array:
    """The key of a round (0, 1, …) of a run, for its clients' randomness."""
    return jax.random.fold_in(jax.random.fold_in(key, 1), round)


@partial(jax.jit, static_argnums=(2, 3))
def sample_cohort(key: jax.Array, round: jax.Array | int, num_clients: int, size: int) -> jax.Array:
    """Sample a round's cohort: `size` different clients, uniformly without replacement, int32 (size,), increasing.

    Cost: O(size²) cheap operations (Floyd's sampling), whatever the number of clients; a permutation of all clients
    for cohorts above `FLOYD_LIMIT`.
    """
    key = jax.random.fold_in(jax.random.fold_in(key, 2), round)
    if size == num_clients:
        return jnp.arange(num_clients, dtype=jnp.int32)
    if size > FLOYD_LIMIT:
        return jnp.sort(jax.random.permutation(key, num_clients)[:size].astype(jnp.int32))
    # Floyd: for j = N−S … N−1 draw t uniform in 0…j; take t, or j if t was taken before.
    last = num_clients - size + jnp.arange(size, dtype=jnp.int32)
    draws = jax.random.randint(key, last.shape, 0, last + 1, jnp.int32)

    def pick(i: jax.Array, chosen: jax.Array) -> jax.Array:
        return chosen.at[i].set(jnp.where(jnp.any(chosen == draws[i]), last[i], draws[i]))

    return jnp.sort(jax.lax.fori_loop(0, size, pick, jnp.full((size,), -1, jnp.int32)))


def permutation(key: jax.Array, n: jax.Array, capacity: int, exact: bool = True, smallest: int = 0) -> jax.Array:
    """A uniform permutation of 0…n−1 in the first n places of an int32 array (capacity,), for a traced n ≤ capacity.

    Sorting `capacity` random numbers for a client with few examples would cost more than its training, so with `exact`
    the sort is as long as the smallest bucket, capacity/4ᵏ rounded up, that holds n. Vmapped code would run every
    bucket: there `exact=False` sorts once at full length, with the same result. Buckets that only n < `smallest` would
    use are not made: each takes a fifth of a second to compile.
    """
    buckets = [capacity]
    while exact and buckets[0] > max(64, 4 * smallest):
        buckets.insert(0, -(-buckets[0] // 4))

    def shuffle(length: int) -> jax.Array:
        # The i-th random number depends on key and i alone, not on the length, so every bucket gives one result.
        numbers = jax.random.bits(key, (length,), jnp.uint32) >> 1
        order = jnp.argsort(jnp.where(jnp.arange(length) < n, numbers, _LAST))
        return jnp.pad(order.astype(jnp.int32), (0, capacity - length))

    which = jnp.searchsorted(jnp.asarray(buckets), n)
    return jax.lax.switch(which, [lambda length=length: shuffle(length) for length in buckets])
