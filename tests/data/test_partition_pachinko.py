"""The two-level division of CIFAR-100: its law, and that drawing in bulk is drawing one at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisions import alphas, assert_divides, assert_even, quick, same
from fedoptax.data.partition import heterogeneity, label_counts, pachinko
from fedoptax.errors import UsageError

PARENT = np.array([0, 0, 0, 1, 1, 2])  # the coarse label of each fine one
fine_labels = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(np.array)


@quick
@given(fine_labels, st.integers(1, 120), alphas, alphas, st.integers(0, 3))
def test_pachinko_divides_evenly(fine, clients, alpha_coarse, alpha_fine, seed):
    clients = min(clients, len(fine))
    options = {"seed": seed, "alpha_coarse": alpha_coarse, "alpha_fine": alpha_fine}
    parts = pachinko(PARENT[fine], fine, clients, **options)
    assert_divides(parts, len(fine), clients)
    assert_even(parts)
    assert same(parts, pachinko(PARENT[fine], fine, clients, **options))


def test_labels_may_be_names():
    fine = np.array(["apple", "rose", "pear", "tulip"] * 5)
    coarse = np.where(np.isin(fine, ["apple", "pear"]), "fruit", "flower")
    assert_divides(pachinko(coarse, fine, 4, seed=0), 20, 4)
    assert not same(pachinko(coarse, fine, 4, seed=0), pachinko(coarse, fine, 4, seed=1))


def test_the_two_concentrations_act_on_their_own_level():
    fine = np.repeat(np.arange(100), 50)
    coarse = fine // 5

    def distances(alpha_coarse, alpha_fine):
        parts = pachinko(coarse, fine, 50, seed=0, alpha_coarse=alpha_coarse, alpha_fine=alpha_fine)
        of_fine = heterogeneity(label_counts(fine, parts, 100))
        return heterogeneity(label_counts(coarse, parts, 20)), of_fine

    few_coarse, few_fine, none = distances(0.05, 1e6), distances(1e6, 0.05), distances(1e6, 1e6)
    assert few_coarse[0] > 0.7
    assert few_fine[0] < 0.2 < 0.6 < few_fine[1]
    assert none[0] < 0.25 and none[1] < 0.45  # what 100 draws from 20 and 100 even labels are off


def one_at_a_time(rng, fine, num_clients, alpha_coarse, alpha_fine):
    """The counts (N, 6) of the paper's procedure, example by example."""
    left = np.bincount(fine, minlength=6)
    counts = np.zeros((num_clients, 6), int)
    for client in rng.permutation(num_clients):
        root = rng.dirichlet([alpha_coarse] * 3)
        leaves = np.concatenate([rng.dirichlet([alpha_fine] * k) for k in (3, 2, 1)])
        for _ in range(len(fine) // num_clients):
            q = root * [left[label == PARENT].sum() > 0 for label in range(3)]
            label = rng.choice(3, p=q / q.sum())
            q = leaves * (label == PARENT) * (left > 0)
            leaf = rng.choice(6, p=q / q.sum())
            counts[client, leaf] += 1
            left[leaf] -= 1
    return counts


def test_drawing_in_bulk_is_drawing_one_at_a_time():
    """Labels are exhausted all the time here; mean squares of the counts tell the two processes apart."""
    fine = np.repeat(np.arange(6), 6)
    rng = np.random.default_rng(0)
    slow = np.array([one_at_a_time(rng, fine, 6, 5.0, 0.3) for _ in range(300)])
    drawn = (pachinko(PARENT[fine], fine, 6, seed=s, alpha_coarse=5.0, alpha_fine=0.3) for s in range(800))
    quick = np.array([label_counts(fine, parts, 6) for parts in drawn])
    np.testing.assert_allclose((quick**2).mean((0, 1)), (slow**2).mean((0, 1)), rtol=0.05)
    together = [(c[:, :, 0] * c[:, :, 1]).mean() for c in (quick, slow)]  # of two fine labels of one coarse label
    assert together[0] == pytest.approx(together[1], rel=0.1)


def test_the_size_of_cifar_100():
    fine = np.repeat(np.arange(100), 500)
    parts = pachinko(fine % 20, fine, 500, seed=0)
    assert_divides(parts, 50_000, 500)
    assert {len(part) for part in parts} == {100}
    assert np.median((label_counts(fine % 20, parts, 20) > 0).sum(1)) < 8


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: pachinko([0, 0], [0, 1], 3, seed=0), "num_clients"),
        (lambda: pachinko([0, 0], [0, 1], 1, seed=0, alpha_coarse=0.0), "alpha_coarse"),
        (lambda: pachinko([0, 0], [0, 1], 1, seed=0, alpha_fine=float("nan")), "alpha_fine"),
        (lambda: pachinko([0], [0, 1], 1, seed=0), "coarse"),
        (lambda: pachinko([0, 0, 1], [0, 1, 1], 1, seed=0), "coarse"),
        (lambda: pachinko([[0]], [0], 1, seed=0), "coarse"),
        (lambda: pachinko([], [], 1, seed=0), "fine"),
    ],
)
def test_wrong_arguments_are_named(call, argument):
    with pytest.raises(UsageError, match=f"^{argument}: .*given.*allowed") as error:
        call()
    assert "\n" not in str(error.value)
