"""Test examples divided as the training examples were; examples that all clients hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisions import alphas, quick, same
from fedoptax.data.partition import classes_per_client, dirichlet, divide_test, iid, label_counts, with_shared
from fedoptax.errors import UsageError

label_lists = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(np.array)


@quick
@given(label_lists, label_lists, st.integers(1, 80), alphas, st.integers(0, 3))
def test_each_class_is_dealt_in_proportion_to_its_holders(train, test, clients, alpha, seed):
    clients = min(clients, len(train))
    parts = dirichlet(train, clients, alpha, seed)
    owners = divide_test(train, parts, test, seed)
    assert owners.dtype == np.int32 and owners.shape == test.shape
    assert owners.min() >= 0 and owners.max() < clients
    np.testing.assert_array_equal(owners, divide_test(train, parts, test, seed))
    held = label_counts(train, parts, 5).astype(float)
    held[:, held.sum(0) == 0] = held.sum(1, keepdims=True)  # a class that nobody holds goes by size
    expected = np.bincount(test, minlength=5) * held / held.sum(0)
    dealt = np.stack([np.bincount(test[owners == i], minlength=5) for i in range(clients)])
    assert np.all(np.abs(dealt - expected) < 1 + 1e-9)
    assert np.all(dealt[held == 0] == 0)


def test_clients_are_tested_on_the_classes_they_hold():
    train, test = np.arange(6000) % 10, np.arange(1000) % 10
    parts = classes_per_client(train, 20, 2, seed=0)
    owners = divide_test(train, parts, test, seed=0)
    for client, part in enumerate(parts):
        of_client = test[owners == client]
        assert set(of_client) == set(train[part])
        assert len(of_client) == pytest.approx(len(part) / 6, abs=2)
    assert not np.array_equal(owners, divide_test(train, parts, test, seed=1))


def test_small_clients_may_get_none_and_labels_may_be_names():
    train, test = np.array(["cat", "dog"] * 10), np.array(["cat", "eel", "dog"])
    owners = divide_test(train, iid(train, 10, 0), test, seed=0)
    assert len(set(owners)) <= 3


@pytest.mark.parametrize(("train", "test", "argument"), [([], [1], "train_labels"), ([1], [[1]], "test_labels")])
def test_wrong_labels_are_named(train, test, argument):
    with pytest.raises(UsageError, match=f"^{argument}: "):
        divide_test(train, [np.arange(len(train))], test, 0)


@quick
@given(st.integers(1, 100), st.integers(1, 20), st.floats(0, 1), st.integers(0, 3))
def test_shared_examples_belong_to_every_client(n, clients, fraction, seed):
    parts = iid(n, min(clients, n), seed)
    shared = with_shared(parts, fraction, seed)
    common = set(range(n)).intersection(*map(set, shared))
    assert len(common) >= round(fraction * n)
    for before, after in zip(parts, shared):
        assert np.all(np.diff(after) > 0) and after.dtype == np.int64
        assert set(before) <= set(after) <= set(before) | common
    assert same(shared, with_shared(parts, fraction, seed))


def test_nothing_and_everything_shared():
    parts = iid(30, 3, 0)
    assert same(with_shared(parts, 0.0, 0), parts)
    assert same(with_shared(parts, 1.0, 0), [np.arange(30)] * 3)
    assert not same(with_shared(parts, 0.2, 0), with_shared(parts, 0.2, 1))


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_wrong_fraction_is_named(fraction):
    with pytest.raises(UsageError, match=r"^fraction: .*given.*allowed"):
        with_shared(iid(30, 3, 0), fraction, 0)
