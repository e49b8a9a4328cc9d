"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour photographs of 32×32 pixels, in 10 or 100 classes.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009. Format: the "Python version" of
https://www.cs.toronto.edu/~kriz/cifar.html, pickled dictionaries, which are read here without running them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedoptax.data.archives import read_members
from fedoptax.data.cache import cached
from fedoptax.data.containers import find_packed, read_packed
from fedoptax.data.location import ENVIRONMENT, find_data_dir
from fedoptax.data.sources import Source
from fedoptax.data.sources.pickled import read_pickle
from fedoptax.data.store import StoreWriter
from fedoptax.errors import DataError, unknown

SCALE = 255
"""The largest value: a model sees x / SCALE, in [0, 1]."""

LABELS = ("fine", "coarse")
"""CIFAR-100's two kinds of labels: 100 classes, or the 20 superclasses of five classes each."""

_SIDE, _CHANNELS = 32, 3
_PIXELS = _CHANNELS * _SIDE * _SIDE
_VERSION = 1  # of this reader: another number makes old caches void
_OTHER = 256  # bytes allowed for the labels and the file name of an image, and for what holds them
_REST = 2**24  # bytes allowed for an archive's other files: the names of the classes, a page


class _Form(NamedTuple):
    """How a data set is stored: `train` files of `rows` images each, and one of 10,000."""

    dataset: str
    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    rows: int
    test_rows: int
    labels: dict[str, tuple[str, int]]  # our name -> (the name in the file, classes)


_CIFAR10 = _Form(
    dataset="cifar10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    rows=10_000,
    test_rows=10_000,
    labels={"y": ("labels", 10)},
)
_CIFAR100 = _Form(
    dataset="cifar100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    train=("train",),
    test="test",
    rows=50_000,
    test_rows=10_000,
    labels={"fine": ("fine_labels", 100), "coarse": ("coarse_labels", 20)},
)


def load10(data_dir: str | Path | None = None) -> Source:
    """Reads CIFAR-10's six batches, of `cifar10/cifar-10-batches-py/`, of `cifar10/` or of the archive there.

    Args:
      data_dir: as in `fedoptax.data.location.find_data_dir`. Batches may be packed (`.xz`, `.gz`).

    Returns:
      x uint8 of shape (n, 32, 32, 3) in red, green, blue, y int32; there are no natural clients.

    Raises:
      DataError: a file is missing or broken.
    """
    arrays = _read(_CIFAR10, data_dir)
    return Source(
        train={"x": arrays["train_x"], "y": arrays["train_y"]},
        test={"x": arrays["test_x"], "y": arrays["test_y"]},
        num_classes=10,
        input_shape=(_SIDE, _SIDE, _CHANNELS),
    )


def load100(data_dir: str | Path | None = None, labels: str = "fine") -> Source:
    """Reads CIFAR-100's two files, of `cifar100/cifar-100-python/`, of `cifar100/` or of the archive there.

    Args:
      data_dir: as in `fedoptax.data.location.find_data_dir`. Files may be packed (`.xz`, `.gz`).
      labels: what y is, one of `LABELS`.

    Returns:
      x uint8 of shape (n, 32, 32, 3) in red, green, blue, y int32, and `train_coarse`, the superclass of each
      training image (int32), whatever y is; there are no natural clients.

    Raises:
      DataError: a file is missing or broken.
      UsageError: `labels` is none of `LABELS`.
    """
    if labels not in LABELS:
        unknown("labels", labels, LABELS)
    arrays = _read(_CIFAR100, data_dir)
    return Source(
        train={"x": arrays["train_x"], "y": arrays[f"train_{labels}"]},
        test={"x": arrays["test_x"], "y": arrays[f"test_{labels}"]},
        num_classes=_CIFAR100.labels[labels][1],
        input_shape=(_SIDE, _SIDE, _CHANNELS),
        train_coarse=arrays["train_coarse"],
    )


def _read(form: _Form, data_dir: str | Path | None) -> dict[str, np.ndarray]:
    """The arrays `train_x`, `test_x` and one a part and kind of label."""
    batches, files = _locate(form, find_data_dir(data_dir) / form.dataset)

    def build(writer: StoreWriter) -> None:
        for part, x, labels in batches():
            writer.append(f"{part}_x", x)
            for name, y in labels.items():
                writer.append(f"{part}_{name}", y)

    return cached(form.dataset, files, _VERSION, build)


_Batch = tuple[str, np.ndarray, dict[str, np.ndarray]]  # part, images, labels by our name


def _locate(form: _Form, folder: Path) -> tuple[Callable[[], Iterator[_Batch]], list[Path]]:
    """What reads the batches, and from which files."""
    names = (*form.train, form.test)
    paths = {name: find_packed(folder / form.folder, name) or find_packed(folder, name) for name in names}
    found = {name: path for name, path in paths.items() if path}
    if len(found) == len(names):
        return lambda: _from_files(form, found), list(found.values())
    archive = folder / form.archive
    if archive.is_file():
        return lambda: _from_archive(form, archive), [archive]
    missing = next(name for name in names if name not in found)
    raise DataError(
        f"{missing}: not found (nor packed as .xz or .gz) in {folder / form.folder}, nor {form.archive} in {folder}; "
        f"`fedoptax data fetch {form.dataset}` downloads it; --data-dir (data_dir=) or {ENVIRONMENT} names the folder "
        f"that holds '{form.dataset}'"
    )


def _from_files(form: _Form, paths: dict[str, Path]) -> Iterator[_Batch]:
    def read(name: str) -> _Batch:
        return _batch(form, name, read_packed(paths[name], _limit(_rows(form, name))), str(paths[name]))

    with ThreadPoolExecutor(2) as pool:  # unpacking releases the interpreter's lock
        yield from pool.map(read, paths)


def _from_archive(form: _Form, archive: Path) -> Iterator[_Batch]:
    names = {name: f"{form.folder}/{name}" for name in (*form.train, form.test)}
    limit = sum(_limit(_rows(form, name)) for name in names) + _REST
    contents = read_members(archive, names.values(), limit)
    for name, member in names.items():
        yield _batch(form, name, contents.pop(member), f"{archive}: {member}")


def _rows(form: _Form, name: str) -> int:
    return form.test_rows if name == form.test else form.rows


def _limit(rows: int) -> int:
    return rows * (_PIXELS + _OTHER)


def _batch(form: _Form, name: str, data: bytes, where: str) -> _Batch:
    """The images and labels of one file; `where` names it in an error."""
    rows = _rows(form, name)
    content = read_pickle(data, where)
    x = content.get("data")
    if not isinstance(x, np.ndarray) or x.shape != (rows, _PIXELS):
        raise DataError(f"{where}: 'data' is no array of {rows} × {_PIXELS} bytes")
    labels = {
        ours: _labels(content.get(theirs), rows, classes, theirs, where)
        for ours, (theirs, classes) in form.labels.items()
    }
    planes = x.reshape(rows, _CHANNELS, _SIDE, _SIDE)
    part = "test" if name == form.test else "train"
    return part, np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def _labels(values: Any, rows: int, classes: int, name: str, where: str) -> np.ndarray:
    if not isinstance(values, list) or len(values) != rows:
        raise DataError(f"{where}: '{name}' is no list of {rows} labels")
    for i, value in enumerate(values):
        if type(value) is not int or not 0 <= value < classes:
            given = value if type(value) is int else f"a {type(value).__name__}"
            raise DataError(f"{where}: '{name}' of image {i} is {given}; 0 to {classes - 1} are allowed")
    return np.array(values, np.int32)
