"""Federated EMNIST: handwritten digits and letters, 28×28 grey pixels, 62 classes, by writer.

The task of "Adaptive Federated Optimization" has TensorFlow Federated's files: 3,400 writers, 671,585 + 77,483
images. LEAF's FEMNIST are the same characters of NIST Special Database 19 in another division: Caldas et al., "LEAF: a
benchmark for federated settings", 2018.
"""

import json
import string
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fedoptax.data.cache import cached
from fedoptax.data.datasets.source import ClientRows, Source, open_clients, rows_of_clients
from fedoptax.data.files import find_data_dir, read_file, require_file
from fedoptax.data.readers import reading
from fedoptax.errors import DataError

CLASSES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
"""What the labels stand for: 0 … 9 digits, 10 … 35 upper case, 36 … 61 lower case."""

_VERSION = 1  # of the cached arrays


def load(data_dir: str | Path | None = None) -> Source:
    """Read LEAF's files in `femnist/` if there are no TensorFlow Federated's in `emnist/`.

    x is uint8 of shape (n, 28, 28, 1) with background 255 and ink towards 0, as both store it, y int32; the groups are
    writers.
    """
    folder = find_data_dir(data_dir)
    is_leaf = (folder / "femnist").is_dir() and not (folder / "emnist" / "fed_emnist_train.h5").is_file()
    return load_leaf(data_dir) if is_leaf else load_tff(data_dir)


def load_tff(data_dir: str | Path | None = None) -> Source:
    """Read `emnist/fed_emnist_{train,test}.h5`; see `load`."""
    paths = [require_file(data_dir, "emnist", f"fed_emnist_{part}.h5") for part in ("train", "test")]
    return _source(cached("emnist", paths, _VERSION, partial(rows_of_clients, paths, *map(_tff_writers, paths))))


def load_leaf(data_dir: str | Path | None = None) -> Source:
    """Read all JSON files of `femnist/train/` and `femnist/test/`, LEAF's split of each writer's images; see `load`."""
    files = {part: _leaf_files(data_dir, part) for part in ("train", "test")}
    folders, clients = [paths[0].parent for paths in files.values()], map(_leaf_writers, files.values())
    decode = partial(rows_of_clients, folders, *clients)
    return _source(cached("femnist", [*files["train"], *files["test"]], _VERSION, decode))


def _source(arrays: dict[str, np.ndarray]) -> Source:
    train, test = ({name: arrays[f"{part}_{name}"] for name in ("x", "y")} for part in ("train", "test"))
    groups = arrays["train_groups"], arrays["test_groups"]
    return Source(train, test, len(CLASSES), (28, 28, 1), *groups, class_names=CLASSES)


def _tff_writers(path: Path) -> Iterator[ClientRows]:
    with open_clients(path) as file:
        for writer in file.names:
            yield writer, _examples(path, writer, file.numbers(writer, "pixels"), file.numbers(writer, "label"))


def _leaf_files(data_dir: str | Path | None, part: str) -> list[Path]:
    """Return the part's JSON files, plain or compressed, each once and sorted by name."""
    folder = find_data_dir(data_dir) / "femnist" / part
    names = {path.name.removesuffix(".gz") for path in folder.glob("*.json*")}
    return [require_file(data_dir, "femnist", f"{part}/{name}") for name in sorted(names) or ["*.json"]]


def _leaf_writers(files: list[Path]) -> Iterator[ClientRows]:
    for path in files:
        with reading(path, "one of LEAF's JSON files"):
            document = json.loads(read_file(path))
            for writer in document["users"]:
                user = document["user_data"][writer]
                x, y = np.array(user["x"]).reshape(-1, 28, 28), np.array(user["y"], np.int64)
                yield writer, _examples(path, writer, x, y)


def _examples(path: Path, writer: str, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Return a writer's images as bytes, from pixels k / 255, and the labels."""
    are_images = x.shape[1:] == (28, 28) and np.all((x >= 0) & (x <= 1))
    are_labels = y.shape == x.shape[:1] and y.dtype.kind in "iu" and np.all((y >= 0) & (y < len(CLASSES)))
    if not are_images or not are_labels:
        raise DataError(f"{path}: writer {writer!r} must have images of 28×28 pixels from 0 to 1, and labels of them")
    return {"x": np.rint(255 * x).astype(np.uint8)[..., None], "y": y.astype(np.int32)}
