"""The clients a data set has by nature: its writers, roles, devices."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.partition.common import Parts, one_an_example, parts_of


def natural(groups: ArrayLike) -> Parts:
    """One client for each different group, in the order of the sorted group ids.

    Args:
      groups: the group (writer, role) of each example, shape (n,), of any type that sorts.

    Raises:
      UsageError: `groups` is empty or has another shape.
    """
    ids, owner = np.unique(one_an_example("groups", groups), return_inverse=True)
    return parts_of(owner, len(ids))
