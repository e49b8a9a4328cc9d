"""Our keys give the numbers of JAX's, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedoptax import threefry
from fedoptax.engine.sampling import _below

DRAWS = {
    "bits": lambda key: jax.random.bits(key, (3, 5)),
    "one": lambda key: jax.random.bits(key, ()),
    "none": lambda key: jax.random.bits(key, (0,)),
    "bytes": lambda key: jax.random.bits(key, (7,), jnp.uint8),
    "halves": lambda key: jax.random.bits(key, (7,), jnp.uint16),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (3, 2))),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, jnp.int32(-3))),
    "dropout": lambda key: jax.random.bernoulli(key, 0.3, (20, 64)),
    "normal": lambda key: jax.random.normal(key, (9,)),
    "permutation": lambda key: jax.random.permutation(key, 33),
    "many keys": lambda key: jax.vmap(lambda k: jax.random.uniform(k, (3,)))(jax.random.split(key, 4)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_the_numbers_of_jax(seed, draw):
    wanted = draw(jax.random.key(seed))
    for drawn in (draw(threefry.key(seed)), jax.jit(draw)(threefry.key(seed))):
        assert drawn.dtype == wanted.dtype
        np.testing.assert_array_equal(drawn, wanted)


def test_the_numbers_of_jax_in_64_bits():
    with jax.enable_x64(True):
        for draw in (lambda key: jax.random.bits(key, (5,), jnp.uint64), DRAWS["normal"]):
            np.testing.assert_array_equal(draw(threefry.key(3)), draw(jax.random.key(3)))
        large = 2**40 + 1
        np.testing.assert_array_equal(jax.random.key_data(threefry.key(large)), [2**8, 1])


def test_keys_of_their_words():
    words = np.array([3, 2**32 - 1], np.uint32)
    for given in (words, jnp.asarray(words)):
        np.testing.assert_array_equal(jax.random.key_data(threefry.wrapped(given)), words)
    traced = jax.jit(lambda seed: jax.random.key_data(threefry.key(seed)))(jnp.uint32(9))
    np.testing.assert_array_equal(traced, jax.random.key_data(jax.random.key(9)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bounds", [range(1, 41), [2**31 - 1, 2**20, 2**16 + 1, 2**16, 70_000, 3, 1]], ids=str)
def test_numbers_below_bounds_are_those_of_randint(seed, bounds):
    bounds = jnp.asarray(bounds, jnp.int32)
    wanted = jax.random.randint(jax.random.key(seed), bounds.shape, 0, bounds, jnp.int32)
    for key in (threefry.key(seed), jax.random.key(seed)):
        np.testing.assert_array_equal(_below(key, bounds), wanted)
