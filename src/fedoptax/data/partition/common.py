"""What every division uses: checks, even sizes, apportionment, and dealing the examples of each class."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.errors import UsageError

Parts = list[np.ndarray]
"""The examples of each client: sorted int64 index arrays."""

_MAX_ALPHA = 1e9  # iid in all but name; far beyond it the gamma draws overflow


def number_of_examples(labels_or_n: ArrayLike | int, num_clients: int) -> int:
    """n, from the labels of the n examples or as it is."""
    if isinstance(labels_or_n, int | np.integer):
        n = int(labels_or_n)
        check_clients(n, num_clients)
        return n
    return len(classes_of(labels_or_n, num_clients)[0])


def classes_of(labels: ArrayLike, num_clients: int, name: str = "labels") -> tuple[np.ndarray, np.ndarray]:
    """Labels as 0 … C−1, (n,), and the number of examples of each class that occurs, (C,)."""
    array = one_an_example(name, labels)
    check_clients(len(array), num_clients)
    _, codes, totals = np.unique(array, return_inverse=True, return_counts=True)
    return codes, totals.astype(np.int64)


def one_an_example(name: str, values: ArrayLike) -> np.ndarray:
    """`values` as an array of shape (n,), n ≥ 1."""
    array = np.asarray(values)
    if array.ndim != 1 or len(array) == 0:
        raise UsageError(f"{name}: shape {array.shape} given; one value an example, at least one, is allowed")
    return array


def check_clients(n: int, num_clients: int) -> None:
    """Refuses more clients than examples, fewer than one, and what is no whole number."""
    if not isinstance(num_clients, int | np.integer) or not 1 <= num_clients <= n:
        raise UsageError(f"num_clients: {num_clients} given; from 1 to {n}, the number of examples, is allowed")


def generator(seed: int) -> np.random.Generator:
    """The random numbers of a division.

    Raises:
      UsageError: the seed is no whole number, or negative.
    """
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise UsageError(f"seed: {seed!r} given; a whole number >= 0 is allowed")
    return np.random.default_rng(seed)


def check_alpha(name: str, alpha: float) -> None:
    """Refuses a concentration that no Dirichlet distribution has."""
    if not 0.0 < alpha <= _MAX_ALPHA:
        raise UsageError(f"{name}: {alpha} given; a number > 0, at most {_MAX_ALPHA:g}, is allowed")


def even(n: int, parts: int) -> np.ndarray:
    """n cut in sizes that differ by one at most, the larger ones first: int64 (parts,)."""
    return n // parts + (np.arange(parts) < n % parts)


def apportion(total: int, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`total` divided in whole numbers in proportion to `weights`: int64 (N,), by largest remainders, ties at random.

    Args:
      total: ≥ 0.
      weights: (N,), ≥ 0, of which one at least is > 0. Integers are divided exactly.
      rng: for the ties.
    """
    whole, rest = np.divmod(total * weights, weights.sum())
    shares = whole.astype(np.int64)
    order = rng.permutation(len(weights))
    order = order[np.argsort(-rest[order], kind="stable")]
    shares[order[: total - int(shares.sum())]] += 1
    return shares


def draw(rng: np.random.Generator, q: np.ndarray, left: np.ndarray, size: int) -> np.ndarray:
    """How many of each class when `size` examples are drawn by q, one at a time, from the `left` ones.

    Draws in bulk: what falls on an exhausted class is drawn again among the others, which has the same
    distribution.
    """
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        p = np.where(taken < left, q, 0.0)
        if not p.sum() > 0.0:  # q lies on exhausted classes only
            p = (left - taken).astype(np.float64)
        taken = np.minimum(taken + rng.multinomial(missing, p / p.sum()), left)
    return taken


def deal(classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The owner of each example, (n,), when client i takes counts[i, c] examples of class c at random."""
    owner = np.empty(len(classes), np.int64)
    for label in range(counts.shape[1]):
        members = rng.permutation(np.flatnonzero(classes == label))
        owner[members] = np.repeat(np.arange(len(counts)), counts[:, label])
    return owner


def parts_of(owner: np.ndarray, num_clients: int) -> Parts:
    """The sorted index array of each client, from the owner of each example, (n,)."""
    order = np.argsort(owner, kind="stable").astype(np.int64)  # stable: indices stay sorted within a client
    return np.split(order, np.cumsum(np.bincount(owner, minlength=num_clients))[:-1])
