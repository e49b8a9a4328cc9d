"""A partition holds each example once and no empty client, is the same for the same seed, and has its distribution."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedoptax.data.heterogeneity import label_skew
from fedoptax.data.partition import (
    apportion,
    by_size,
    classes_per_client,
    dirichlet,
    dirichlet_by_class,
    divide_test,
    iid,
    label_counts,
    pachinko,
    shards,
    similarity,
)

quick = settings(deadline=None, max_examples=12)
label_lists = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array)
alphas = st.sampled_from([1e-6, 0.01, 1.0, 100.0, 1e9])
PARENT = np.array([0, 0, 0, 1, 1, 2, 2])  # the coarse label of each fine one


def assert_divides(parts, n, num_clients):
    assert len(parts) == num_clients
    assert all(len(part) > 0 and part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


def heterogeneity(counts):
    return label_skew(counts)["total_variation_mean"]


@quick
@given(label_lists, st.integers(1, 120), alphas, alphas, st.integers(0, 3), st.data())
def test_every_partition_divides_the_examples_and_repeats_by_its_seed(labels, clients, alpha, beta, seed, data):
    clients = min(clients, len(labels))
    count, s = data.draw(st.integers(1, len(labels) // clients)), data.draw(st.sampled_from([0, 33.3, 95, 100]))
    power = {"seed": seed, "distribution": "powerlaw", "exponent": max(alpha, 0.01)}
    calls = {  # of all partitions but `classes_per_client`
        "iid": lambda: iid(labels, clients, seed),
        "dirichlet": lambda: dirichlet(labels, clients, alpha, seed),
        "dirichlet_by_class": lambda: dirichlet_by_class(labels, clients, alpha, seed),
        "pachinko": lambda: pachinko(PARENT[labels], labels, clients, seed=seed, alpha_coarse=alpha, alpha_fine=beta),
        "shards": lambda: shards(labels, clients, count, seed),
        "similarity": lambda: similarity(labels, clients, s, seed),
        "by_size": lambda: by_size(labels, clients, seed=seed, sigma=min(alpha, 100.0)),
        "powerlaw": lambda: by_size(len(labels), clients, **power),
    }
    for name, partition in calls.items():
        parts = partition()
        assert_divides(parts, len(labels), clients)
        assert same(parts, partition())
        if name not in ("dirichlet_by_class", "by_size", "powerlaw"):
            assert np.ptp([len(part) for part in parts]) <= (count if name == "shards" else 1), name


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


def test_five_of_ten_classes_in_equal_shares():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    counts = label_counts(labels, classes_per_client(labels, 20, 5, seed=0), 10)
    assert np.all((counts > 0).sum(1) == 5)
    assert np.all((counts > 0).sum(0) == 10)
    assert np.all(counts[counts > 0] == 60)
    assert len({tuple(row > 0) for row in counts}) > 5  # not two groups of clients only
    assert heterogeneity(counts) == pytest.approx(0.5)
    labels = np.repeat([0, 1], [900, 100])  # a large class has more clients
    assert [len(part) for part in classes_per_client(labels, 10, 1, seed=0)] == [100] * 10


def test_dirichlet_has_the_moments_of_its_distribution():
    """With plenty of every class, a client's share of a class is Beta(α, 9α): variance 0.09 / (10α + 1)."""
    labels = np.arange(200_000) % 10
    parts = dirichlet(labels, 2_000, 0.5, seed=0)[:400]
    first = label_counts(labels, parts, 10)[:, 0] / 100
    assert first.mean() == pytest.approx(0.1, abs=0.03)
    expected = 0.09 / 6 + (0.09 - 0.09 / 6) / 100  # of the shares, and of 100 draws by them
    assert first.var() == pytest.approx(expected, rel=0.35)


