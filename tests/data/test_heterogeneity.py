"""Measures of a partition, against values worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedoptax.data.heterogeneity import label_skew, quantity_skew

quick = settings(deadline=None, max_examples=12)
tables = arrays.arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.integers(0, 9))


def test_one_class_per_client_and_clients_like_the_whole():
    skew = label_skew(np.diag([5, 5, 5, 5]))
    assert skew["total_variation_mean"] == skew["total_variation_max"] == pytest.approx(0.75)
    assert skew["effective_classes_mean"] == pytest.approx(1.0)
    assert skew["classes_mean"] == 1.0
    # q = (1, 0, 0, 0), p = (¼, …): m = (5/8, 1/8, 1/8, 1/8); H(m) − H(p) / 2 in bits
    m = np.array([5, 1, 1, 1]) / 8
    assert skew["jensen_shannon_mean"] == pytest.approx(-(m * np.log2(m)).sum() - 1.0)
    skew = label_skew([[1, 2, 1], [10, 20, 10]])
    assert skew["total_variation_max"] == skew["jensen_shannon_mean"] == pytest.approx(0.0, abs=1e-12)
    assert skew["effective_classes_mean"] == pytest.approx(2**1.5)


@quick
@given(tables)
def test_measures_stay_in_their_ranges(table):
    table[:, 0] += 1
    skew = label_skew(table)
    assert 0 <= skew["jensen_shannon_mean"] <= skew["total_variation_mean"] + 1e-12  # Lin 1991, in bits
    assert skew["total_variation_mean"] <= skew["total_variation_max"] + 1e-12 <= 1 + 1e-12
    assert 1 - 1e-12 <= skew["effective_classes_mean"] <= skew["classes_mean"] + 1e-12


@quick
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30))
def test_gini_is_the_mean_difference_of_all_pairs(sizes):
    n = np.array(sizes, float)
    expected = np.abs(n[:, None] - n).sum() / (2 * len(n) * n.sum())
    assert quantity_skew(sizes)["size_gini"] == pytest.approx(expected, abs=1e-12)
