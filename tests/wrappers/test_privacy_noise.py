"""The noise of `with_privacy`: its distribution, and that it is added once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedoptax as fx
from fedoptax.wrappers.uploads import split_key
from sending import a_round, sender

SHAPES = {"kernel": (100, 150), "bias": (5000,)}
CLIP, Z, S = 3.0, 0.8, 4
STD = Z * CLIP / S


def zeros() -> Any:
    return {name: jnp.zeros(shape) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def rounds():
    """What each of three rounds adds to parameters that no client wants to move."""
    algorithm = fx.with_privacy(sender(), CLIP, Z, 1e-5, seed=11)
    server, before, added = algorithm.init(zeros()), zeros(), []
    for _ in range(3):
        server, _, _ = a_round(algorithm, server, [zeros()] * S, num_clients=40)
        after = algorithm.params(server)
        added.append({name: np.asarray(after[name] - before[name]) for name in SHAPES})
        before = after
    return added


def test_the_noise_is_normal_with_the_standard_deviation_of_the_mean(rounds):
    """20,000 numbers tell a standard deviation to 0.5 %; noise by every client would give twice as much, √|S|."""
    for part in rounds[0].values():
        assert part.std() == pytest.approx(STD, rel=4 / np.sqrt(2 * part.size))
        assert abs(part.mean()) < 4 * STD / np.sqrt(part.size)
        assert stats.kstest(part.ravel() / STD, "norm").pvalue > 0.01


def test_coordinates_leaves_and_rounds_are_independent(rounds):
    def correlated(a: np.ndarray, b: np.ndarray) -> bool:
        return abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) > 4 / np.sqrt(a.size)

    first, second, third = rounds
    for a, b in ((first, second), (second, third), (first, third)):
        for name in SHAPES:
            assert not correlated(a[name], b[name]), name
    kernel = first["kernel"]
    assert not correlated(kernel[:, 1:], kernel[:, :-1]) and not correlated(kernel[1:], kernel[:-1])
    assert not correlated(kernel.ravel()[:5000], first["bias"])
    assert correlated(kernel, kernel)


def test_noise_depends_on_the_seed_and_on_the_initial_parameters():
    def noise(seed: int | None, start: float) -> np.ndarray:
        algorithm = fx.with_privacy(sender(), 1.0, 1.0, 1e-5, seed=seed)
        server = algorithm.init({"w": jnp.full(8, start)})
        return np.asarray(algorithm.params(a_round(algorithm, server, [{"w": jnp.zeros(8)}])[0])["w"]) - start

    np.testing.assert_array_equal(noise(5, 0.0), noise(5, 0.0))
    drawn = [noise(5, 0.0), noise(6, 0.0), noise(5 + 2**40, 0.0), noise(5, 1.0), noise(None, 0.0), noise(None, 0.0)]
    for i, a in enumerate(drawn):
        for b in drawn[:i]:
            assert np.abs(a - b).max() > 1e-3


def test_the_state_does_not_hold_the_key_of_past_noise():
    algorithm = fx.with_privacy(sender(), 1.0, 1.0, 1e-5)
    server = algorithm.init({"w": jnp.zeros(2)})
    later, _, _ = a_round(algorithm, server, [{"w": jnp.zeros(2)}])
    used = jax.random.key_data(split_key(server.key)[1])
    assert not np.array_equal(server.key, later.key) and not np.array_equal(used, later.key)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(later)} == {"float32", "int32", "uint32"}
