"""The numbers behind the picture of a task's data over its clients."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedoptax.report.groups import Group
from fedoptax.report.words import format_count, format_setting

SHOWN = 100  # clients shown one by one; all of them are in the histogram

_OPTIONS = ("alpha", "alpha_fine", "classes", "shards", "similarity", "sigma", "exponent")  # of partitions


class Partition(NamedTuple):
    """A task's data over its clients."""

    title: str
    sizes: np.ndarray  # (N,) examples of every client
    counts: np.ndarray | None  # (min(N, 100), C) examples of the first clients by class
    heterogeneity: float | None  # mean total-variation distance of the clients' labels from all labels

    @property
    def sentence(self) -> str:
        """The picture in words."""
        low, middle, high = np.percentile(self.sizes, [0, 50, 100])
        text = f"{format_count(len(self.sizes), 'client')} with {format_count(int(self.sizes.sum()), 'example')}: "
        text += f"{low:,.0f} to {high:,.0f} each, median {middle:,.0f}."
        if self.heterogeneity is not None:
            text += f" Heterogeneity {self.heterogeneity:.2f}: the mean total-variation distance between a client's"
            text += " labels and all labels, 0 if all clients are equal, 1 − 1/C with one of C equal classes each."
        return text


def find_partitions(groups: Sequence[Group]) -> list[Partition]:
    """One partition for each different task among the groups, of at most six."""
    firsts: dict[str, Group] = {}
    for group in sorted(groups, key=lambda group: group.algorithm == "centralized"):  # of which all are one client
        firsts.setdefault(group.problem, group)
    return [partition for group in firsts.values() if (partition := make_partition(group.config)) is not None][:6]


def make_partition(config: Mapping[str, Any]) -> Partition | None:
    """The partition that a config records; None if it records none."""
    record = config.get("partition")
    if not record or not record.get("sizes"):
        return None
    sizes = np.asarray(record["sizes"], np.int64)
    labels = record.get("label_counts")
    counts = np.asarray(labels[:SHOWN], np.int64) if labels else None
    return Partition(task_title(config), sizes, counts, record.get("measures", {}).get("total_variation_mean"))


def task_title(config: Mapping[str, Any]) -> str:
    """Write a task and its partition: `digits (dirichlet partition, alpha 0.3)`."""
    task = config["task"]
    if not task.get("partition"):
        return str(task["name"])
    chosen = {name: task[name] for name in _OPTIONS if task.get(name) is not None}
    options = [f", {name.replace('_', ' ')} {format_setting(value)}" for name, value in chosen.items()]
    return f"{task['name']} ({task['partition']} partition{''.join(options)})"
