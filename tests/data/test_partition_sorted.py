"""Divisions that sort by label and cut: shards, and a stated similarity."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisions import assert_divides, assert_even, labels_lists, quick, same
from fedoptax.data.partition import heterogeneity, label_counts, shards, similarity
from fedoptax.errors import UsageError


@quick
@given(labels_lists, st.integers(1, 120), st.integers(0, 3), st.data())
def test_shards_divide_with_sizes_that_differ_by_one_a_shard(labels, clients, seed, data):
    clients = min(clients, len(labels))
    s = data.draw(st.integers(1, len(labels) // clients))
    parts = shards(labels, clients, s, seed)
    assert_divides(parts, len(labels), clients)
    assert_even(parts, most=s)
    assert same(parts, shards(labels, clients, s, seed))


@quick
@given(labels_lists, st.integers(1, 120), st.sampled_from([0, 1, 33.3, 50, 95, 99.9, 100]), st.integers(0, 3))
def test_similarity_divides_evenly(labels, clients, s, seed):
    clients = min(clients, len(labels))
    parts = similarity(labels, clients, s, seed)
    assert_divides(parts, len(labels), clients)
    assert_even(parts)
    assert same(parts, similarity(labels, clients, s, seed))


@pytest.mark.parametrize("divide", [lambda y, seed: shards(y, 9, 2, seed), lambda y, seed: similarity(y, 9, 50, seed)])
def test_another_seed_is_another_division(divide):
    labels = np.arange(500) % 10
    assert not same(divide(labels, 0), divide(labels, 1))


def test_the_shards_of_fedavg():
    """60,000 digits, 100 clients, 200 shards of 300: two shards, so at most four digits, mostly two."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))
    parts = shards(labels, 100, 2, seed=0)
    assert {len(part) for part in parts} == {600}
    counts = label_counts(labels, parts, 10)
    assert set(counts.ravel()) == {0, 300, 600}
    assert len({tuple(row > 0) for row in counts}) > 20


def test_a_shard_cuts_through_neighbouring_classes_only():
    labels = np.repeat(np.arange(5), [7, 9, 3, 11, 2])
    for part in shards(labels, 8, 1, seed=0):
        held = sorted(set(labels[part]))
        assert held == list(range(held[0], held[-1] + 1))


def test_similarity_0_gives_neighbouring_classes_in_order():
    labels = np.random.default_rng(0).integers(0, 10, 1000)
    held = [labels[part] for part in similarity(labels, 7, 0, seed=0)]
    assert all(before.max() <= after.min() for before, after in pairwise(held))


def test_similarity_is_the_share_of_iid_examples():
    """10 clients and 10 even classes: at s a client has 100 − s of its 100 % from its own class, s / 10 of each."""
    labels = np.repeat(np.arange(10), 1000)
    for s in (0, 50, 95, 100):
        counts = label_counts(labels, similarity(labels, 10, s, seed=0), 10)
        assert heterogeneity(counts) == pytest.approx(0.9 * (1 - s / 100), abs=0.04)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: shards([0, 1], 3, 1, 0), "num_clients"),
        (lambda: shards([0, 1], 2, 2, 0), "shards_per_client"),
        (lambda: shards([0, 1], 2, 0, 0), "shards_per_client"),
        (lambda: shards([], 1, 1, 0), "labels"),
        (lambda: similarity([0, 1], 0, 50, 0), "num_clients"),
        (lambda: similarity([0, 1], 1, -1, 0), "s"),
        (lambda: similarity([0, 1], 1, 100.1, 0), "s"),
        (lambda: similarity([0, 1], 1, float("nan"), 0), "s"),
    ],
)
def test_wrong_arguments_are_named(call, argument):
    with pytest.raises(UsageError, match=f"^{argument}: .*given.*allowed") as error:
        call()
    assert "\n" not in str(error.value)
