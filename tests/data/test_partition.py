"""Every division of a data set is one: each example once, no empty client, the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisions import alphas, assert_divides, assert_even, labels_lists, quick, same
from fedoptax.data.partition import (
    PARTITIONS,
    classes_per_client,
    dirichlet,
    dirichlet_by_class,
    heterogeneity,
    iid,
    label_counts,
    natural,
)
from fedoptax.errors import UsageError


@quick
@given(labels_lists, st.integers(1, 120), st.integers(0, 3))
def test_iid_divides_evenly(labels, clients, seed):
    clients = min(clients, len(labels))
    parts = iid(labels, clients, seed)
    assert_divides(parts, len(labels), clients)
    assert same(parts, iid(len(labels), clients, seed))
    assert_even(parts)


@quick
@given(labels_lists, st.integers(1, 120), alphas, st.integers(0, 3))
def test_dirichlet_divides_evenly(labels, clients, alpha, seed):
    clients = min(clients, len(labels))
    parts = dirichlet(labels, clients, alpha, seed)
    assert_divides(parts, len(labels), clients)
    assert same(parts, dirichlet(labels, clients, alpha, seed))
    assert_even(parts)


@quick
@given(labels_lists, st.integers(1, 120), alphas, st.integers(0, 3), st.data())
def test_dirichlet_by_class_divides_with_a_smallest_size(labels, clients, alpha, seed, data):
    clients = min(clients, len(labels))
    min_size = data.draw(st.integers(1, len(labels) // clients))
    parts = dirichlet_by_class(labels, clients, alpha, seed, min_size)
    assert_divides(parts, len(labels), clients)
    assert same(parts, dirichlet_by_class(labels, clients, alpha, seed, min_size))
    assert min(len(part) for part in parts) >= min_size


@quick
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 30), st.integers(0, 3), st.data())
def test_every_client_holds_exactly_so_many_classes(num_classes, classes, clients, seed, data):
    classes = min(classes, num_classes)
    clients = max(clients, -(-num_classes // classes))
    sizes = data.draw(st.lists(st.integers(clients, 3 * clients), min_size=num_classes, max_size=num_classes))
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(num_classes), sizes))
    parts = classes_per_client(labels, clients, classes, seed)
    assert_divides(parts, len(labels), clients)
    assert same(parts, classes_per_client(labels, clients, classes, seed))
    assert {len(set(labels[part])) for part in parts} == {classes}


@quick
@given(st.lists(st.sampled_from(["f1", "f2", "f30", "g"]), min_size=1, max_size=50))
def test_natural_has_a_client_for_each_group(groups):
    parts = natural(groups)
    assert_divides(parts, len(groups), len(set(groups)))
    assert [{groups[i] for i in part} for part in parts] == [{group} for group in sorted(set(groups))]


@pytest.mark.parametrize(
    "divide",
    [
        lambda y, seed: iid(y, 9, seed),
        lambda y, seed: dirichlet(y, 9, 0.5, seed),
        lambda y, seed: dirichlet_by_class(y, 9, 0.5, seed),
        lambda y, seed: classes_per_client(y, 9, 3, seed),
    ],
)
def test_another_seed_is_another_division(divide):
    labels = np.arange(500) % 10
    assert not same(divide(labels, 0), divide(labels, 1))


def test_five_of_ten_classes_in_equal_shares():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    counts = label_counts(labels, classes_per_client(labels, 20, 5, seed=0), 10)
    assert np.all((counts > 0).sum(1) == 5)
    assert np.all((counts > 0).sum(0) == 10)
    assert np.all(counts[counts > 0] == 60)
    assert len({tuple(row > 0) for row in counts}) > 5  # not two groups of clients only
    assert heterogeneity(counts) == pytest.approx(0.5)


def test_shares_follow_the_sizes_of_the_classes():
    labels = np.repeat([0, 1], [900, 100])
    sizes = [len(part) for part in classes_per_client(labels, 10, 1, seed=0)]
    assert sizes == [100] * 10


def test_alpha_orders_heterogeneity():
    labels = np.arange(20_000) % 10
    for divide in (dirichlet, dirichlet_by_class):
        distances = [heterogeneity(label_counts(labels, divide(labels, 50, a, 0), 10)) for a in (0.01, 0.3, 1e6)]
        assert distances[0] > 0.7 > distances[1] > 0.2 > 0.1 > distances[2]


def test_dirichlet_has_the_moments_of_its_distribution():
    """With plenty of every class, a client's share of a class is Beta(α, 9α): variance 0.09 / (10α + 1)."""
    labels = np.arange(200_000) % 10
    parts = dirichlet(labels, 2_000, 0.5, seed=0)[:400]
    shares = label_counts(labels, parts, 10) / 100
    first = shares[:, 0]
    expected = 0.09 / 6 + (0.09 - 0.09 / 6) / 100  # of the shares, and of 100 draws by them
    assert first.mean() == pytest.approx(0.1, abs=0.03)
    assert first.var() == pytest.approx(expected, rel=0.35)


