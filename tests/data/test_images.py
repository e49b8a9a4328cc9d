"""The image data sets: digits, MNIST, Fashion-MNIST, CIFAR and EMNIST, from tiny files in their formats."""

import os
import pickle
from functools import partial

import numpy as np
import pytest

from fedoptax.data.datasets import cifar, emnist, mnist
from files import cifar_batch, idx, write, write_cifar, write_femnist, write_leaf, write_mnist, write_tff
from refusals import refused


def pixels(seed, n, shape):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


def test_mnist_by_writer_and_fashion_mnist_in_its_folder(tmp_path):
    source = mnist.load(write_mnist(tmp_path), writers=True)
    np.testing.assert_array_equal(source.train_groups, 100 + np.arange(12, dtype=np.int32) // 4, strict=True)
    np.testing.assert_array_equal(source.test_groups, 100 + np.arange(6) // 4)
    fashion = mnist.load_fashion(write_mnist(tmp_path, "fashion-mnist"))
    assert len(fashion.test["y"]) == 6 and fashion.class_names[4:7] == ("Coat", "Sandal", "Shirt")


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("mnist/train-images-idx3-ubyte.gz", idx(pixels(0, 12, (28, 27)))),
        ("mnist/train-images-idx3-ubyte.gz", b"\0\0\x09\x03" + bytes(12)),
        ("mnist/train-labels-idx1-ubyte.gz", idx(pixels(0, 11, ()) % 10)),
        ("mnist/train-labels-idx1-ubyte.gz", idx(np.full(12, 10, np.uint8))),
        ("qmnist/qmnist-train-labels-idx2-int.gz", idx(np.zeros((12, 7), np.int32))),
        ("qmnist/qmnist-train-labels-idx2-int.gz", idx(np.ones((12, 8), np.int32))),
    ],
)
def test_inconsistent_mnist_is_refused(tmp_path, file, data):
    write(write_mnist(tmp_path) / file, data)
    refused(lambda: mnist.load(tmp_path, writers=True), file.split("/")[1])


def cifar10_files():
    files = {
        f"cifar-10-batches-py/data_batch_{i}": cifar_batch(pixels(i, 4, (3, 32, 32)), labels=[i, 0, 9, 3])
        for i in range(1, 6)
    }
    return files | {"cifar-10-batches-py/test_batch": cifar_batch(pixels(0, 3, (3, 32, 32)), labels=[7, 8, 9])}


