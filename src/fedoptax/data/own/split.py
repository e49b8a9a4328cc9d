"""A test part for data that comes without one."""

from __future__ import annotations

import numpy as np

from fedoptax.data.sources import Source
from fedoptax.errors import UsageError


def holdout(source: Source, fraction: float, seed: int) -> Source:
    """Moves a random `fraction` of every client's training examples to the test part.

    Of nᵢ examples of a client fraction · nᵢ, to the nearest whole number, are moved, but one at least stays; a client
    with few may have none to test on. Data without clients is split as one.

    Args:
      source: without test examples; it is not changed.
      fraction: between 0 and 1, both excluded.
      seed: of the choice.

    Raises:
      UsageError: `fraction` is out of range or too small to move an example, or there is a test part already.
    """
    if not 0.0 < fraction < 1.0:
        raise UsageError(f"fraction: {fraction} given; a number between 0 and 1, both excluded, is allowed")
    if len(source.test["y"]):
        raise UsageError(f"fraction: {fraction} given, but there are {len(source.test['y'])} test examples already")
    n = len(source.train["y"])
    groups = np.zeros(n, np.int64) if source.train_groups is None else source.train_groups
    _, owner, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    moved = np.minimum(np.floor(fraction * sizes + 0.5).astype(np.int64), sizes - 1)
    if not moved.any():
        raise UsageError(f"fraction: {fraction} given; too small for clients of {sizes.max()} examples at most")
    shuffled = np.random.default_rng(seed).permutation(n)
    by_owner = shuffled[np.argsort(owner[shuffled], kind="stable")]  # client after client, each in random order
    rank = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_test = np.zeros(n, bool)
    is_test[by_owner] = rank < np.repeat(moved, sizes)
    return source._replace(
        train={name: array[~is_test] for name, array in source.train.items()},
        test={name: array[is_test] for name, array in source.train.items()},
        train_groups=None if source.train_groups is None else groups[~is_test],
        test_groups=None if source.train_groups is None else groups[is_test],
    )
