"""Published data sets on disk: checked against hashes and counts, and downloaded to where the readers look for them."""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedoptax._files import writing
from fedoptax.data.datasets import cifar, emnist, mnist, shakespeare, wikitext
from fedoptax.data.datasets.source import Load, open_clients
from fedoptax.data.files import find_data_dir, find_file, read_file, require_file
from fedoptax.data.registry import DATA_SETS, Download, File
from fedoptax.errors import DataError, check_choice, shorten

READ = "(read)"  # in place of the file in the row about reading the whole data set


class Row(NamedTuple):
    """The state of one file below the data set's folder, or of the whole data set (`READ`)."""

    file: str
    status: str  # ok; unverified, without a known hash; differs from what was published; missing; broken, not readable
    detail: str


def file_row(folder: Path, file: File) -> Row:
    """Compare a file of a data set, plain or compressed, with its published hash."""
    path = folder / file.path
    stored = find_file(path)
    if stored is None and path.suffix == ".gz" and path.with_suffix("").is_file():
        return Row(file.path, "unverified", "unpacked; the published hash is for the compressed file")
    if stored is None:
        return Row(file.path, "missing", "")
    if file.hash is None:
        return Row(file.path, "unverified", "no published hash")
    kind, _, expected = file.hash.partition(":")
    try:
        digest = hashlib.new(kind, path.read_bytes() if stored == path else read_file(stored)).hexdigest()
    except (DataError, OSError) as error:
        return Row(file.path, "broken", str(error))
    packed = "" if stored == path else f"packed as {stored.name}; "
    if digest == expected:
        return Row(file.path, "ok", f"{packed}{kind.upper()} as published")
    return Row(file.path, "differs", f"{packed}{kind.upper()} {digest}; {expected} was published")


def has_files(folder: Path, files: Iterable[File]) -> bool:
    """Whether files exist, with the published hash if there is one."""
    return all(file_row(folder, file).status == ("ok" if file.hash else "unverified") for file in files)


def check(name: str, data_dir: str | Path | None = None) -> list[Row]:
    """Check a data set of `DATA_SETS`: one row per published file, then one for the reader's counts."""
    check_choice("data set", name, DATA_SETS)
    folder = find_data_dir(data_dir) / name
    if not folder.is_dir():
        return [Row(f"{name}/", "missing", DATA_SETS[name].by_hand or f"`fedoptax data fetch {name}` downloads it")]
    rows = [file_row(folder, file) for item in DATA_SETS[name].downloads for file in item.files]
    return [*rows, _read(name, data_dir)]


def is_complete(rows: list[Row]) -> bool:
    """Whether a data set can be used as published: it was read, with the published counts, and no file differs."""
    return not any(row.status in ("differs", "broken") for row in rows) and rows[-1].status == "ok"


def _read(name: str, data_dir: str | Path | None) -> Row:
    published = DATA_SETS[name].counts
    try:
        counts = _count(name, data_dir)
    except DataError as error:
        return Row(READ, "broken", str(error))
    text = ", ".join(f"{counts[key]:,} {key.replace('_', ' ')}" for key in published or counts)
    wrong = [f"{count:,} {key.replace('_', ' ')}" for key, count in published.items() if counts[key] != count]
    if wrong:
        return Row(READ, "differs", f"{text}; {', '.join(wrong)} were published")
    return Row(READ, "ok", f"{text}, as published" if published else text)


def _count(name: str, data_dir: str | Path | None) -> dict[str, int]:
    if name == "stackoverflow":  # only its users: to read 150 million sentences takes hours
        paths = [require_file(data_dir, name, f"stackoverflow_{split}.h5") for split in ("train", "test")]
        with open_clients(paths[0]) as train, open_clients(paths[1]) as test:
            return {"train_clients": len(train.names), "test_clients": len(test.names)}
    source = _LOADERS[name](data_dir)
    groups = {"train": source.train_groups, "test": source.test_groups}
    clients = {f"{split}_clients": len(np.unique(ids)) for split, ids in groups.items() if ids is not None}
    examples = {"train_examples": len(source.train["y"]), "test_examples": len(source.test["y"])}
    return examples | clients | (source.counts or {})


_LOADERS: Mapping[str, Load] = {
    "mnist": mnist.load,
    "qmnist": partial(mnist.load, writers=True),
    "fashion-mnist": mnist.load_fashion,
    "cifar10": cifar.load10,
    "cifar100": cifar.load100,
    "emnist": emnist.load_tff,
    "femnist": emnist.load_leaf,
    "shakespeare": shakespeare.load,
    "wikitext-2": wikitext.load,
}


TIMEOUT = 30.0  # seconds to wait for a connection and for each next byte


def fetch(name: str, data_dir: str | Path | None = None, progress: bool | None = None) -> Path:
    """Download and unpack the missing files of a data set; return its folder.

    Files that are there with their published hash are left alone. An archive that was put into the folder by hand is
    unpacked without a network. `progress` shows a bar on standard error, None only on a terminal.

    Raises:
      UsageError: an unknown name.
      DataError: no server has the published file; the message names addresses and folder for doing it by hand.
      RunError: the folder cannot be written.
    """
    check_choice("data set", name, DATA_SETS)
    folder = find_data_dir(data_dir) / name
    if not DATA_SETS[name].downloads:
        raise DataError(f"{name} {DATA_SETS[name].by_hand}")
    for item in DATA_SETS[name].downloads:
        if not has_files(folder, item.files):
            with writing(folder):
                _retrieve(item, folder, sys.stderr.isatty() if progress is None else progress)
                _keep_members(item, folder)
    return folder


def _retrieve(item: Download, folder: Path, progress: bool) -> None:
    """Download a file, and unpack it aside if it is an archive, from the first server that has the published one."""
    import pooch  # only here: it is slow to import

    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=progress, timeout=TIMEOUT)
    processor = None
    if item.members:
        shutil.rmtree(_unpacked(item, folder), ignore_errors=True)  # of a process that was killed
        processor = pooch.Untar(extract_dir=_unpacked(item, folder).name)
    folder.mkdir(parents=True, exist_ok=True)
    print(f"downloading {item.name}", file=sys.stderr)
    reasons = []
    for url in item.urls:
        try:
            pooch.retrieve(url, item.hash, item.name, folder, processor, downloader)
            return
        except (OSError, EOFError, ValueError) as error:  # of the network or the disk; another hash than the published
            reasons.append(f"{url} ({shorten(error, 160)})")
    there = "the file there is another than the published one; " if (folder / item.name).exists() else ""
    remedy = f"{there}without a network, put the file into {folder} and run this again"
    raise DataError(f"{item.name} not downloaded: {'; '.join(reasons)}; {remedy}")


def _keep_members(item: Download, folder: Path) -> None:
    """Move an archive's members to the folder once all are unpacked, and delete the archive."""
    if not item.members:
        return
    unpacked = _unpacked(item, folder)
    if not has_files(unpacked, item.members):
        names = ", ".join(file.path for file in item.members)
        raise DataError(f"{folder / item.name} lacks one of {names}, or has an unpublished version of it")
    for file in item.members:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(unpacked / file.path, folder / file.path)
    shutil.rmtree(unpacked)
    (folder / item.name).unlink()


def _unpacked(item: Download, folder: Path) -> Path:
    return folder / f".{item.name}.unpacked"
