"""Who holds which data: the numbers behind the partition picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedoptax.report.groups import Group
from fedoptax.report.words import count, setting

#: Clients shown one by one; all of them are in the histogram.
SHOWN = 100

_OPTIONS = ("alpha", "alpha_fine", "classes", "shards", "similarity", "sigma", "exponent")  # of partitions


@dataclass(frozen=True, eq=False)
class Partition:
    """A task's data over its clients.

    Attributes:
      title: which task and partition.
      seed: of the run it was taken from.
      sizes: (N,) examples of every client.
      counts: (min(N, 100), C) examples of the first clients by class, or None without classes.
      heterogeneity: mean total-variation distance of the clients' labels from the whole, or None.
      edges: (B + 1,) bounds of the histogram of sizes.
      bins: (B,) clients between them.
    """

    title: str
    seed: int
    sizes: np.ndarray
    counts: np.ndarray | None
    heterogeneity: float | None
    edges: np.ndarray
    bins: np.ndarray

    @property
    def top_share(self) -> float:
        """The end of the colour scale: the largest share of a class in a shown client, rounded up to a tenth."""
        if self.counts is None:
            return 1.0
        share = self.counts / np.maximum(1, self.counts.sum(1, keepdims=True))
        return max(1.0, np.ceil(10 * float(share.max()) - 1e-9)) / 10

    @property
    def sentence(self) -> str:
        """The picture in words."""
        low, middle, high = np.percentile(self.sizes, [0, 50, 100])
        text = f"{count(len(self.sizes), 'client')} hold {count(int(self.sizes.sum()), 'example')}: "
        text += f"{low:,.0f} to {high:,.0f} each, median {middle:,.0f}."
        if self.heterogeneity is not None:
            text += (
                f" Heterogeneity {self.heterogeneity:.2f} (mean total-variation distance of a client's"
                " label distribution from the whole: 0 is alike, near 1 is one class a client)."
            )
        return text


def partitions(groups: Sequence[Group], most: int = 6) -> list[Partition]:
    """One partition for each different task among the groups."""
    firsts = {group.problem: group for group in reversed(groups)}
    ordered = sorted(firsts.values(), key=lambda group: group.index)
    found = [partition(group.config) for group in ordered]
    return [item for item in found if item is not None][:most]


def partition(config: Mapping[str, Any]) -> Partition | None:
    """The partition that a config records; None if it records none."""
    record = config.get("partition")
    if not isinstance(record, dict) or not record.get("sizes"):
        return None
    sizes = np.asarray(record["sizes"], np.int64)
    labels = record.get("label_counts")
    edges, bins = _histogram(sizes)
    counts = np.asarray(labels[:SHOWN], np.int64) if labels else None
    return Partition(
        title(config), config["seed"], sizes, counts, record.get("heterogeneity"), edges, bins
    )  # fmt: skip


def title(config: Mapping[str, Any]) -> str:
    """A task and its partition, shortly: `digits (dirichlet partition, alpha 0.3)`."""
    task = config["task"]
    if not task.get("partition"):
        return str(task["name"])
    options = [f", {name.replace('_', ' ')} {setting(task[name])}" for name in _OPTIONS if task.get(name) is not None]
    return f"{task['name']} ({task['partition']} partition{''.join(options)})"


def _histogram(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most 24 bins of a whole number of examples each, the last one as full as possible."""
    low, high = int(sizes.min()), int(sizes.max())
    span = high - low + 1
    widths = {-(-span // count) for count in range(12, 25)}  # the smallest for each number of bins
    width = min(widths, key=lambda w: (-(-span // w) * w - span, w))
    edges = np.arange(low, high + width + 1, width)
    bins, _ = np.histogram(sizes, edges - 0.5)
    return edges, bins
