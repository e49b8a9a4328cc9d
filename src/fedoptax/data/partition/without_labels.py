"""Partitions that ignore the labels: iid in equal or unequal sizes, natural clients.

Each takes the labels, (n,), of which only the number counts, or n itself; the number of clients N, from 1 to n; and the
seed of all its draws. A `UsageError` says which argument is out of range.
"""

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.partition.dealing import Parts, apportion, as_values, even, generator, parts_of
from fedoptax.errors import check_choice, check_int, check_number

_MAX_SIGMA, _MIN_EXPONENT = 100.0, 0.01  # beyond them one client holds everything


def iid(labels_or_n: ArrayLike | int, num_clients: int, seed: int) -> Parts:
    """Shuffle the examples and cut them into parts of equal size (the first n mod N hold one more)."""
    n = _number_of_examples(labels_or_n, num_clients)
    return _deal_at_random(generator(seed), even(n, num_clients))


def by_size(
    labels_or_n: ArrayLike | int, num_clients: int, *, seed: int, distribution: str = "lognormal", sigma: float = 1.0,
    exponent: float = 1.5,
) -> Parts:  # fmt: skip
    """Deal iid examples in unequal sizes: quantity skew alone.

    Every client draws a weight w and has nᵢ = 1 + (n − N) wᵢ / Σ w examples, rounded by largest remainders so that
    they sum to n. `"lognormal"`: log w ~ Normal(0, σ²). `"powerlaw"`: w is Pareto, P(w > t) = t^(−exponent) for
    t ≥ 1, so that the density falls as t^(−exponent − 1).

    `sigma` is from 0 (equal sizes) to 100, `exponent` at least 0.01; the smaller, the heavier the tail (at 1 or less
    the Pareto distribution has no mean, at 2 or less no variance).

    Source: quantity skew is a term of Kairouz et al., "Advances and open problems in federated learning", 2021,
    section 3.1.
    """
    check_choice("distribution", distribution, ("lognormal", "powerlaw"))
    n = _number_of_examples(labels_or_n, num_clients)
    rng = generator(seed)
    if distribution == "lognormal":
        check_number("sigma", sigma, 0, _MAX_SIGMA, open_high=False)
        log_weights = sigma * rng.normal(size=num_clients)
    else:
        check_number("exponent", exponent, _MIN_EXPONENT)
        log_weights = rng.exponential(size=num_clients) / exponent  # the logarithm of a Pareto variable
    weights = np.exp(log_weights - log_weights.max())
    return _deal_at_random(rng, 1 + apportion(n - num_clients, weights, rng))


def natural(groups: ArrayLike) -> Parts:
    """Make one client per group (a writer, a role, a device), in the order of the sorted group ids.

    `groups` is the group of each example, shape (n,), n ≥ 1, of any type that sorts.
    """
    ids, owner = np.unique(as_values("groups", groups), return_inverse=True)
    return parts_of(owner, len(ids))


def _number_of_examples(labels_or_n: ArrayLike | int, num_clients: int) -> int:
    n = int(labels_or_n) if isinstance(labels_or_n, int | np.integer) else len(as_values("labels", labels_or_n))
    check_int("num_clients", num_clients, 1, n)
    return n


def _deal_at_random(rng: np.random.Generator, sizes: np.ndarray) -> Parts:
    owner = np.empty(sizes.sum(), np.int64)
    owner[rng.permutation(len(owner))] = np.repeat(np.arange(len(sizes)), sizes)
    return parts_of(owner, len(sizes))