def test_counts_and_heterogeneity_by_hand():
    counts = label_counts([0, 0, 1, 1], [np.array([0, 1]), np.array([2]), np.array([3])], 3)
    np.testing.assert_array_equal(counts, [[2, 0, 0], [0, 1, 0], [0, 1, 0]])
    assert heterogeneity(counts) == pytest.approx(0.5)
    assert heterogeneity([[1, 1], [3, 3]]) == 0.0


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: iid(10, 0, 0), "num_clients"),
        (lambda: iid(10, 11, 0), "num_clients"),
        (lambda: iid(10, 3.5, 0), "num_clients"),
        (lambda: iid(10, 3, -1), "seed"),
        (lambda: iid(10, 3, None), "seed"),
        (lambda: dirichlet([0, 1], 1, 1.0, 0.5), "seed"),
        (lambda: iid([[1, 2]], 1, 0), "labels"),
        (lambda: dirichlet([0, 1], 3, 1.0, 0), "num_clients"),
        (lambda: dirichlet([0, 1], 1, 0.0, 0), "alpha"),
        (lambda: dirichlet([0, 1], 1, float("nan"), 0), "alpha"),
        (lambda: dirichlet([0, 1], 1, float("inf"), 0), "alpha"),
        (lambda: dirichlet([], 1, 1.0, 0), "labels"),
        (lambda: dirichlet_by_class([0, 1], 0, 1.0, 0), "num_clients"),
        (lambda: dirichlet_by_class([0, 1], 1, -1.0, 0), "alpha"),
        (lambda: dirichlet_by_class([0, 1], 2, 1.0, 0, min_size=2), "min_size"),
        (lambda: dirichlet_by_class([0, 1], 2, 1.0, 0, min_size=0), "min_size"),
        (lambda: classes_per_client([0, 1], 3, 1, 0), "num_clients"),
        (lambda: classes_per_client([0, 1], 1, 0, 0), "classes"),
        (lambda: classes_per_client([0, 1], 1, 3, 0), "classes"),
        (lambda: classes_per_client([0, 1, 2], 2, 1, 0), "classes"),
        (lambda: classes_per_client([0, 1, 1], 2, 2, 0), "classes"),
        (lambda: natural([]), "groups"),
        (lambda: label_counts([0, 5], [np.array([0, 1])], 2), "labels"),
        (lambda: heterogeneity([[1, 1], [0, 0]]), "counts"),
    ],
)
def test_wrong_arguments_are_named(call, argument):
    with pytest.raises(UsageError, match=f"^{argument}: .*given.*allowed|^{argument}: .*given") as error:
        call()
    assert "\n" not in str(error.value)


def test_one_class_a_client_is_covered_by_classes_per_client():
    labels = np.random.default_rng(0).integers(0, 10, 1000)
    parts = classes_per_client(labels, 40, 1, seed=0)
    assert {len(set(labels[part])) for part in parts} == {1}
    assert {labels[part[0]] for part in parts} == set(range(10))


def test_names():
    assert all(name == divide.__name__ for name, divide in PARTITIONS.items())
    label_skews = {"dirichlet", "dirichlet_by_class", "pachinko", "classes_per_client", "shards", "similarity"}
    assert set(PARTITIONS) == label_skews | {"iid", "by_size", "natural"}


def test_many_clients():
    labels = np.random.default_rng(0).integers(0, 62, 60_000)
    arguments = {
        "iid": (),
        "by_size": (),
        "dirichlet": (0.1,),
        "dirichlet_by_class": (0.1,),
        "classes_per_client": (5,),
        "shards": (2,),
        "similarity": (50,),
    }
    for name, more in arguments.items():
        assert_divides(PARTITIONS[name](labels, 3400, *more, seed=0), 60_000, 3400)
    assert_divides(PARTITIONS["pachinko"](labels // 10, labels, 3400, seed=0), 60_000, 3400)
