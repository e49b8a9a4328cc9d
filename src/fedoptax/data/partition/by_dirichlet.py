"""Label distributions drawn from a Dirichlet distribution: one a client, or one a class."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.partition.common import Parts, check_alpha, classes_of, deal, draw, even, generator, parts_of
from fedoptax.errors import UsageError

_REDRAWS = 20


def dirichlet(labels: ArrayLike, num_clients: int, alpha: float, seed: int) -> Parts:
    """Equal sizes; each client draws its own class distribution q ~ Dir(α, …, α), and its examples by it.

    Examples are drawn without replacement; when a class is exhausted, q is renormalised over the others.
    This is the CIFAR-10 division of "Adaptive Federated Optimization". α is the parameter of each class: Hsu
    et al. write Dir(α·p), so their α at a uniform prior p is this one times the number of classes.

    Args:
      labels: shape (n,).
      num_clients: N, from 1 to n; every client gets n // N examples, the first n mod N one more.
      alpha: concentration, > 0: near 0 a client has one class, at infinity the division is iid.
      seed: of all draws.

    Raises:
      UsageError: an argument is out of range.

    Source: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual
    classification", 2019.
    """
    classes, left = classes_of(labels, num_clients)
    check_alpha("alpha", alpha)
    rng = generator(seed)
    wanted = rng.dirichlet(np.full(len(left), alpha, np.float64), num_clients)
    sizes = even(len(classes), num_clients)
    counts = np.zeros((num_clients, len(left)), np.int64)
    for client in rng.permutation(num_clients):  # in random order: the last ones take what is left
        counts[client] = draw(rng, wanted[client], left, int(sizes[client]))
        left = left - counts[client]
    return parts_of(deal(classes, counts, rng), num_clients)


def dirichlet_by_class(labels: ArrayLike, num_clients: int, alpha: float, seed: int, min_size: int = 1) -> Parts:
    """Unequal sizes; each class is divided among the clients by its own draw of Dir(α, …, α).

    Draws again, up to 20 times, until every client has `min_size` examples; then the clients that are still
    short take the rest of theirs from the largest class of the largest client.

    Args:
      labels: shape (n,).
      num_clients: N, from 1 to n.
      alpha: concentration, > 0: near 0 a class belongs to one client, at infinity the division is iid.
      seed: of all draws.
      min_size: the fewest examples a client may hold, from 1 to n // N.

    Raises:
      UsageError: an argument is out of range.

    Source: Yurochkin et al., "Bayesian nonparametric federated learning of neural networks", 2019.
    """
    classes, totals = classes_of(labels, num_clients)
    check_alpha("alpha", alpha)
    if not 1 <= min_size <= len(classes) // num_clients:
        raise UsageError(
            f"min_size: {min_size} given; from 1 to {len(classes) // num_clients} is allowed "
            f"({len(classes)} examples for {num_clients} clients)"
        )
    rng = generator(seed)
    for _ in range(_REDRAWS):
        shares = rng.dirichlet(np.full(num_clients, alpha, np.float64), len(totals))
        edges = np.rint(np.cumsum(shares, axis=1) * totals[:, None]).astype(np.int64)
        edges[:, -1] = totals
        counts = np.diff(edges, axis=1, prepend=0).T.copy()
        if counts.sum(1).min() >= min_size:
            break
    _fill(counts, min_size)
    return parts_of(deal(classes, counts, rng), num_clients)


def _fill(counts: np.ndarray, min_size: int) -> None:
    """Moves examples, in place, until every row of the (N, C) counts sums to `min_size` or more."""
    sizes = counts.sum(1)
    for client in np.flatnonzero(sizes < min_size):
        while (short := min_size - int(sizes[client])) > 0:
            donor = int(np.argmax(sizes))  # holds more than min_size, as someone holds less
            label = int(np.argmax(counts[donor]))
            moved = min(short, int(counts[donor, label]), int(sizes[donor]) - min_size)
            counts[donor, label] -= moved
            counts[client, label] += moved
            sizes[donor] -= moved
            sizes[client] += moved
