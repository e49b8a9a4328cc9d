"""Clients that hold some examples in common: the one division in which an example is used more than once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedoptax.data.partition.common import Parts, generator
from fedoptax.errors import UsageError


def with_shared(parts: Sequence[np.ndarray], fraction: float, seed: int) -> Parts:
    """Gives every client, besides its own examples, the same random `fraction` of all of them.

    Args:
      parts: the index arrays of a division of n examples.
      fraction: of n, from 0 to 1, rounded to whole examples.
      seed: of the choice of the shared examples.

    Returns:
      One sorted index array a client, in which no example comes twice.

    Raises:
      UsageError: `fraction` is out of range.

    Source: after Zhao et al., "Federated learning with non-iid data", 2018, section 4, who share a separate set.
    """
    if not 0.0 <= fraction <= 1.0:
        raise UsageError(f"fraction: {fraction} given; from 0 to 1, the part of the examples to share, is allowed")
    everything = np.concatenate(parts)
    common = generator(seed).permutation(everything)[: round(fraction * len(everything))]
    return [np.union1d(part, common) for part in parts]
