"""The steps that partitions share: checks, even sizes, apportionment, and dealing the examples of each class."""

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.errors import UsageError, check_int, check_number

Parts = list[np.ndarray]
"""The examples of each client: sorted int64 index arrays."""

MAX_SEED = 2**63 - 1
_MAX_ALPHA = 1e9  # iid in all but name; far beyond it the gamma draws overflow


def as_classes(labels: ArrayLike, num_clients: int, name: str = "labels") -> tuple[np.ndarray, np.ndarray]:
    """Return the labels as 0 … C−1, (n,), and the number of examples of each class that occurs, (C,)."""
    array = as_values(name, labels)
    check_int("num_clients", num_clients, 1, len(array))
    _, codes, totals = np.unique(array, return_inverse=True, return_counts=True)
    return codes, totals.astype(np.int64)


def as_values(name: str, values: ArrayLike) -> np.ndarray:
    """Return `values` as an array of shape (n,), n ≥ 1."""
    array = np.asarray(values)
    if array.ndim != 1 or len(array) == 0:
        raise UsageError(f"{name} must hold one value per example, and at least one, got shape {array.shape}")
    return array


def generator(seed: int) -> np.random.Generator:
    """Return the random numbers of a partition."""
    return np.random.default_rng(check_int("seed", seed, 0, MAX_SEED))


def check_alpha(name: str, alpha: float) -> None:
    """Check the concentration of a Dirichlet distribution."""
    check_number(name, alpha, 0, _MAX_ALPHA, open_low=True, open_high=False)


def even(n: int, parts: int) -> np.ndarray:
    """Divide n into sizes that differ by at most one, the larger ones first: int64 (parts,)."""
    return n // parts + (np.arange(parts) < n % parts)


def apportion(total: int, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Divide `total` ≥ 0 in proportion to `weights`, by largest remainders with random ties: int64 (N,).

    Weights (N,) are ≥ 0, at least one of them > 0; integers are divided exactly.
    """
    whole, rest = np.divmod(total * weights, weights.sum())
    shares = whole.astype(np.int64)
    order = rng.permutation(len(weights))
    order = order[np.argsort(-rest[order], kind="stable")]
    shares[order[: total - int(shares.sum())]] += 1
    return shares


def draw(rng: np.random.Generator, q: np.ndarray, left: np.ndarray, size: int) -> np.ndarray:
    """Count each class among `size` examples that are drawn by q, one at a time, from the `left` ones.

    Draws in bulk: an example of an exhausted class is drawn again among the other classes, which gives the same
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
    """Return the owner of each example, (n,), when client i takes counts[i, c] random examples of class c."""
    owner = np.empty(len(classes), np.int64)
    for label in range(counts.shape[1]):
        members = rng.permutation(np.flatnonzero(classes == label))
        owner[members] = np.repeat(np.arange(len(counts)), counts[:, label])
    return owner


def parts_of(owner: np.ndarray, num_clients: int) -> Parts:
    """Return the sorted index array of each client, from the owner of each example, (n,)."""
    order = np.argsort(owner, kind="stable").astype(np.int64)  # stable: indices stay sorted within a client
    return np.split(order, np.cumsum(np.bincount(owner, minlength=num_clients))[:-1])
