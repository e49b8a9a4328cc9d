"""Federated EMNIST: handwritten digits and letters, 28×28 pixels, 62 classes, by writer.

The task of "Adaptive Federated Optimization" has TensorFlow Federated's files: 3,400 writers, 671,585 + 77,483
images. LEAF's FEMNIST (`femnist`) are the same characters in another division.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedoptax.data.cache import cached
from fedoptax.data.location import find_data_dir
from fedoptax.data.sources import Source, femnist
from fedoptax.data.sources.hdf5 import ClientFile
from fedoptax.data.sources.natural import Client, Codes, write_clients, write_names
from fedoptax.data.sources.upstream import any_there, require_all
from fedoptax.data.store import StoreWriter
from fedoptax.errors import DataError, unknown

SCALE = femnist.SCALE
"""The largest pixel: a model sees x / SCALE, in [0, 1]."""

_FILES = ("fed_emnist_train.h5", "fed_emnist_test.h5")
_VERSION = 1  # of the cached arrays


def load(data_dir: str | Path | None = None, form: str = "auto") -> Source:
    """Reads the writers' images from TensorFlow Federated's files in `emnist/`, or LEAF's in `femnist/`.

    Args:
      data_dir: as in `fedoptax.data.location.find_data_dir`.
      form: `"tff"`, `"leaf"`, or `"auto"`: the former where they are, else the latter.

    Returns:
      x uint8 of shape (n, 28, 28, 1) with background 255 and ink towards 0, as both store it; y int32; the groups
      are writers.

    Raises:
      UsageError: another form.
      DataError: a file is missing or broken.
    """
    if form not in ("auto", "tff", "leaf"):
        unknown("form", form, ("auto", "tff", "leaf"))
    leaf_only = (find_data_dir(data_dir) / "femnist").is_dir() and not any_there(data_dir, "emnist", _FILES)
    if form == "leaf" or (form == "auto" and leaf_only):
        return femnist.load(data_dir)
    paths = require_all(data_dir, "emnist", _FILES)

    def build(writer: StoreWriter) -> None:
        codes: Codes = {}
        for part, path in zip(("train", "test"), paths):
            with ClientFile(path) as file:
                write_clients(writer, part, path, _writers(file), codes)
        write_names(writer, codes)

    return femnist.image_source(cached("emnist", paths, _VERSION, build))


def _writers(file: ClientFile) -> Iterator[Client]:
    for writer in file.names:
        x = file.numbers(writer, "pixels", "f", (28, 28))
        y = file.numbers(writer, "label", "iu")
        if len(x) != len(y):
            raise DataError(f"{file.path}: writer {writer!r} has {len(x)} images and {len(y)} labels")
        if not np.all((x >= 0) & (x <= 1)):
            raise DataError(f"{file.path}: writer {writer!r} has pixels outside [0, 1]")
        yield writer, femnist.images(file.path, writer, np.rint(x * SCALE).astype(np.uint8), y)
