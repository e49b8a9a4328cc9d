"""Cohorts and orders are uniform, without replacement, and the same for a given seed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedoptax.engine.sampling import permutation, sample_cohort

order = jax.jit(permutation, static_argnums=(2, 3, 4))


def cohorts(num_clients: int, size: int, rounds: int) -> np.ndarray:
    draw = jax.jit(jax.vmap(lambda r: sample_cohort(jax.random.key(4), r, num_clients, size)))
    return np.asarray(draw(jnp.arange(rounds)))


@pytest.mark.parametrize(("num_clients", "size"), [(10, 9), (10, 10), (5, 1), (100_000, 20), (4000, 3000)])
def test_a_cohort_is_different_clients_in_order(num_clients, size):
    drawn = cohorts(num_clients, size, 3)
    assert drawn.shape == (3, size) and drawn.min() >= 0 and drawn.max() < num_clients
    assert (np.diff(drawn, axis=1) > 0).all()
    assert size == num_clients or len({tuple(row) for row in drawn.tolist()}) > 1


def test_cohorts_are_uniform_over_subsets():
    drawn = cohorts(6, 3, 8000)
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 20
    chi2 = float(((counts - 400) ** 2 / 400).sum())
    assert chi2 < 43.8  # the 0.1 % point of chi-square with 19 degrees of freedom


@pytest.mark.parametrize("n", [1, 64, 65, 300])
def test_a_permutation_does_not_depend_on_buckets(n):
    ways = ((True, 0), (False, 0), (True, n))  # all buckets, one, and those that clients of at least n examples need
    exact, whole, few = (np.asarray(order(jax.random.key(n), jnp.int32(n), 300, *way))[:n] for way in ways)
    np.testing.assert_array_equal(np.sort(exact), np.arange(n))
    np.testing.assert_array_equal(exact, whole)
    np.testing.assert_array_equal(exact, few)


def test_double_precision_draws_the_same():
    """Also of fewer than there is room for: what is not used lies behind all others, however wide the numbers are."""

    def drawn() -> list[np.ndarray]:
        key = jax.random.key(3)
        orders = [order(key, jnp.int32(n), 300, exact, 0)[:n] for exact in (True, False) for n in (7, 65, 300)]
        return [np.asarray(a) for a in (*orders, sample_cohort(key, 5, 100, 7), sample_cohort(key, 5, 3000, 2500))]

    single = drawn()
    with jax.enable_x64(True):
        for one, two in zip(single, drawn(), strict=True):
            np.testing.assert_array_equal(one, two)


def test_permutations_are_uniform():
    orders = jax.vmap(lambda k: permutation(k, jnp.int32(4), 90, exact=False)[:4])(
        jax.random.split(jax.random.key(0), 9600)
    )
    _, counts = np.unique(np.asarray(orders), axis=0, return_counts=True)
    assert len(counts) == 24
    assert float(((counts - 400) ** 2 / 400).sum()) < 49.8  # 0.1 % point, 23 degrees of freedom
