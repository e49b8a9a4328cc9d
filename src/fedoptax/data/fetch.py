"""Downloading data sets from their publishers, checked by hash, to the folders that the readers look in."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedoptax._progress import status
from fedoptax.data.archives import unpack
from fedoptax.data.location import find_data_dir
from fedoptax.data.registry import DATA_SETS, DataSet, Download
from fedoptax.data.transfer import Progress, TransferError, download, forget
from fedoptax.data.verify import HASHES, file_hash, is_right, record
from fedoptax.errors import DataError, unknown
from fedoptax.storage.folder import locked

Say = Callable[[str], None]


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def fetch(
    name: str,
    data_dir: str | Path | None = None,
    progress: bool | None = None,
    say: Say = _to_stderr,
    data_sets: Mapping[str, DataSet] = DATA_SETS,
) -> Path:
    """Downloads a data set, or what is missing of it, and unpacks it to its publisher's layout.

    Files that are there with their published hash are left alone. A broken download goes on where it stopped; what
    it has so far lies in `NAME.part`. An archive that was put into the folder by hand is unpacked as well.

    Args:
      name: one of `data_sets`.
      data_dir: as in `fedoptax.data.location.find_data_dir`.
      progress: whether to show a bar on standard error; `None` asks whether that is a terminal.
      say: told what is about to be downloaded, and how large it is.
      data_sets: what is published.

    Returns:
      The data set's folder.

    Raises:
      UsageError: an unknown name.
      DataError: no server gives a file, or not the published one; an archive is broken; the disk is full. One line,
        with the addresses and the folder for doing it by hand.
      RunError: another process is at it.
    """
    if name not in data_sets:
        unknown("data set", name, data_sets)
    folder = find_data_dir(data_dir) / name
    published = data_sets[name]
    if not published.downloads:
        raise DataError(f"{name}: {published.by_hand.format(folder=folder)}")
    try:
        if all(_is_done(folder, item) for item in published.downloads):  # also where the folder cannot be written
            return folder
        with locked(folder):
            missing = [item for item in published.downloads if not _is_done(folder, item)]
            for i in range(len(missing)):
                _get(folder, missing[i:], progress, say)
    except OSError as error:
        raise DataError(f"'{folder}' cannot be used: {' '.join(str(error.strerror or error).split())}") from None
    return folder


def _is_done(folder: Path, item: Download) -> bool:
    return all(is_right(folder, file) for file in item.wanted)


def _get(folder: Path, missing: Sequence[Download], progress: bool | None, say: Say) -> None:
    """Gets the first of the missing files."""
    item = missing[0]
    reasons = []
    for url in item.urls:
        try:
            _retrieve(url, folder, item, progress, say)
            break
        except TransferError as error:
            reasons.append(f"{url} ({error})")
    else:
        names = ", ".join(other.name for other in missing)
        raise DataError(
            f"{item.name}: not downloaded: {'; '.join(reasons)}; without a network, get {names} elsewhere, put that "
            f"into {folder} and run this again"
        )
    if item.files:
        _unpack(folder, item)


def _retrieve(url: str, folder: Path, item: Download, progress: bool | None, say: Say) -> None:
    """Puts the file into the folder if its hash is the published one; goes on with a part that is there."""
    import pooch  # only here: it is slow to import

    pooch.get_logger().setLevel("WARNING")
    part = folder / f"{item.name}.part"
    for _ in range(2):
        resumed = part.exists()
        try:
            pooch.retrieve(url, item.hash, item.name, folder, downloader=_downloader(part, item, progress, say))
            return
        except ValueError:
            if not resumed:  # else the part may have been of another version: once more from the start
                raise TransferError(f"its {HASHES[item.hash.split(':')[0]]} is not the published one") from None


def _downloader(part: Path, item: Download, progress: bool | None, say: Say) -> Callable[..., None]:
    """What pooch calls: it checks the hash of what it finds at `path`, and moves that into place."""

    def downloader(url: str, path: str, pooch: object) -> None:
        with _shown(item.name, progress, say) as shown:
            download(url, part, item.size or item.limit, item.size, shown)
        os.replace(part, path)
        forget(part)

    return downloader


@contextmanager
def _shown(name: str, enabled: bool | None, say: Say) -> Iterator[Progress]:
    """Tells the size once it is known, then moves a bar."""
    told: list[str] = []

    def announce(done: int, total: int | None) -> None:
        if not told:
            rest = f", of which {done / 1e6:,.1f} MB are here" if done else ""
            told.append(f"downloading {name}: {'size unknown' if total is None else f'{total / 1e6:,.1f} MB'}{rest}")
            say(told[0])

    if not (sys.stderr.isatty() if enabled is None else enabled):
        yield announce
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(bar_width=None),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:
        bar = bars.add_task(name, total=None)

        def move(done: int, total: int | None) -> None:
            announce(done, total)
            bars.update(bar, completed=done, total=total)

        yield move


def _unpack(folder: Path, item: Download) -> None:
    """Puts the archive's wanted files into the folder, all of them or none; the archive goes."""
    archive = folder / item.name
    staging = folder / f".{item.name}.unpacked"
    shutil.rmtree(staging, ignore_errors=True)  # of a process that was killed
    try:
        with status(f"unpacking {item.name}"):
            unpack(archive, staging, item.unpacked_limit)
        for file in item.files:
            if not (staging / file.path).is_file():
                raise DataError(f"{archive}: lacks {file.path}")
            if not is_right(staging, file):
                raise DataError(f"{archive}: its {file.path} is not the published one")
        unpublished = [file.path for file in item.files if file.hash is None]
        sums = {path: file_hash(staging / path, "sha256") for path in unpublished}
        for file in item.files:
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / file.path, folder / file.path)
        if sums:
            record(folder, sums)
        archive.unlink()
    finally:
        shutil.rmtree(staging, ignore_errors=True)
