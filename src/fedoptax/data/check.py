"""Checking the data sets on disk: each file against its published hash, and the counts of what the readers find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedoptax.data.cache import ENVIRONMENT, cache_dir
from fedoptax.data.datasets import cifar, emnist, mnist, shakespeare, wikitext
from fedoptax.data.datasets.source import Load
from fedoptax.data.datasets.tff_hdf5 import open_clients
from fedoptax.data.files import file_status, find_data_dir, require_file
from fedoptax.data.registry import DATA_SETS
from fedoptax.errors import DataError, unknown

READ = "(read)"
"""What stands for the file in the row about reading the whole data set."""

Counts = dict[str, int]


class Row(NamedTuple):
    """What was found out about one file, or about the whole data set.

    Attributes:
      file: below the data set's folder; or `READ`.
      status: `"ok"`, `"unverified"` (it is there, but no hash of it is known), `"differs"` (from what was published),
        `"missing"`, or `"broken"` (it cannot be read).
      detail: in one line.
    """

    file: str
    status: str
    detail: str


def check(name: str, data_dir: str | Path | None = None) -> list[Row]:
    """Check one data set.

    Args:
      name: one of `DATA_SETS`.
      data_dir: as in `fedoptax.data.files.find_data_dir`.

    Returns:
      One row per published file, then one for what the reader counts in them.

    Raises:
      UsageError: an unknown name.
    """
    if name not in DATA_SETS:
        unknown("data set", name, DATA_SETS)
    folder = find_data_dir(data_dir) / name
    if not folder.is_dir():
        remedy = DATA_SETS[name].by_hand or f"`fedoptax data fetch {name}` downloads it"
        return [Row(f"{name}/", "missing", remedy)]
    rows = []
    for file in (file for item in DATA_SETS[name].downloads for file in item.files):
        try:
            rows.append(Row(file.path, *file_status(folder, file)))
        except DataError as error:
            rows.append(Row(file.path, "broken", str(error)))
    return [*rows, _read(name, data_dir)]


def is_complete(rows: list[Row]) -> bool:
    """Whether a data set can be used as published: it was read, with the published counts, and no file differs."""
    return not any(row.status in ("differs", "broken") for row in rows) and rows[-1].status == "ok"


def cache_row() -> Row:
    """Return how much space the decoded copies of data sets take, and where."""
    folder = cache_dir()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Row(
        str(folder),
        "ok" if size else "missing",
        f"{size / 1e6:,.1f} MB of decoded copies; may be deleted at any time; {ENVIRONMENT} names another folder",
    )


def _read(name: str, data_dir: str | Path | None) -> Row:
    published = DATA_SETS[name].counts
    try:
        counts = _COUNTERS[name](data_dir)
    except DataError as error:
        return Row(READ, "broken", str(error))
    text = ", ".join(f"{counts[key]:,} {key.replace('_', ' ')}" for key in published or counts)
    wrong = [key for key in published if counts[key] != published[key]]
    if wrong:
        expected = ", ".join(f"{published[key]:,} {key.replace('_', ' ')}" for key in wrong)
        return Row(READ, "differs", f"{text}; {expected} were published")
    return Row(READ, "ok", f"{text}, as published" if published else text)


def _count(load: Load) -> Callable[[str | Path | None], Counts]:
    def count(data_dir: str | Path | None) -> Counts:
        source = load(data_dir)
        counts = {"train_examples": len(source.train["y"]), "test_examples": len(source.test["y"])}
        for part, groups in (("train", source.train_groups), ("test", source.test_groups)):
            if groups is not None:
                counts[f"{part}_clients"] = len(np.unique(groups))
        return counts | (source.counts or {})

    return count


def _count_stackoverflow(data_dir: str | Path | None) -> Counts:
    """Count only its users: to read 150 million sentences takes hours."""
    counts = {}
    for part in ("train", "test"):
        with open_clients(require_file(data_dir, "stackoverflow", f"stackoverflow_{part}.h5")) as file:
            counts[f"{part}_clients"] = len(file.names)
    return counts


_COUNTERS: Mapping[str, Callable[[str | Path | None], Counts]] = {
    "mnist": _count(mnist.load),
    "qmnist": _count(mnist.load_with_writers),
    "fashion-mnist": _count(mnist.load_fashion),
    "cifar10": _count(cifar.load10),
    "cifar100": _count(cifar.load100),
    "emnist": _count(emnist.load_tff),
    "femnist": _count(emnist.load_leaf),
    "shakespeare": _count(shakespeare.load),
    "stackoverflow": _count_stackoverflow,
    "wikitext-2": _count(wikitext.load),
}
