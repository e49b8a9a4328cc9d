"""The test examples divided among the clients as the training examples were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.heterogeneity import label_counts
from fedoptax.data.partition.common import apportion, generator, one_an_example


def divide_test(
    train_labels: ArrayLike, train_parts: Sequence[np.ndarray], test_labels: ArrayLike, seed: int
) -> np.ndarray:
    """Deals the test examples so that each client is tested on the classes it trains on, in like proportions.

    The test examples of a class go to the clients in proportion to how many training examples of it they hold,
    rounded by largest remainders with ties at random. A class that nobody holds goes by the clients' sizes. Every
    test example goes to one client; a small client may get none.

    Args:
      train_labels: shape (n,).
      train_parts: the N index arrays of any division of the training examples.
      test_labels: shape (m,).
      seed: of the ties, and of which examples of a class go where.

    Returns:
      The client of each test example, int32 (m,).

    Raises:
      UsageError: labels of another shape, or none.
    """
    train, test = one_an_example("train_labels", train_labels), one_an_example("test_labels", test_labels)
    names, classes = np.unique(np.concatenate([train, test]), return_inverse=True)
    counts = label_counts(classes[: len(train)], train_parts, len(names))
    sizes = counts.sum(1)
    of_test = classes[len(train) :]
    rng = generator(seed)
    owners = np.empty(len(test), np.int32)
    for label in np.unique(of_test):
        members = rng.permutation(np.flatnonzero(of_test == label))
        weights = counts[:, label] if counts[:, label].any() else sizes
        owners[members] = np.repeat(np.arange(len(sizes)), apportion(len(members), weights, rng))
    return owners
