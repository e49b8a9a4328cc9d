"""Unequal sizes, and whole numbers in proportion to weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisions import assert_divides, quick, same
from fedoptax.data.heterogeneity import quantity_skew
from fedoptax.data.partition import by_size, heterogeneity, label_counts
from fedoptax.data.partition.common import apportion
from fedoptax.errors import UsageError

skews = st.one_of(
    st.tuples(st.just("lognormal"), st.floats(0, 100)).map(lambda d: {"distribution": d[0], "sigma": d[1]}),
    st.tuples(st.just("powerlaw"), st.floats(0.01, 1e300)).map(lambda d: {"distribution": d[0], "exponent": d[1]}),
)


@quick
@given(st.integers(1, 300), st.integers(1, 300), skews, st.integers(0, 3))
def test_by_size_divides(n, clients, skew, seed):
    clients = min(clients, n)
    parts = by_size(n, clients, seed=seed, **skew)
    assert_divides(parts, n, clients)
    assert same(parts, by_size(np.zeros(n), clients, seed=seed, **skew))


@quick
@given(st.integers(0, 10**6), st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.booleans())
def test_shares_are_whole_and_within_one_of_the_exact_ones(total, weights, as_float):
    weights = np.array(weights, float if as_float else int)
    weights[0] += 1
    shares = apportion(total, weights, np.random.default_rng(0))
    assert shares.sum() == total
    assert np.all(np.abs(shares - total * weights / weights.sum()) < 1 + 1e-6)


def test_remainders_decide_and_ties_are_drawn():
    np.testing.assert_array_equal(apportion(10, np.array([6, 3, 1]), np.random.default_rng(0)), [6, 3, 1])
    np.testing.assert_array_equal(apportion(5, np.array([6, 3, 1]), np.random.default_rng(0)) >= [3, 1, 0], True)
    np.testing.assert_array_equal(apportion(7, np.array([60, 28, 12]), np.random.default_rng(0)), [4, 2, 1])
    winners = {int(np.argmax(apportion(1, np.ones(3, int), np.random.default_rng(seed)))) for seed in range(20)}
    assert winners == {0, 1, 2}


def test_only_the_sizes_are_skewed():
    labels = np.arange(100_000) % 10
    parts = by_size(labels, 20, seed=0, sigma=1.0)
    assert quantity_skew([len(part) for part in parts])["size_gini"] > 0.3
    assert heterogeneity(label_counts(labels, parts, 10)) < 0.05
    assert not same(parts, by_size(labels, 20, seed=1, sigma=1.0))


def test_sizes_have_the_distribution_they_are_named_after():
    """Of large clients: log-normal sizes have a standard deviation σ of the logarithm; Pareto ones a tail exponent."""
    sizes = np.array([len(part) for part in by_size(10**6, 1000, seed=0, sigma=0.7)])
    assert np.log(sizes).std() == pytest.approx(0.7, rel=0.06)
    sizes = np.array([len(part) for part in by_size(10**6, 1000, seed=0, distribution="powerlaw", exponent=2.0)])
    tail = np.log(sizes / sizes.min()).mean()  # the maximum-likelihood estimate of 1 / exponent
    assert 1 / tail == pytest.approx(2.0, rel=0.1)


def test_sigma_0_is_even():
    assert {len(part) for part in by_size(103, 10, seed=0, sigma=0.0)} == {10, 11}


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: by_size(3, 4, seed=0), "num_clients"),
        (lambda: by_size([], 1, seed=0), "labels"),
        (lambda: by_size(9, 4, seed=0, sigma=-1.0), "sigma"),
        (lambda: by_size(9, 4, seed=0, sigma=float("nan")), "sigma"),
        (lambda: by_size(9, 4, seed=0, distribution="powerlaw", exponent=0.0), "exponent"),
        (lambda: by_size(9, 4, seed=0, distribution="powerlaw", exponent=float("inf")), "exponent"),
    ],
)
def test_wrong_arguments_are_named(call, argument):
    with pytest.raises(UsageError, match=f"^{argument}: .*given.*allowed") as error:
        call()
    assert "\n" not in str(error.value)


def test_an_unknown_distribution_comes_with_the_known_ones():
    with pytest.raises(UsageError, match=r"distribution.*'lognorm'.*did you mean 'lognormal'.*powerlaw"):
        by_size(9, 4, seed=0, distribution="lognorm")
