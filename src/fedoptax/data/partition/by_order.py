"""Examples sorted by label and cut: the shards of FedAvg, and a division of a stated similarity."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.partition.common import Parts, classes_of, even, generator, parts_of
from fedoptax.errors import UsageError


def shards(labels: ArrayLike, num_clients: int, shards_per_client: int, seed: int) -> Parts:
    """Sorts the examples by label, cuts them in N · s shards, and deals s of them to each client at random.

    A client holds at most as many classes as its shards touch: about s where a class fills many shards. Examples
    of one class are shuffled before the cut. With 2 shards a client this is the non-iid MNIST of FedAvg.

    Args:
      labels: shape (n,).
      num_clients: N, from 1 to n.
      shards_per_client: s, from 1 to n // N; every shard has n // (N s) examples, n mod (N s) of them one more,
        so that sizes differ by s at most.
      seed: of the shuffle and the deal.

    Raises:
      UsageError: an argument is out of range.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", 2017.
    """
    classes, _ = classes_of(labels, num_clients)
    n = len(classes)
    if not 1 <= shards_per_client <= n // num_clients:
        raise UsageError(
            f"shards_per_client: {shards_per_client} given; from 1 to {n // num_clients} is allowed "
            f"({n} examples for {num_clients} clients)"
        )
    rng = generator(seed)
    dealt = rng.permutation(np.repeat(np.arange(num_clients), shards_per_client))
    owner = np.empty(n, np.int64)
    owner[_by_label(rng.permutation(n), classes)] = np.repeat(dealt, even(n, len(dealt)))
    return parts_of(owner, num_clients)


def similarity(labels: ArrayLike, num_clients: int, s: float, seed: int) -> Parts:
    """Equal sizes; s % of every client's examples are iid, the rest are its cut of the others sorted by label.

    100 is iid; at 0 a client holds neighbouring classes only. 95 is the low heterogeneity of FAFED.

    Args:
      labels: shape (n,).
      num_clients: N, from 1 to n; every client gets n // N examples, the first n mod N one more.
      s: the similarity in percent, from 0 to 100.
      seed: of the choice of the iid examples and their shuffle, and of the order within a class.

    Raises:
      UsageError: an argument is out of range.

    Source: Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", 2020, section 7.
    """
    classes, _ = classes_of(labels, num_clients)
    if not 0.0 <= s <= 100.0:
        raise UsageError(f"s: {s} given; a percentage, from 0 to 100, is allowed")
    n = len(classes)
    shuffled = generator(seed).permutation(n)
    num_iid = round(n * s / 100)
    of_iid = even(num_iid, num_clients)
    of_sorted = even(n, num_clients) - of_iid
    owner = np.empty(n, np.int64)
    owner[shuffled[:num_iid]] = np.repeat(np.arange(num_clients), of_iid)
    owner[_by_label(shuffled[num_iid:], classes)] = np.repeat(np.arange(num_clients), of_sorted)
    return parts_of(owner, num_clients)


def _by_label(examples: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return examples[np.argsort(classes[examples], kind="stable")]
