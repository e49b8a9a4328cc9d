"""FEMNIST: handwritten digits and letters, 28×28 pixels, 62 classes, by writer, in LEAF's JSON files.

Caldas et al., "LEAF: a benchmark for federated settings", 2018; the characters are those of NIST Special Database 19.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedoptax.data.cache import cached
from fedoptax.data.location import find_data_dir
from fedoptax.data.sources import Source
from fedoptax.data.sources.leaf_json import read_users
from fedoptax.data.sources.natural import Client, Codes, write_clients, write_names
from fedoptax.data.sources.upstream import missing
from fedoptax.data.store import StoreWriter
from fedoptax.errors import DataError

SCALE = 255
"""The largest pixel: a model sees x / SCALE, in [0, 1]."""

CLASSES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
"""What the labels stand for: 0 … 9 digits, 10 … 35 upper case, 36 … 61 lower case."""

_SIDE = 28
_VERSION = 1  # of the cached arrays


def load(data_dir: str | Path | None = None, unseen: bool = False) -> Source:
    """Reads all files of `femnist/train/` and `femnist/test/`, LEAF's split of each writer's images.

    Args:
      data_dir: as in `fedoptax.data.location.find_data_dir`.
      unseen: also read `femnist/test_unseen/`: test images of further writers, none of whose images are in `train/`.

    Returns:
      x uint8 of shape (n, 28, 28, 1) with background 255 and ink towards 0, as stored; y int32. The groups are
      writers, N of them to train on; further writers are the test groups from N on, so `test_groups < N` tells the
      known ones.

    Raises:
      DataError: a file is missing or broken, a writer is there twice, or the two parts share some writers only.
    """
    folder = find_data_dir(data_dir) / "femnist"
    files = {part: _files(folder, part) for part in ("train", "test", *(["test_unseen"] if unseen else []))}

    def build(writer: StoreWriter) -> None:
        codes: Codes = {}
        trained: set[str] = set()
        write_clients(writer, "train", folder / "train", _writers(files["train"], trained), codes)
        write_clients(writer, "test", folder / "test", _test_writers(folder, files, trained), codes)
        write_names(writer, codes)

    paths = [path for part in files.values() for path in part]
    return image_source(cached("femnist-unseen" if unseen else "femnist", paths, _VERSION, build))


def image_source(arrays: dict[str, np.ndarray]) -> Source:
    """The data set whose arrays `write_clients` and `write_names` wrote."""
    return Source(
        train={"x": arrays["train_x"], "y": arrays["train_y"]},
        test={"x": arrays["test_x"], "y": arrays["test_y"]},
        num_classes=len(CLASSES),
        input_shape=(_SIDE, _SIDE, 1),
        train_groups=arrays["train_groups"],
        test_groups=arrays["test_groups"],
        client_names=arrays["client_names"],
        class_names=CLASSES,
    )


def images(path: Path, writer: str, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """A writer's examples in the form of a `Source`.

    Args:
      path: where they come from, for the message.
      writer: likewise.
      x: uint8 with 784 pixels an image.
      y: labels, integers (n,).

    Raises:
      DataError: a label is out of range.
    """
    if len(y) and (y.min() < 0 or y.max() >= len(CLASSES)):
        wrong = y.min() if y.min() < 0 else y.max()
        raise DataError(f"{path}: writer {writer!r} has the label {wrong}; 0 to {len(CLASSES) - 1} are allowed")
    return {"x": x.reshape(-1, _SIDE, _SIDE, 1), "y": y.astype(np.int32)}


def _files(folder: Path, part: str) -> list[Path]:
    """The part's files, sorted by name; the packed one where both are."""
    found = {path.name.removesuffix(".gz"): path for path in sorted((folder / part).glob("*.json*"))}
    files = [path for name, path in sorted(found.items()) if name.endswith(".json")]
    if not files:
        raise missing(folder, f"{part}/*.json.gz", also="*.json")
    return files


def _writers(files: list[Path], seen: set[str]) -> Iterator[Client]:
    """The writers of the files; each is added to `seen`, where none may be yet."""
    for path in files:
        for writer, x, y in read_users(path, _SIDE * _SIDE):
            if writer in seen:
                raise DataError(f"{path}: writer {writer!r} is also in another file")
            seen.add(writer)
            yield writer, images(path, writer, x, y)


def _test_writers(folder: Path, files: dict[str, list[Path]], trained: set[str]) -> Iterator[Client]:
    tested: set[str] = set()
    yield from _writers(files["test"], tested)
    if trained & tested and trained != tested:  # LEAF splits by example or by writer: a file is missing
        writer = min(trained ^ tested)
        here, there = ("train", "test") if writer in trained else ("test", "train")
        raise DataError(f"{folder / there}: writer {writer!r} of '{here}' is missing, others are there")
    yield from _writers(files.get("test_unseen", []), trained | tested)
