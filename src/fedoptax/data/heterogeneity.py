"""Measures of a partition: who holds which classes, how far that is from the whole, how sizes vary.

`counts` is (N, C), the examples of each class per client, as from `label_counts`; no client is empty.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.federated import as_parts


def label_counts(labels: ArrayLike, parts: Sequence[np.ndarray], num_classes: int) -> np.ndarray:
    """Count each client's examples of each class: int64 (N, C), of labels 0 … C − 1, (n,), and N index arrays."""
    y = np.asarray(labels)
    parts = as_parts("parts", parts, len(y))
    counts = np.zeros((len(parts), num_classes), np.int64)
    np.add.at(counts, (np.repeat(np.arange(len(parts)), list(map(len, parts))), y[np.concatenate(parts)]), 1)
    return counts


def label_skew(counts: ArrayLike) -> dict[str, float]:
    """Measure how the clients' label distributions qᵢ differ from that of all examples, p.

    Returns:
      `total_variation_mean`, `total_variation_max`: over the clients, of TV(qᵢ, p) = ½ Σ |qᵢ − p|, from 0 to 1.
      `jensen_shannon_mean`: of the divergence H(½(qᵢ + p)) − ½(H(qᵢ) + H(p)) in bits, from 0 to 1, H the entropy.
      `classes_mean`: of the number of different classes a client holds.
      `effective_classes_mean`: of exp H(qᵢ), H in nats: from 1 (one class) to C (all equally often).
    """
    table = np.asarray(counts, np.float64)
    q, p = table / table.sum(1, keepdims=True), table.sum(0) / table.sum()
    distance = np.abs(q - p).sum(1) / 2
    shares = np.vstack([q, (q + p) / 2, p])
    entropy, middle, last = np.split(-(shares * np.log(np.where(shares > 0, shares, 1))).sum(1), [len(q), 2 * len(q)])
    divergence = middle - (entropy + last) / 2
    return {
        "total_variation_mean": float(distance.mean()),
        "total_variation_max": float(distance.max()),
        "jensen_shannon_mean": max(0.0, float(divergence.mean())) / float(np.log(2.0)),
        "classes_mean": float((q > 0).sum(1).mean()),
        "effective_classes_mean": float(np.exp(entropy).mean()),
    }


def quantity_skew(sizes: ArrayLike) -> dict[str, float]:
    """Measure how the clients' numbers of examples, (N,), differ: `size_min`, `size_median`, `size_max`, `size_gini`.

    The last is the Gini coefficient Σᵢⱼ |nᵢ − nⱼ| / (2 N Σᵢ nᵢ): 0 for equal sizes, 1 − 1/N if one client has all.
    """
    n = np.sort(np.asarray(sizes, np.float64))
    ranks = np.arange(1, len(n) + 1)
    return {
        "size_min": float(n[0]),
        "size_median": float(np.median(n)),
        "size_max": float(n[-1]),
        "size_gini": float(((2 * ranks - len(n) - 1) * n).sum() / (len(n) * n.sum())),
    }


def measures(counts: ArrayLike | None, sizes: ArrayLike) -> dict[str, float]:
    """Return `quantity_skew`, and `label_skew` unless `counts` is None for examples without a class, in one row."""
    return quantity_skew(sizes) | ({} if counts is None else label_skew(counts))


def client_table(
    counts: np.ndarray | None, sizes: np.ndarray, test_owners: np.ndarray | None, names: Sequence[str] | None = None
) -> dict[str, ArrayLike]:
    """Return a table of a partition, one row per client: column -> values (N,); unknown values are `""` or left out.

    `sizes` is (N,); `test_owners` is the client of each test example, (m,), or None; `names` are the clients', or None.
    """
    tests = np.bincount(() if test_owners is None else test_owners, minlength=len(sizes))[: len(sizes)]
    columns: dict[str, ArrayLike] = {
        "client": np.arange(len(sizes)) if names is None else list(names[: len(sizes)]),
        "examples": sizes,
        "test_examples": tests if tests.any() else "",  # all of them may be of other clients
        "classes": "" if counts is None else (counts > 0).sum(1),
        "largest_class": "" if counts is None else counts.argmax(1),
    }
    return columns | ({} if counts is None else {f"class_{c}": counts[:, c] for c in range(counts.shape[1])})
