"""Each client holds a few classes, and no other."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.partition.common import Parts, classes_of, deal, even, generator, parts_of
from fedoptax.errors import UsageError


def classes_per_client(labels: ArrayLike, num_clients: int, classes: int, seed: int) -> Parts:
    """Every client holds exactly `classes` classes, at random; sizes are as even as the classes allow.

    A class is shared evenly by its clients, and has about as many of them as its size deserves. With 5 of 10
    classes this is the high heterogeneity of FAFED; with 1, the one digit a device of Fed-LAMB.

    Args:
      labels: shape (n,), of C different classes.
      num_clients: N, from 1 to n.
      classes: from 1 to C.
      seed: of all draws.

    Raises:
      UsageError: an argument is out of range; N · classes is less than C, so that a class would belong to no
        one; or the classes have too few examples for so many clients.
    """
    codes, totals = classes_of(labels, num_clients)
    if not 1 <= classes <= len(totals):
        raise UsageError(f"classes: {classes} given; from 1 to {len(totals)}, the classes there are, is allowed")
    if num_clients * classes < len(totals):
        raise UsageError(
            f"classes: {classes} given for {num_clients} clients, which leaves some of the {len(totals)} "
            f"classes to no one; at least {-(-len(totals) // num_clients)} are needed, or more clients"
        )
    rng = generator(seed)
    holders = _assign(_slots(totals, num_clients, num_clients * classes), num_clients, classes, rng)
    counts = np.zeros(holders.shape, np.int64)
    for label in range(len(totals)):
        clients = rng.permutation(np.flatnonzero(holders[:, label]))
        smallest_first = clients[np.argsort(counts[clients].sum(1), kind="stable")]
        counts[smallest_first, label] = even(int(totals[label]), len(clients))
    return parts_of(deal(codes, counts, rng), num_clients)


def _slots(totals: np.ndarray, num_clients: int, slots: int) -> np.ndarray:
    """How many clients hold each class, (C,), such that the largest share is as small as can be."""
    most = np.minimum(totals, num_clients)
    if most.sum() < slots:
        raise UsageError(
            f"classes: {slots // num_clients} given for {num_clients} clients; these are {slots} "
            f"(client, class) pairs, but the classes have examples for at most {most.sum()}"
        )
    held = np.ones_like(totals)
    for _ in range(slots - len(totals)):
        held[np.argmax(np.where(held < most, totals / held, 0.0))] += 1
    return held


def _assign(held: np.ndarray, num_clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """A random (N, C) mask, `classes` true in each row, held[c] ≤ N in column c; Σ held = N · classes."""
    mask = np.zeros((num_clients, len(held)), bool)
    held = held.copy()
    for row, clients_left in enumerate(range(num_clients, 0, -1)):
        # The earliest arrivals at rates `held` are a draw without replacement with those weights; a class
        # that needs every client still to come is taken for certain, which keeps the rest solvable.
        arrival = np.where(held > 0, rng.exponential(size=len(held)) / np.maximum(held, 1), np.inf)
        arrival[held == clients_left] = -1.0
        chosen = np.argpartition(arrival, classes - 1)[:classes]
        mask[row, chosen] = True
        held[chosen] -= 1
    return mask
