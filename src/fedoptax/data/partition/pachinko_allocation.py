"""Two levels of labels, such as the 20 coarse and 100 fine ones of CIFAR-100: the Pachinko allocation method."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.partition.common import Parts, check_alpha, classes_of, deal, draw, even, generator, parts_of
from fedoptax.errors import UsageError


def pachinko(
    coarse: ArrayLike,
    fine: ArrayLike,
    num_clients: int,
    *,
    seed: int,
    alpha_coarse: float = 0.1,
    alpha_fine: float = 10.0,
) -> Parts:
    """Equal sizes; each client draws a distribution over coarse labels and, below each, one over its fine labels.

    An example of a client is drawn by its coarse distribution ~ Dir(alpha_coarse), then by that label's fine
    distribution ~ Dir(alpha_fine), without replacement. A fine label that is exhausted is taken out and the
    distribution over its siblings renormalised; a coarse label all of whose fine ones are exhausted likewise.
    The defaults, with 500 clients, are the CIFAR-100 of "Adaptive Federated Optimization".

    Args:
      coarse: the coarse label of each example, shape (n,).
      fine: its fine label, shape (n,); a fine label lies under one coarse label.
      num_clients: N, from 1 to n; every client gets n // N examples, the first n mod N one more.
      seed: of all draws.
      alpha_coarse: concentration over the coarse labels, > 0: near 0 a client has one of them.
      alpha_fine: concentration over the fine labels of a coarse one, > 0.

    Raises:
      UsageError: an argument is out of range, or the labels are no hierarchy.

    Source: Reddi et al., "Adaptive federated optimization", 2021, appendix "Creating a federated CIFAR-100"; the
    method is named after Li and McCallum, "Pachinko allocation", 2006.
    """
    check_alpha("alpha_coarse", alpha_coarse)
    check_alpha("alpha_fine", alpha_fine)
    classes, left = classes_of(fine, num_clients, "fine")
    parent = _parents(classes, classes_of(coarse, num_clients, "coarse")[0])
    children = [np.flatnonzero(parent == label) for label in range(parent.max() + 1)]
    rng = generator(seed)
    roots = rng.dirichlet(np.full(len(children), alpha_coarse, np.float64), num_clients)
    leaves = [rng.dirichlet(np.full(len(below), alpha_fine, np.float64), num_clients) for below in children]
    sizes = even(len(classes), num_clients)
    counts = np.zeros((num_clients, len(left)), np.int64)
    for client in rng.permutation(num_clients):  # in random order: the last ones take what is left
        # All coarse draws come before the fine ones: a coarse label is exhausted when it was drawn as often as it
        # has examples, whichever of its fine labels they were.
        of_coarse = draw(rng, roots[client], np.array([left[below].sum() for below in children]), int(sizes[client]))
        for label in np.flatnonzero(of_coarse):
            below = children[label]
            counts[client, below] = draw(rng, leaves[label][client], left[below], int(of_coarse[label]))
        left = left - counts[client]
    return parts_of(deal(classes, counts, rng), num_clients)


def _parents(fine: np.ndarray, coarse: np.ndarray) -> np.ndarray:
    """The coarse class of each fine class, (F,)."""
    if len(fine) != len(coarse):
        raise UsageError(f"coarse: {len(coarse)} labels given for {len(fine)} fine ones; as many are allowed")
    parent = np.empty(fine.max() + 1, np.int64)
    parent[fine] = coarse
    if np.any(astray := parent[fine] != coarse):
        raise UsageError(
            f"coarse: another coarse label given for example {np.argmax(astray)} than for others of its fine label; "
            "one coarse label for each fine label is allowed"
        )
    return parent
