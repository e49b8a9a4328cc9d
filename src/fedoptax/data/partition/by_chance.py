"""Examples dealt without regard to their labels, in equal or unequal sizes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.partition.common import Parts, apportion, even, generator, number_of_examples, parts_of
from fedoptax.errors import UsageError, unknown

_MAX_SIGMA, _MIN_EXPONENT = 100.0, 0.01  # beyond them one client holds everything


def iid(labels_or_n: ArrayLike | int, num_clients: int, seed: int) -> Parts:
    """Shuffles the examples and cuts them into parts of equal size (the first n mod N hold one more).

    Args:
      labels_or_n: the labels, shape (n,), of which only the number counts; or n.
      num_clients: N, from 1 to n.
      seed: of the shuffle.

    Raises:
      UsageError: an argument is out of range.
    """
    n = number_of_examples(labels_or_n, num_clients)
    return _deal_at_random(generator(seed), even(n, num_clients))


def by_size(
    labels_or_n: ArrayLike | int,
    num_clients: int,
    *,
    seed: int,
    distribution: str = "lognormal",
    sigma: float = 1.0,
    exponent: float = 1.5,
) -> Parts:
    """Iid examples in unequal sizes: quantity skew alone.

    Every client draws a weight w and has nᵢ = 1 + (n − N) wᵢ / Σ w examples, rounded by largest remainders so that
    they sum to n. `"lognormal"`: log w ~ Normal(0, σ²). `"powerlaw"`: w is Pareto, P(w > t) = t^(−exponent) for
    t ≥ 1, so that the density falls as t^(−exponent − 1).

    Args:
      labels_or_n: the labels, shape (n,), of which only the number counts; or n.
      num_clients: N, from 1 to n.
      seed: of the sizes and the shuffle.
      distribution: `"lognormal"` or `"powerlaw"`.
      sigma: σ of `"lognormal"`, from 0 (equal sizes) to 100.
      exponent: tail exponent of `"powerlaw"`, at least 0.01; the smaller, the heavier the tail (at 1 or less the
        Pareto distribution has no mean, at 2 or less no variance).

    Raises:
      UsageError: an argument is out of range.

    Source: quantity skew is a term of Kairouz et al., "Advances and open problems in federated learning", 2021,
    section 3.1.
    """
    n = number_of_examples(labels_or_n, num_clients)
    rng = generator(seed)
    if distribution == "lognormal":
        if not 0.0 <= sigma <= _MAX_SIGMA:
            raise UsageError(f"sigma: {sigma} given; a number from 0 to {_MAX_SIGMA:g} is allowed")
        log_weights = sigma * rng.normal(size=num_clients)
    elif distribution == "powerlaw":
        if not _MIN_EXPONENT <= exponent < float("inf"):
            raise UsageError(f"exponent: {exponent} given; a number >= {_MIN_EXPONENT:g} is allowed")
        log_weights = rng.exponential(size=num_clients) / exponent  # the logarithm of a Pareto variable
    else:
        unknown("distribution", distribution, ("lognormal", "powerlaw"))
    weights = np.exp(log_weights - log_weights.max())
    return _deal_at_random(rng, 1 + apportion(n - num_clients, weights, rng))


def _deal_at_random(rng: np.random.Generator, sizes: np.ndarray) -> Parts:
    owner = np.empty(sizes.sum(), np.int64)
    owner[rng.permutation(len(owner))] = np.repeat(np.arange(len(sizes)), sizes)
    return parts_of(owner, len(sizes))
