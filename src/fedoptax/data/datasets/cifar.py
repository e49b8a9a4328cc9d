"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour photographs of 32×32 pixels, in 10 or 100 classes.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009. Format: the "Python version" of
https://www.cs.toronto.edu/~kriz/cifar.html, pickled dictionaries. A pickle can run code when it is read, so each file
must have the published hash first, and may name nothing but NumPy's arrays.
"""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax.data.cache import Rows, cached
from fedoptax.data.datasets.source import Source
from fedoptax.data.files import damaged, read_file, require_file
from fedoptax.data.readers import reading
from fedoptax.data.registry import DATA_SETS

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""The classes of CIFAR-10, as its batches.meta numbers them."""

_SHAPE = (32, 32, 3)
_VERSION = 2  # of the cached arrays
_ARRAY_NAMES = {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
_ARRAY_NAMES |= {("numpy", "ndarray"), ("numpy", "dtype")}


def load10(data_dir: str | Path | None = None) -> Source:
    """Read CIFAR-10's six batches, of `cifar10/cifar-10-batches-py/` or of `cifar10/`.

    x is uint8 of shape (n, 32, 32, 3) in red, green, blue, y int32; there are no natural clients.
    """
    arrays = _read("cifar10", data_dir, "labels")
    train, test = ({"x": arrays[f"{part}_x"], "y": arrays[f"{part}_labels"]} for part in ("train", "test"))
    return Source(train, test, num_classes=10, input_shape=_SHAPE, class_names=CLASSES)


def load100(data_dir: str | Path | None = None, labels: str = "fine") -> Source:
    """Read CIFAR-100's two files, of `cifar100/cifar-100-python/` or of `cifar100/`.

    As `load10`; y is the class by `labels`, `"fine"`, or `"coarse"`, one of 20 superclasses of five classes each, and
    `train_coarse` the superclass of each training image (int32), whatever y is.
    """
    arrays = _read("cifar100", data_dir, "fine_labels", "coarse_labels")
    train, test = ({"x": arrays[f"{part}_x"], "y": arrays[f"{part}_{labels}_labels"]} for part in ("train", "test"))
    count = 100 if labels == "fine" else 20
    return Source(train, test, num_classes=count, input_shape=_SHAPE, train_coarse=arrays["train_coarse_labels"])


def _read(dataset: str, data_dir: str | Path | None, *labels: str) -> dict[str, np.ndarray]:
    """Read the arrays `train_x`, `test_x` and one for each split and kind of label."""
    files = [file for file in DATA_SETS[dataset].downloads[0].members if not file.path.endswith("meta")]
    paths = [require_file(data_dir, dataset, file.path, Path(file.path).name) for file in files]

    def decode() -> Rows:
        for file, path in zip(files, paths):
            data = read_file(path)
            kind, _, published = str(file.hash).partition(":")
            if hashlib.new(kind, data).hexdigest() != published:
                raise damaged(path, "its hash is not the published one")
            with reading(path, "a pickle of arrays"):
                batch = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()  # strings of Python 2
            split = "test" if path.name.startswith("test") else "train"
            yield f"{split}_x", batch["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            yield from ((f"{split}_{label}", np.array(batch[label], np.int32)) for label in labels)

    return cached(dataset, paths, _VERSION, decode)


class _ArrayUnpickler(pickle.Unpickler):
    """Reads NumPy's arrays and plain data; any other name in the pickle is refused."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) not in _ARRAY_NAMES:
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")
        return super().find_class(module_name, global_name)
