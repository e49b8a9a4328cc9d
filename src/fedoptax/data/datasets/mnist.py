"""MNIST and Fashion-MNIST: 60,000 + 10,000 grey images of 28×28 pixels; MNIST's writers come from QMNIST.

LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998; the writers:
Yadav and Bottou, "Cold case: the lost MNIST digits", 2019; Xiao, Rasul, Vollgraf, "Fashion-MNIST: a novel image
dataset for benchmarking machine learning algorithms", 2017. Format IDX: http://yann.lecun.com/exdb/mnist.
"""

import math
from pathlib import Path

import numpy as np

from fedoptax.data.datasets.source import Source
from fedoptax.data.files import damaged, read_file, require_file
from fedoptax.errors import DataError

_TYPES: dict[int, np.dtype] = {0x08: np.dtype("u1"), 0x0C: np.dtype(">i4")}
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
"""The classes of Fashion-MNIST, as its README numbers them."""

_COLUMNS, _CLASS, _WRITER = 8, 0, 2  # a row of QMNIST's extended labels


def load(data_dir: str | Path | None = None, writers: bool = False) -> Source:
    """Read the four files of `mnist/`, and on request the writers from `qmnist/`.

    x is uint8 of shape (n, 28, 28, 1) with ink 255, y int32. With `writers` the groups are who wrote each digit, int32
    (539 to train, 297 others to test), else there are none.
    """
    source = _load(data_dir, "mnist")
    if not writers:
        return source
    groups = [_writers(data_dir, name, getattr(source, name)["y"]) for name in ("train", "test")]
    return source._replace(train_groups=groups[0], test_groups=groups[1])


def load_fashion(data_dir: str | Path | None = None) -> Source:
    """Read the four files of `fashion-mnist/`; there are no natural clients. See `load`."""
    return _load(data_dir, "fashion-mnist")._replace(class_names=CLOTHES)


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file: magic number, dimensions, big-endian bytes or 32-bit integers; `DataError` if it is none."""
    data = read_file(path)
    dtype = _TYPES.get(data[2]) if len(data) >= 4 and data[:2] == b"\0\0" else None
    if dtype is None:
        raise DataError(f"{path} is not an IDX file of bytes or 32-bit integers: it begins with {data[:4].hex(' ')}")
    start = 4 + 4 * data[3]
    shape = tuple(np.frombuffer(data[4:start].ljust(start - 4, b"\0"), ">u4").tolist())
    if len(data) != start + math.prod(shape) * dtype.itemsize or 0 in shape:
        raise damaged(path, f"it declares an array of shape {shape} and has {len(data)} bytes")
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def _load(data_dir: str | Path | None, dataset: str) -> Source:
    return Source(_examples(data_dir, dataset, "train"), _examples(data_dir, dataset, "t10k"), 10, (28, 28, 1))


def _examples(data_dir: str | Path | None, dataset: str, part: str) -> dict[str, np.ndarray]:
    images = require_file(data_dir, dataset, f"{part}-images-idx3-ubyte")
    labels = require_file(data_dir, dataset, f"{part}-labels-idx1-ubyte")
    x, y = read_idx(images), read_idx(labels)
    if x.dtype != np.uint8 or x.shape[1:] != (28, 28):
        raise DataError(f"{images} must hold images of 28×28 bytes, got {x.dtype}{list(x.shape[1:])}")
    if y.shape != x.shape[:1] or y.max() > 9:
        raise DataError(f"{labels} must hold {len(x)} labels from 0 to 9, got {y.shape} up to {y.max()}")
    return {"x": x[..., None], "y": y.astype(np.int32)}


def _writers(data_dir: str | Path | None, part: str, y: np.ndarray) -> np.ndarray:
    """Return the writer of each digit; QMNIST's test file goes on with digits that MNIST left out."""
    path = require_file(data_dir, "qmnist", f"qmnist-{part}-labels-idx2-int")
    rows = read_idx(path)
    if rows.ndim != 2 or rows.shape[1] != _COLUMNS or not np.array_equal(rows[: len(y), _CLASS], y):
        raise DataError(f"{path} must hold {_COLUMNS} columns with the classes of MNIST's {len(y)} digits")
    return rows[: len(y), _WRITER].astype(np.int32)