def test_cifar10_has_its_channels_last(tmp_path, monkeypatch):
    source = cifar.load10(write_cifar(tmp_path, monkeypatch, "cifar10", cifar10_files()))
    x = np.concatenate([pixels(i, 4, (3, 32, 32)) for i in range(1, 6)])
    np.testing.assert_array_equal(source.train["x"], x.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(source.train["y"], [label for i in range(1, 6) for label in (i, 0, 9, 3)])
    np.testing.assert_array_equal(source.test["y"], [7, 8, 9])
    assert (source.num_classes, source.input_shape, source.train["y"].dtype) == (10, (32, 32, 3), np.int32)
    assert " ".join(source.class_names) == "airplane automobile bird cat deer dog frog horse ship truck"


@pytest.mark.parametrize("labels", ["fine", "coarse"])
def test_cifar100_has_two_kinds_of_labels(tmp_path, monkeypatch, labels):
    files = {
        "cifar-100-python/train": cifar_batch(pixels(1, 2, (3, 32, 32)), fine_labels=[99, 0], coarse_labels=[19, 1]),
        "cifar-100-python/test": cifar_batch(pixels(0, 2, (3, 32, 32)), fine_labels=[5, 6], coarse_labels=[2, 3]),
    }
    source = cifar.load100(write_cifar(tmp_path, monkeypatch, "cifar100", files), labels)
    np.testing.assert_array_equal(source.train_coarse, [19, 1])
    expected = {"fine": (100, [99, 0], [5, 6]), "coarse": (20, [19, 1], [2, 3])}[labels]
    assert (source.num_classes, list(source.train["y"]), list(source.test["y"])) == expected


def test_a_batch_with_another_hash_is_not_unpickled(tmp_path, monkeypatch):
    path = write_cifar(tmp_path, monkeypatch, "cifar10", cifar10_files()) / "cifar10/cifar-10-batches-py/test_batch"
    path.write_bytes(pickle.dumps(RemovesAFile(tmp_path)))
    refused(lambda: cifar.load10(tmp_path), "test_batch is damaged (its hash", "delete it, and run `fedoptax data")


class RemovesAFile:
    """A pickle that removes a file as soon as it is read."""

    def __init__(self, folder):
        self.path = str(write(folder / "precious", b""))

    def __reduce__(self):
        return os.remove, (self.path,)


def test_a_pickle_may_name_only_arrays(tmp_path, monkeypatch):
    files = cifar10_files() | {"cifar-10-batches-py/test_batch": pickle.dumps(RemovesAFile(tmp_path))}
    write_cifar(tmp_path, monkeypatch, "cifar10", files)
    refused(lambda: cifar.load10(tmp_path), "test_batch ", "names ", ".remove")
    assert (tmp_path / "precious").exists()


IMAGES = {"b": (pixels(1, 3, (784,)), [0, 61, 10]), "a": (pixels(2, 2, (784,)), [5, 5])}
TESTED = {"b": (pixels(3, 1, (784,)), [1]), "a": (pixels(4, 1, (784,)), [2])}


def write_emnist(root):
    for part, users in (("train", IMAGES), ("test", TESTED)):
        clients = {
            name: {"pixels": (x.reshape(-1, 28, 28) / 255).astype(np.float32), "label": np.asarray(y, np.int32)}
            for name, (x, y) in users.items()
        }
        write_tff(root / "emnist" / f"fed_emnist_{part}.h5", clients)
    return root


@pytest.mark.parametrize(
    ("make", "names"), [(write_emnist, ["a", "b"]), (partial(write_femnist, train=IMAGES, test=TESTED), ["b", "a"])]
)
def test_emnist_in_both_formats(tmp_path, make, names):
    source = emnist.load(make(tmp_path))  # TensorFlow Federated's writers are sorted, LEAF's in the files' order
    for part, users, groups in ((source.train, IMAGES, source.train_groups), (source.test, TESTED, source.test_groups)):
        for code, name in enumerate(names):
            np.testing.assert_array_equal(part["x"][groups == code], users[name][0].reshape(-1, 28, 28, 1))
            np.testing.assert_array_equal(part["y"][groups == code], users[name][1])
    assert (source.num_classes, source.input_shape, source.train["x"].dtype) == (62, (28, 28, 1), np.uint8)
    assert source.class_names[61] == "z"


ONE = pixels(0, 1, (784,))


@pytest.mark.parametrize(
    "train",
    [
        {"users": ["b", "a"]}, {"user_data": {}},
        *({"user_data": {"b": {"x": [[pixel] * size], "y": y}}, "users": ["b"]}
          for pixel, size, y in ((2.0, 784, [0]), (0.0, 783, [0]), (0.0, 784, [62]), (0.0, 784, []), ("", 784, [0]))),
    ],
)  # fmt: skip
def test_inconsistent_femnist_is_refused(tmp_path, train):
    path = write_femnist(tmp_path, IMAGES, TESTED) / "femnist" / "train" / "1.json.gz"
    write_leaf(path, {"b": (ONE, [0]), "c": (ONE, [0])}, **train)
    refused(lambda: emnist.load(tmp_path), "femnist")


@pytest.mark.parametrize(
    "fields",
    [
        {"pixels": np.zeros((1, 28, 28), "f4")}, {"pixels": np.zeros((1, 28, 27), "f4"), "label": [0]},
        {"pixels": np.full((1, 28, 28), np.nan, "f4"), "label": [0]}, {"pixels": [b"dark"], "label": [0]},
        *({"pixels": np.zeros((1, 28, 28), "f4"), "label": label} for label in ([0, 1], [-1], [0.5])),
    ],
)  # fmt: skip
def test_inconsistent_emnist_is_refused(tmp_path, fields):
    write_tff(write_emnist(tmp_path) / "emnist" / "fed_emnist_train.h5", {"a": fields})
    refused(lambda: emnist.load(tmp_path), "fed_emnist_train.h5", "'a'")