def test_the_two_concentrations_of_pachinko_act_on_their_own_level():
    fine = np.repeat(np.arange(100), 50)

    def distances(alpha_coarse, alpha_fine):
        parts = pachinko(fine // 5, fine, 50, seed=0, alpha_coarse=alpha_coarse, alpha_fine=alpha_fine)
        return heterogeneity(label_counts(fine // 5, parts, 20)), heterogeneity(label_counts(fine, parts, 100))

    few_coarse, few_fine, none = distances(0.05, 1e6), distances(1e6, 0.05), distances(1e6, 1e6)
    assert few_coarse[0] > 0.7
    assert few_fine[0] < 0.2 < 0.6 < few_fine[1]
    assert none[0] < 0.25 and none[1] < 0.45  # the noise of 100 draws from 20 and 100 even labels


def draw_pachinko_one_at_a_time(rng, fine, parent, num_clients, alpha_coarse, alpha_fine):
    """The counts (N, 6) of the paper's procedure, example by example."""
    left = np.bincount(fine, minlength=6)
    counts = np.zeros((num_clients, 6), int)
    for client in rng.permutation(num_clients):
        root = rng.dirichlet([alpha_coarse] * 3)
        leaves = np.concatenate([rng.dirichlet([alpha_fine] * k) for k in (3, 2, 1)])
        for _ in range(len(fine) // num_clients):
            q = root * [left[label == parent].sum() > 0 for label in range(3)]
            label = rng.choice(3, p=q / q.sum())
            q = leaves * (label == parent) * (left > 0)
            leaf = rng.choice(6, p=q / q.sum())
            counts[client, leaf] += 1
            left[leaf] -= 1
    return counts


def test_pachinko_in_bulk_equals_drawing_one_at_a_time():
    """Labels are exhausted all the time here; mean squares of the counts tell the two processes apart."""
    fine, parent = np.repeat(np.arange(6), 6), PARENT[:6]
    rng = np.random.default_rng(0)
    slow = np.array([draw_pachinko_one_at_a_time(rng, fine, parent, 6, 5.0, 0.3) for _ in range(300)])
    drawn = (pachinko(parent[fine], fine, 6, seed=s, alpha_coarse=5.0, alpha_fine=0.3) for s in range(800))
    bulk = np.array([label_counts(fine, parts, 6) for parts in drawn])
    np.testing.assert_allclose((bulk**2).mean((0, 1)), (slow**2).mean((0, 1)), rtol=0.05)
    siblings = [(c[:, :, 0] * c[:, :, 1]).mean() for c in (bulk, slow)]  # two fine labels of one coarse label
    assert siblings[0] == pytest.approx(siblings[1], rel=0.1)


def test_the_shards_of_fedavg():
    """60,000 digits, 100 clients, 200 shards of 300: two shards, so at most four digits, mostly two."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))
    parts = shards(labels, 100, 2, seed=0)
    assert {len(part) for part in parts} == {600}
    counts = label_counts(labels, parts, 10)
    assert set(counts.ravel()) == {0, 300, 600}
    assert len({tuple(row > 0) for row in counts}) > 20


def test_similarity_is_the_share_of_iid_examples():
    """10 clients and 10 even classes: at s a client has 100 − s of its 100 % from its own class, s / 10 of each."""
    labels = np.repeat(np.arange(10), 1000)
    for s in (0, 50, 95, 100):
        counts = label_counts(labels, similarity(labels, 10, s, seed=0), 10)
        assert heterogeneity(counts) == pytest.approx(0.9 * (1 - s / 100), abs=0.04)
    shuffled = np.random.default_rng(0).permutation(labels)
    held = [shuffled[part] for part in similarity(shuffled, 7, 0, seed=0)]
    assert all(before.max() <= after.min() for before, after in pairwise(held))


def test_sizes_have_the_distribution_they_are_named_after():
    """Of large clients: log-normal sizes have a standard deviation σ of the logarithm; Pareto ones a tail exponent."""
    sizes = np.array([len(part) for part in by_size(10**6, 1000, seed=0, sigma=0.7)])
    assert np.log(sizes).std() == pytest.approx(0.7, rel=0.06)
    sizes = np.array([len(part) for part in by_size(10**6, 1000, seed=0, distribution="powerlaw", exponent=1.5)])
    tail = np.log(sizes / sizes.min()).mean()  # the maximum-likelihood estimate of 1 / exponent
    assert 1 / tail == pytest.approx(1.5, rel=0.1)
    assert {len(part) for part in by_size(103, 10, seed=0, sigma=0.0)} == {10, 11}


@quick
@given(st.integers(0, 10**6), st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.booleans())
def test_shares_are_whole_and_within_one_of_the_exact_ones(total, weights, as_float):
    weights = np.array(weights, float if as_float else int)
    weights[0] += 1
    shares = apportion(total, weights, np.random.default_rng(0))
    assert shares.sum() == total
    assert np.all(np.abs(shares - total * weights / weights.sum()) < 1 + 1e-6)


@quick
@given(label_lists, label_lists, st.integers(1, 80), alphas, st.integers(0, 3))
def test_test_examples_go_to_the_clients_that_hold_their_class(train, test, clients, alpha, seed):
    clients = min(clients, len(train))
    parts = dirichlet(train, clients, alpha, seed)
    owners = divide_test(train, parts, test, seed)
    assert owners.dtype == np.int32 and owners.shape == test.shape
    assert owners.min() >= 0 and owners.max() < clients
    np.testing.assert_array_equal(owners, divide_test(train, parts, test, seed))
    held = label_counts(train, parts, 7).astype(float)
    held[:, held.sum(0) == 0] = held.sum(1, keepdims=True)  # a class that nobody holds goes by size
    expected = np.bincount(test, minlength=7) * held / held.sum(0)
    dealt = np.stack([np.bincount(test[owners == i], minlength=7) for i in range(clients)])
    assert np.all(np.abs(dealt - expected) < 1 + 1e-9)
    assert np.all(dealt[held == 0] == 0)
