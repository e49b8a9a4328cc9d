"""What every division of a data set must be."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

quick = settings(deadline=None, max_examples=60)
labels_lists = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array)
alphas = st.sampled_from([1e-6, 0.01, 0.1, 1.0, 100.0, 1e9])


def assert_divides(parts, n, num_clients):
    assert len(parts) == num_clients
    assert all(len(part) > 0 and part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def assert_even(parts, most=1):
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= most


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))
