"""Downloading data sets from their publishers, checked by hash, to the folders where the readers look for them."""

import os
import shutil
import sys
from pathlib import Path

from fedoptax.data.check import has_files
from fedoptax.data.files import find_data_dir
from fedoptax.data.registry import DATA_SETS, Download
from fedoptax.errors import DataError, check_choice, shorten

TIMEOUT = 30.0  # seconds to wait for a connection and for each next byte


def fetch(name: str, data_dir: str | Path | None = None, progress: bool | None = None) -> Path:
    """Download and unpack the missing files of a data set; return its folder.

    Files that are there with their published hash are left alone. An archive that was put into the folder by hand is
    unpacked without a network.

    `progress` says whether to show a bar on standard error; `None` asks whether that is a terminal.

    Raises:
      UsageError: an unknown name.
      DataError: no server has the published file (the message names addresses and folder for doing it by hand), or the
        folder cannot be written.
    """
    check_choice("data set", name, DATA_SETS)
    folder = find_data_dir(data_dir) / name
    if not DATA_SETS[name].downloads:
        raise DataError(f"{name} {DATA_SETS[name].by_hand}")
    for item in DATA_SETS[name].downloads:
        if not has_files(folder, item.files):
            try:
                _retrieve(item, folder, sys.stderr.isatty() if progress is None else progress)
                _keep_members(item, folder)
            except OSError as error:
                raise DataError(f"'{folder}' cannot be written: {error.strerror or error}") from None
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
    raise DataError(
        f"{item.name} not downloaded: {'; '.join(reasons)}; without a network, put the file into {folder} "
        "and run this again"
    )


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
