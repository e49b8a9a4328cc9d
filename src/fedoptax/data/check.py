"""Checking the data sets on disk: every file against its published hash, and what the reader makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedoptax.data.cache import ENVIRONMENT, cache_dir
from fedoptax.data.location import find_data_dir
from fedoptax.data.registry import DATA_SETS, DataSet, Download, File
from fedoptax.data.sources import Source
from fedoptax.data.verify import standing
from fedoptax.errors import DataError, unknown

READ = "(read)"
"""What stands for the file in the row about reading the whole data set."""

Counts = dict[str, int]


class Row(NamedTuple):
    """What was found out about one file, or about the whole.

    Attributes:
      file: below the data set's folder; or `READ`.
      status: `"ok"`, `"unverified"` (there, but no hash of it is known), `"differs"` (from what was published),
        `"missing"`, or `"broken"` (it cannot be read).
      detail: in one line.
    """

    file: str
    status: str
    detail: str


def check(name: str, data_dir: str | Path | None = None, data_sets: Mapping[str, DataSet] = DATA_SETS) -> list[Row]:
    """Checks one data set.

    Args:
      name: one of `data_sets`.
      data_dir: as in `fedoptax.data.location.find_data_dir`.
      data_sets: what is published.

    Returns:
      A row a published file, then one for what the reader counts in them.

    Raises:
      UsageError: an unknown name.
      DataError: the folder cannot be read. (A file that cannot is a row.)
    """
    if name not in data_sets:
        unknown("data set", name, data_sets)
    published = data_sets[name]
    folder = find_data_dir(data_dir) / name
    if not folder.is_dir():
        remedy = published.by_hand.format(folder=folder) or f"`fedoptax data fetch {name}` downloads it"
        return [Row(f"{name}/", "missing", remedy)]
    try:
        rows = [row for item in published.downloads for row in _download_rows(folder, item)]
        return [*rows, _read(name, data_dir, published.counts)]
    except OSError as error:
        raise DataError(f"'{folder}' cannot be read: {error.strerror or error}") from None


def is_whole(rows: list[Row]) -> bool:
    """Whether a data set can be used as published: it was read, with the published counts, and no file differs."""
    return not any(row.status in ("differs", "broken") for row in rows) and rows[-1].status == "ok"


def caches() -> Row:
    """How much the decoded copies of data sets take, and where."""
    folder = cache_dir()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Row(
        str(folder),
        "ok" if size else "missing",
        f"{size / 1e6:,.1f} MB of decoded copies; may be deleted at any time; {ENVIRONMENT} names another folder",
    )


def _download_rows(folder: Path, item: Download) -> list[Row]:
    rows = [_file_row(folder, file) for file in item.wanted]
    if not item.files or not (folder / item.name).is_file():
        return rows
    archive = _file_row(folder, File(item.name, item.hash))
    if archive.status == "ok":
        rows = [row._replace(status="ok", detail=f"in {item.name}") if row.status == "missing" else row for row in rows]
    return [archive, *rows]


def _file_row(folder: Path, file: File) -> Row:
    try:
        return Row(file.path, *standing(folder, file))
    except DataError as error:
        return Row(file.path, "broken", str(error))


def _read(name: str, data_dir: str | Path | None, published: Mapping[str, int]) -> Row:
    try:
        counts = _READERS[name](data_dir)
    except DataError as error:
        return Row(READ, "broken", str(error))
    text = ", ".join(f"{counts[key]:,} {key.replace('_', ' ')}" for key in published or counts)
    wrong = [key for key in published if counts[key] != published[key]]
    if wrong:
        expected = ", ".join(f"{published[key]:,} {key.replace('_', ' ')}" for key in wrong)
        return Row(READ, "differs", f"{text}; {expected} were published")
    return Row(READ, "ok", f"{text}, as published" if published else text)


def _source(module: str, function: str = "load", **options: object) -> Callable[[str | Path | None], Counts]:
    """A reader, imported when it is used."""

    def read(data_dir: str | Path | None) -> Counts:
        load = getattr(import_module(f"fedoptax.data.sources.{module}"), function)
        return _counts(load(data_dir, **options))

    return read


def _counts(source: Source) -> Counts:
    counts = {"train_examples": len(source.train["y"]), "test_examples": len(source.test["y"])}
    for part, groups in (("train", source.train_groups), ("test", source.test_groups)):
        if groups is not None:
            counts[f"{part}_clients"] = len(np.unique(groups))
    return {**counts, **(source.counts or {})}


def _stackoverflow(data_dir: str | Path | None) -> Counts:
    """Its users only: to read 150 million sentences takes hours."""
    from fedoptax.data.sources.hdf5 import ClientFile

    counts = {}
    for part in ("train", "test"):
        with ClientFile(find_data_dir(data_dir) / "stackoverflow" / f"stackoverflow_{part}.h5") as file:
            counts[f"{part}_clients"] = len(file.names)
    return counts


_READERS: Mapping[str, Callable[[str | Path | None], Counts]] = {
    "mnist": _source("mnist"),
    "qmnist": _source("mnist", writers=True),
    "fashion-mnist": _source("fashion_mnist"),
    "cifar10": _source("cifar", "load10"),
    "cifar100": _source("cifar", "load100"),
    "emnist": _source("emnist", form="tff"),
    "femnist": _source("femnist"),
    "shakespeare": _source("shakespeare"),
    "stackoverflow": _stackoverflow,
    "wikitext-2": _source("wikitext"),
}
