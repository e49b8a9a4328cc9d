"""Statistics of clients' tables, as counts and sums that add up, and the preprocessing that follows from them.

In the first phase a client tells, of each feature, how many cells have a value and their sum (of a category's feature
that is its count), and the sum of squares; in the second, with the means known, the sum of squares about them, and of
features whose median is needed how many values are in each of `BINS` bins. Numbers below `min_count` are
sent as 0: of categories, classes and bins, and all of a client with fewer rows; differences may still show them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedoptax.data.schema import Schema
from fedoptax.errors import DataError

BINS, RANGE = 1000, 5.0
"""Bins of equal width from -RANGE to RANGE standard deviations about the mean; the outer ones hold all beyond."""

Sums = dict[str, np.ndarray]
"""`count`, `total`, `squares` (features + 1,), the last of the target; `bins` (medians, BINS); `classes` (C,)."""


class Preparation(NamedTuple):
    """The preprocessing of features: NaN becomes `fill`, then x becomes (x − shift) / scale; (features,) each."""

    fill: np.ndarray
    shift: np.ndarray
    scale: np.ndarray
    target: tuple[float, float]  # the mean and the standard deviation of a number to predict; 0 and 1 for classes
    classes: np.ndarray  # the training examples of each class, (C,)

    def fill_in(self, x: np.ndarray) -> np.ndarray:
        """Return features, float32 (rows, features), without empty cells."""
        return np.where(np.isnan(x), self.fill.astype(np.float32), x)


def zero_sums(schema: Schema) -> Sums:
    """Return the sums of no rows."""
    roles = schema.roles
    medians = sum(role == "value" and column.missing == "median" for column, role in roles)
    of_rows = {name: np.zeros(len(roles) + 1) for name in ("count", "total", "squares")}
    return of_rows | {"bins": np.zeros((medians, BINS)), "classes": np.zeros(len(schema.target.classes))}


def add_up(schema: Schema, x: np.ndarray, y: np.ndarray, first: Mapping[str, np.ndarray] | None = None) -> Sums:
    """Return one client's sums, of features by the schema's `encode`, (rows, features), and labels or numbers (rows,).

    `first` are the sums of all clients in the first phase; None is the first phase.
    """
    sums, minimum, roles = zero_sums(schema), schema.min_count, schema.roles
    if len(x) < minimum:
        return sums
    is_class = schema.target.kind == "class"
    center, deviation = _moments(sums if first is None else first)  # 0 and 1 in the first phase
    parts = (x, center[:-1]), (y[:, None] * np.float32(not is_class), center[-1:])
    has_value = [~np.isnan(cells) for cells, _ in parts]
    terms = {
        "count": has_value,
        "total": [np.where(known, cells, 0) for known, (cells, _) in zip(has_value, parts)],
        "squares": [np.where(known, np.square(cells - mid), 0) for known, (cells, mid) in zip(has_value, parts)],
    }
    sums |= {name: np.concatenate([a.sum(0, dtype=np.float64) for a in arrays]) for name, arrays in terms.items()}
    are_counts = np.array([role != "value" or column.kind == "boolean" for column, role in roles] + [False])
    is_few = (sums["count"] < minimum) | are_counts & (sums["total"] < minimum)
    sums["total"][is_few] = sums["squares"][is_few] = 0
    sums["count"][sums["count"] < minimum] = 0
    if is_class:
        counts = np.bincount(y, minlength=len(schema.target.classes)).astype(float)
        sums["classes"] = np.where(counts < minimum, 0, counts)
    medians = [i for i, (column, role) in enumerate(roles) if role == "value" and column.missing == "median"]
    for row, i in enumerate(medians if first is not None else ()):
        place = (x[has_value[0][:, i], i] - center[i]) / deviation[i]
        bins = np.clip((place + RANGE) * BINS / (2 * RANGE), 0, BINS - 1).astype(int)
        below = np.cumsum(np.bincount(bins, minlength=BINS))
        sums["bins"][row] = np.diff(below // minimum * minimum, prepend=0)
    return sums


def add_up_clients(schema: Schema, x: np.ndarray, y: np.ndarray, clients: np.ndarray | None) -> Preparation:
    """Return the preparation that clients who hold the rows, by their ids (rows,), come to; None is one client."""
    rows: list[Any] = [slice(None)]
    if clients is not None and schema.min_count > 1:
        _, owner = np.unique(clients, return_inverse=True)
        rows = [np.flatnonzero(owner == i) for i in range(owner.max() + 1)]

    def pool(first: Sums | None = None) -> Sums:
        sums = [add_up(schema, x[at], y[at], first) for at in rows]
        return {name: np.sum([one[name] for one in sums], axis=0) for name in sums[0]}

    first = pool()
    return prepare(schema, first, pool(first))


def prepare(schema: Schema, first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> Preparation:
    """Return the preprocessing that follows from the sums of all clients; a `DataError` if there are none."""
    if not first["count"].any():
        raise DataError(f"no client has the {schema.min_count} training examples of the schema's min_count")
    mean, roles = _moments(first)[0], schema.roles
    deviation = np.sqrt(second["squares"] / np.maximum(second["count"], 1))
    deviation = np.where(deviation > 0, deviation, 1.0)  # so that a constant feature becomes 0
    fill, medians = np.zeros(len(roles)), iter(second["bins"])
    for i, (column, role) in enumerate(roles):
        if column.missing == "mean" and role == "value":
            fill[i] = mean[i]
        elif column.missing == "median" and role == "value":
            below = np.cumsum(next(medians))
            middle = (np.searchsorted(below, below[-1] / 2) + 0.5) * 2 * RANGE / BINS - RANGE if below[-1] else 0.0
            fill[i] = mean[i] + middle * deviation[i]
        elif column.missing == "most-frequent" and role == "value":
            fill[i] = mean[i] > 0.5
        elif column.missing == "most-frequent" and role == "category":
            same = [j for j, (other, part) in enumerate(roles) if other is column and part == role]
            fill[i] = i == max(same, key=lambda j: first["total"][j])
    is_scaled = [column.scale == "standard" and role != "indicator" for column, role in roles]
    shift, scale = (np.where(is_scaled, values[:-1], default) for values, default in ((mean, 0.0), (deviation, 1.0)))
    target = (float(mean[-1]), float(deviation[-1])) if schema.target.kind == "number" else (0.0, 1.0)
    return Preparation(fill.astype(np.float32), shift, scale, target, first["classes"])


def _moments(first: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation by the first phase; 1 for a deviation of 0."""
    count = np.maximum(first["count"], 1)
    mean = first["total"] / count
    deviation = np.sqrt(np.maximum(first["squares"] / count - np.square(mean), 0))
    return mean, np.where(deviation > 0, deviation, 1.0)
