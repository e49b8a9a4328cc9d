"""Readers of upstream files: the real ones where they are, and broken ones made here."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedoptax.data.location import find_data_dir, require
from fedoptax.data.sources import digits, fashion_mnist, mnist
from fedoptax.data.sources.idx import read_idx
from fedoptax.errors import DataError, UsageError
from files import assert_one_line, real_data

CODES = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}


def idx_bytes(array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, CODES[array.dtype.name], array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


# --- where files lie


def test_the_argument_comes_before_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDOPTAX_DATA", str(tmp_path / "environment"))
    assert find_data_dir(tmp_path / "argument") == tmp_path / "argument"
    assert find_data_dir(str(tmp_path / "argument")) == tmp_path / "argument"
    assert find_data_dir(None) == tmp_path / "environment"


@pytest.mark.parametrize("value", [None, ""])
def test_the_cache_folder_comes_last(monkeypatch, tmp_path, value):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if value is None:
        monkeypatch.delenv("FEDOPTAX_DATA", raising=False)
    else:
        monkeypatch.setenv("FEDOPTAX_DATA", value)
    assert find_data_dir().name == "fedoptax"


def test_the_users_home_is_understood(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_data_dir("~/data") == tmp_path / "data"


def test_an_empty_folder_name_is_refused():
    with pytest.raises(UsageError, match="data_dir"):
        find_data_dir("")


@pytest.mark.parametrize("asked", ["file-ubyte", "file-ubyte.gz"])
@pytest.mark.parametrize("stored", ["file-ubyte", "file-ubyte.gz"])
def test_packed_and_unpacked_files_are_found(tmp_path, asked, stored):
    path = write(tmp_path / "set" / stored, b"x")
    assert require(tmp_path, "set", asked) == path


def test_a_missing_file_comes_with_a_remedy(tmp_path):
    with pytest.raises(DataError) as error:
        require(tmp_path, "mnist", "labels")
    assert_one_line(error, Path("labels.gz"), str(tmp_path / "mnist"), "--data-dir", "FEDOPTAX_DATA")


# --- IDX


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("dtype", CODES)
def test_idx_round_trip(tmp_path, dtype, suffix):
    array = np.arange(-12, 12).reshape(2, 3, 4).astype(dtype)
    path = write(tmp_path / f"a{suffix}", idx_bytes(array))
    read = read_idx(path, dtype, ndim=3)
    np.testing.assert_array_equal(read, array)
    assert read.dtype == np.dtype(dtype)
    assert read.dtype.isnative


GOOD = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
BROKEN = {
    "empty": (b"", "truncated"),
    "cut in the magic": (GOOD[:3], "truncated"),
    "cut in the header": (GOOD[:9], "truncated"),
    "cut in the array": (GOOD[:-1], "truncated"),
    "longer": (GOOD + b"\0", "left over"),
    "no IDX file": (b"\x89PNG" + GOOD, "not an IDX file"),
    "unknown type": (b"\0\0\x0a\x03" + GOOD[4:], "not an IDX file"),
    "another type": (b"\0\0\x09\x03" + GOOD[4:], "int8"),
    "another rank": (b"\0\0\x08\x02" + GOOD[4:], "dimensions"),
    "no examples": (b"\0\0\x08\x03" + struct.pack(">3I", 0, 3, 4), "empty"),
    "hostile size": (b"\0\0\x08\x03" + struct.pack(">3I", *[2**32 - 1] * 3) + b"\0" * 99, "declares"),
}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_idx_files_are_refused_in_one_line(tmp_path, kind, suffix):
    data, word = BROKEN[kind]
    path = write(tmp_path / f"broken{suffix}", data)
    with pytest.raises(DataError) as error:
        read_idx(path, np.uint8, ndim=3)
    assert_one_line(error, path, word)


def test_truncated_gzip(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(GOOD)[:-9])
    with pytest.raises(DataError) as error:
        read_idx(path, np.uint8, ndim=3)
    assert_one_line(error, path, "truncated")


@pytest.mark.parametrize("where", [-8, -4, 12])
def test_corrupt_gzip(tmp_path, where):
    """A wrong checksum, a wrong length and a damaged stream."""
    data = bytearray(gzip.compress(GOOD))
    data[where] ^= 0xFF
    path = tmp_path / "a.gz"
    path.write_bytes(data)
    with pytest.raises(DataError) as error:
        read_idx(path, np.uint8, ndim=3)
    assert_one_line(error, path)


def test_bytes_after_the_gzip_stream(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(GOOD) + b"more")
    with pytest.raises(DataError) as error:
        read_idx(path, np.uint8, ndim=3)
    assert_one_line(error, path)


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    """16 MiB of zeros behind a header that declares 4 of them: refused after 5."""
    header = b"\0\0\x08\x01" + struct.pack(">I", 4)
    path = write(tmp_path / "bomb.gz", header + bytes(2**24))
    with pytest.raises(DataError) as error:
        read_idx(path, np.uint8, ndim=1)
    assert_one_line(error, path, "left over")


def test_a_large_array_is_refused_by_its_limit(tmp_path):
    path = write(tmp_path / "large.gz", idx_bytes(np.zeros(2**16, np.uint8)))
    assert read_idx(path, np.uint8, ndim=1).shape == (2**16,)
    with pytest.raises(DataError, match="declares"):
        read_idx(path, np.uint8, ndim=1, max_bytes=2**15)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_what_is_not_a_file(tmp_path, make):
    path = tmp_path / "a"
    make(path)
    with pytest.raises(DataError) as error:
        read_idx(path, np.uint8, ndim=1)
    assert_one_line(error, path, "not a file")


def tiny_mnist(root, folder="mnist"):
    """Six training and four test images in upstream format, and their writers."""
    rng = np.random.default_rng(0)
    for part, qmnist, n in (("train", "train", 6), ("t10k", "test", 4)):
        y = (np.arange(n) % 10).astype(np.uint8)
        x = rng.integers(0, 256, (n, 28, 28), np.uint8)
        write(root / folder / f"{part}-images-idx3-ubyte.gz", idx_bytes(x))
        write(root / folder / f"{part}-labels-idx1-ubyte", idx_bytes(y))  # unpacked
        rows = np.zeros((n if part == "train" else n + 3, 8), np.int32)
        rows[:n, 0], rows[:, 2] = y, 100 + np.arange(len(rows)) // 2
        write(root / "qmnist" / f"qmnist-{qmnist}-labels-idx2-int.gz", idx_bytes(rows))


def test_tiny_mnist(tmp_path):
    tiny_mnist(tmp_path)
    source = mnist.load(tmp_path, writers=True)
    assert source.train["x"].shape == (6, 28, 28, 1)
    assert source.train["x"].dtype == np.uint8
    assert source.train["y"].dtype == np.int32
    assert (source.num_classes, source.input_shape) == (10, (28, 28, 1))
    np.testing.assert_array_equal(source.train_groups, [100, 100, 101, 101, 102, 102])
    np.testing.assert_array_equal(source.test_groups, [100, 100, 101, 101])
    assert mnist.load(tmp_path).train_groups is None


def test_tiny_fashion_mnist(tmp_path):
    tiny_mnist(tmp_path, "fashion-mnist")
    source = fashion_mnist.load(tmp_path)
    assert source.test["x"].shape == (4, 28, 28, 1)
    assert source.test_groups is None


LABELS = "train-labels-idx1-ubyte"
IMAGES = "train-images-idx3-ubyte.gz"
WRITERS = "qmnist-train-labels-idx2-int.gz"


@pytest.mark.parametrize(
    ("folder", "name", "array", "word"),
    [
        ("mnist", LABELS, np.zeros(5, np.uint8), "5 labels for the 6 images"),
        ("mnist", LABELS, np.full(6, 10, np.uint8), "label 10"),
        ("mnist", IMAGES, np.zeros((6, 28, 27), np.uint8), "28×27"),
        ("qmnist", WRITERS, np.zeros((6, 7), np.int32), "rows of 7"),
        ("qmnist", WRITERS, np.zeros((5, 8), np.int32), "5 rows"),
        ("qmnist", WRITERS, np.zeros((6, 8), np.int32), "row 1 has class 0"),
    ],
)
def test_files_that_do_not_fit_together(tmp_path, folder, name, array, word):
    tiny_mnist(tmp_path)
    path = write(tmp_path / folder / name, idx_bytes(array))
    with pytest.raises(DataError) as error:
        mnist.load(tmp_path, writers=True)
    assert_one_line(error, path, word)


def test_digits_are_always_the_same_stratified_split():
    source = digits.load()
    assert source.train["x"].shape == (1438, 8, 8, 1)
    assert source.test["x"].shape == (359, 8, 8, 1)
    assert source.train["x"].dtype == np.uint8
    assert source.train["y"].dtype == np.int32
    assert source.train["x"].max() == digits.SCALE
    totals = np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    np.testing.assert_array_equal(np.bincount(source.test["y"]), np.round(totals / 5))
    np.testing.assert_array_equal(np.bincount(source.train["y"]), totals - np.round(totals / 5))
    again = digits.load()
    np.testing.assert_array_equal(source.test["x"], again.test["x"])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # what scikit-learn imports is not ours
def test_digits_are_those_of_scikit_learn():
    np.testing.assert_array_equal(digits._read_bundled(), digits._ask_sklearn())


def test_a_broken_digits_file(monkeypatch):
    monkeypatch.setattr(digits.np, "loadtxt", lambda *args, **kwargs: np.zeros((3, 65), np.uint8))
    with pytest.raises(DataError, match="1,797"):
        digits.load()


def test_a_digits_file_that_is_no_table(monkeypatch):
    def loadtxt(*args, **kwargs):
        raise ValueError("two\nlines")

    monkeypatch.setattr(digits.np, "loadtxt", loadtxt)
    with pytest.raises(DataError, match="cannot be read: two lines") as error:
        digits.load()
    assert_one_line(error, Path("digits.csv.gz"))


def test_real_mnist_and_its_writers():
    root = real_data("mnist")
    source = mnist.load(root)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    np.testing.assert_array_equal(np.bincount(source.train["y"]), counts)
    assert source.test["x"].shape == (10_000, 28, 28, 1)
    assert source.train["x"].mean() / mnist.SCALE == pytest.approx(0.1307, abs=1e-4)
    if not (root / "qmnist").is_dir():
        pytest.skip("the data set 'qmnist' is not at hand: writers are not checked")
    source = mnist.load(root, writers=True)
    assert len(np.unique(source.train_groups)) == 539
    assert len(np.unique(source.test_groups)) == 297
    assert not np.intersect1d(source.train_groups, source.test_groups).size


def test_real_fashion_mnist():
    source = fashion_mnist.load(real_data("fashion-mnist"))
    assert np.all(np.bincount(source.train["y"]) == 6000)
    assert np.all(np.bincount(source.test["y"]) == 1000)
    assert source.train["x"].mean() / fashion_mnist.SCALE == pytest.approx(0.2860, abs=1e-4)
