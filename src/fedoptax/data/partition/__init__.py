"""Partitioning a data set among clients: iid, by size, by label, or by its natural clients.

A partition is one sorted int64 index array per client; together they hold every example exactly once, no client is
empty, and the same seed gives the same partition.
"""

from fedoptax.data.heterogeneity import heterogeneity, label_counts
from fedoptax.data.partition.by_label import (
    classes_per_client,
    dirichlet,
    dirichlet_by_class,
    divide_test,
    pachinko,
    shards,
    similarity,
)
from fedoptax.data.partition.dealing import Parts
from fedoptax.data.partition.without_labels import by_size, iid, natural
