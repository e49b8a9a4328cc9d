"""Dividing a data set among clients: iid, by size, by label, or as it naturally is.

Every division is one sorted int64 index array a client; together they hold every example exactly once,
no client is empty, and the same seed gives the same division. (`with_shared` adds examples that all clients hold.)
"""

from __future__ import annotations

from collections.abc import Callable

from fedoptax.data.heterogeneity import heterogeneity, label_counts
from fedoptax.data.partition.by_chance import by_size, iid
from fedoptax.data.partition.by_dirichlet import dirichlet, dirichlet_by_class
from fedoptax.data.partition.by_group import natural
from fedoptax.data.partition.by_order import shards, similarity
from fedoptax.data.partition.common import Parts
from fedoptax.data.partition.few_classes import classes_per_client
from fedoptax.data.partition.like_training import divide_test
from fedoptax.data.partition.pachinko_allocation import pachinko
from fedoptax.data.partition.shared import with_shared

__all__ = [
    "PARTITIONS",
    "Parts",
    "by_size",
    "classes_per_client",
    "dirichlet",
    "dirichlet_by_class",
    "divide_test",
    "heterogeneity",
    "iid",
    "label_counts",
    "natural",
    "pachinko",
    "shards",
    "similarity",
    "with_shared",
]

PARTITIONS: dict[str, Callable[..., Parts]] = {
    "iid": iid,
    "by_size": by_size,
    "dirichlet": dirichlet,
    "dirichlet_by_class": dirichlet_by_class,
    "pachinko": pachinko,
    "classes_per_client": classes_per_client,
    "shards": shards,
    "similarity": similarity,
    "natural": natural,
}
"""The ways to divide a data set, by name."""
