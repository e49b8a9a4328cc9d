"""CIFAR-10 and CIFAR-100: their layouts and containers, broken files, and the real ones where they are."""

import gzip
import hashlib
import io
import lzma
import tarfile

import numpy as np
import pytest

from fedoptax.data.sources import cifar
from fedoptax.data.sources.pickled import read_pickle
from fedoptax.errors import DataError, UsageError
from files import assert_one_line, real_data
from python2_pickles import array, dictionary, integer, listing, text

PACK = {"": bytes, ".xz": lzma.compress, ".gz": gzip.compress}
ROWS, TEST_ROWS = 4, 3  # images of a training file and of the test file, in place of 10,000


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Files of a few images, and a cache of one's own."""
    monkeypatch.setenv("FEDOPTAX_CACHE", str(tmp_path / "cache"))
    for form in ("_CIFAR10", "_CIFAR100"):
        monkeypatch.setattr(cifar, form, getattr(cifar, form)._replace(rows=ROWS, test_rows=TEST_ROWS))


def pixels(seed, rows):
    return np.random.default_rng(seed).integers(0, 256, (rows, 3, 32, 32), np.uint8)


def batch(x, **labels):
    """A file's bytes; `labels` by their names in the file."""
    names = listing(text(f"image_{i}.png") for i in range(len(x)))
    entries = {name: listing(map(integer, values)) for name, values in labels.items()}
    return dictionary(
        {"batch_label": text("a batch"), **entries, "data": array((len(x), 3072), x.tobytes()), "filenames": names}
    )


def files10():
    """The six files of a small CIFAR-10."""
    parts = {f"data_batch_{i}": batch(pixels(i, ROWS), labels=[i, 0, 9, 3]) for i in range(1, 6)}
    return {**parts, "test_batch": batch(pixels(0, TEST_ROWS), labels=[7, 8, 9])}


def files100():
    return {
        "train": batch(pixels(1, ROWS), fine_labels=[99, 0, 50, 1], coarse_labels=[19, 0, 10, 1]),
        "test": batch(pixels(0, TEST_ROWS), fine_labels=[5, 6, 7], coarse_labels=[2, 3, 4]),
    }


def write(folder, files, suffix=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / f"{name}{suffix}").write_bytes(PACK[suffix](data))


def write_archive(path, files):
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def assert_cifar10(source):
    expected = np.concatenate([pixels(i, ROWS) for i in range(1, 6)]).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(source.train["x"], expected)
    np.testing.assert_array_equal(source.test["x"], pixels(0, TEST_ROWS).transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(source.train["y"], [label for i in range(1, 6) for label in (i, 0, 9, 3)])
    np.testing.assert_array_equal(source.test["y"], [7, 8, 9])
    assert (source.train["x"].dtype, source.train["y"].dtype) == (np.uint8, np.int32)
    assert (source.num_classes, source.input_shape, source.train_groups) == (10, (32, 32, 3), None)


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("folder", ["cifar10/cifar-10-batches-py", "cifar10"])
def test_cifar10_from_its_batches(tmp_path, folder, suffix):
    write(tmp_path / folder, files10(), suffix)
    assert_cifar10(cifar.load10(tmp_path))


def test_cifar10_from_the_archive_which_is_not_unpacked(tmp_path):
    members = {f"cifar-10-batches-py/{name}": data for name, data in files10().items()}
    write_archive(
        tmp_path / "cifar10" / "cifar-10-python.tar.gz", {**members, "cifar-10-batches-py/readme.html": b"hi"}
    )
    assert_cifar10(cifar.load10(tmp_path))
    assert [path.name for path in (tmp_path / "cifar10").iterdir()] == ["cifar-10-python.tar.gz"]


def test_pixel_planes_become_colours_of_a_pixel(tmp_path):
    """A red first pixel and a blue last one."""
    x = np.zeros((ROWS, 3, 32, 32), np.uint8)
    x[:, 0, 0, 0], x[:, 2, -1, -1] = 200, 100
    write(tmp_path / "cifar10", {**files10(), "data_batch_1": batch(x, labels=[0] * ROWS)})
    image = cifar.load10(tmp_path).train["x"][0]
    assert image[0, 0].tolist() == [200, 0, 0]
    assert image[31, 31].tolist() == [0, 0, 100]
    assert image.sum() == 300


@pytest.mark.parametrize("suffix", PACK)
def test_cifar100_has_both_kinds_of_labels(tmp_path, suffix):
    write(tmp_path / "cifar100" / "cifar-100-python", files100(), suffix)
    fine, coarse = cifar.load100(tmp_path), cifar.load100(tmp_path, labels="coarse")
    assert (fine.num_classes, coarse.num_classes) == (100, 20)
    np.testing.assert_array_equal(fine.train["y"], [99, 0, 50, 1])
    np.testing.assert_array_equal(fine.test["y"], [5, 6, 7])
    np.testing.assert_array_equal(coarse.train["y"], [19, 0, 10, 1])
    np.testing.assert_array_equal(coarse.test["y"], [2, 3, 4])
    for source in (fine, coarse):
        np.testing.assert_array_equal(source.train_coarse, [19, 0, 10, 1])
        np.testing.assert_array_equal(source.train["x"], pixels(1, ROWS).transpose(0, 2, 3, 1))


def test_cifar100_from_the_archive(tmp_path):
    members = {f"cifar-100-python/{name}": data for name, data in files100().items()}
    write_archive(tmp_path / "cifar100" / "cifar-100-python.tar.gz", {**members, "cifar-100-python/file.txt~": b""})
    np.testing.assert_array_equal(cifar.load100(tmp_path).train["y"], [99, 0, 50, 1])


def test_an_unknown_kind_of_labels(tmp_path):
    with pytest.raises(UsageError, match="labels: unknown name 'fin'; did you mean 'fine'"):
        cifar.load100(tmp_path, labels="fin")


def test_the_second_time_nothing_is_decoded(tmp_path, monkeypatch):
    write(tmp_path / "cifar10", files10())
    cifar.load10(tmp_path)
    monkeypatch.setattr(cifar, "read_pickle", lambda *args: pytest.fail("decoded again"))
    assert_cifar10(cifar.load10(tmp_path))


# --- broken files


def test_missing_files_come_with_every_remedy(tmp_path):
    with pytest.raises(DataError) as error:
        cifar.load10(tmp_path)
    assert_one_line(error, tmp_path / "data_batch_1", "cifar-10-python.tar.gz", "fetch cifar10", "--data-dir")


def test_one_missing_file_is_named(tmp_path):
    files = files10()
    del files["data_batch_4"]
    write(tmp_path / "cifar10", files)
    with pytest.raises(DataError) as error:
        cifar.load10(tmp_path)
    assert_one_line(error, tmp_path / "data_batch_4", "not found")


X = pixels(1, ROWS)
LABELS = listing(map(integer, [1, 2, 3, 4]))
BROKEN = {
    "nothing": (b"", "not a whole pickle"),
    "another kind of file": (b"\x89PNG" + bytes(99), "not a whole pickle"),
    "truncated": (batch(X, labels=[1, 2, 3, 4])[:-50], "not a whole pickle"),
    "a program": (b"cos\nsystem\nU\x02id\x85R.", "'os.system'"),
    "no images": (dictionary({"labels": LABELS}), "'data'"),
    "images that are a list": (dictionary({"data": LABELS, "labels": LABELS}), "'data'"),
    "too few images": (batch(X[1:], labels=[1, 2, 3]), "'data' is no array of 4"),
    "another size of images": (dictionary({"data": array((6, 2048), X.tobytes()), "labels": LABELS}), "'data'"),
    "no labels": (batch(X), "'labels'"),
    "the other data set": (batch(X, fine_labels=[1, 2, 3, 4]), "'labels'"),
    "too few labels": (batch(X, labels=[1, 2, 3]), "no list of 4 labels"),
    "a label out of range": (batch(X, labels=[1, 2, 10, 4]), "image 2 is 10; 0 to 9"),
    "a negative label": (batch(X, labels=[1, -1, 3, 4]), "image 1 is -1"),
    "a label that is text": (
        dictionary({"data": array((4, 3072), X.tobytes()), "labels": listing([text("1")] * 4)}),
        "a str",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_batches_are_refused_in_one_line(tmp_path, kind):
    data, word = BROKEN[kind]
    write(tmp_path / "cifar10", {**files10(), "data_batch_3": data})
    with pytest.raises(DataError) as error:
        cifar.load10(tmp_path)
    assert_one_line(error, tmp_path / "cifar10" / "data_batch_3", word)
    assert not any(path.is_dir() for path in (tmp_path / "cache").iterdir())


def test_a_broken_member_is_named_with_its_archive(tmp_path):
    members = {f"cifar-10-batches-py/{name}": data for name, data in {**files10(), "test_batch": b"?"}.items()}
    path = tmp_path / "cifar10" / "cifar-10-python.tar.gz"
    write_archive(path, members)
    with pytest.raises(DataError) as error:
        cifar.load10(tmp_path)
    assert_one_line(error, path, "cifar-10-batches-py/test_batch")


def test_an_archive_without_a_batch(tmp_path):
    path = tmp_path / "cifar10" / "cifar-10-python.tar.gz"
    write_archive(path, {"cifar-10-batches-py/test_batch": b"?"})
    with pytest.raises(DataError) as error:
        cifar.load10(tmp_path)
    assert_one_line(error, path, "lacks", "data_batch_1")


GOOD = files10()["data_batch_2"]
CONTAINERS = {
    "a truncated xz": (".xz", lzma.compress(GOOD)[:-20], "truncated"),
    "a damaged xz": (".xz", lzma.compress(GOOD)[:50] + b"~~~~" + lzma.compress(GOOD)[54:], "damaged"),
    "bytes after the xz": (".xz", lzma.compress(GOOD) + b"more", "left over"),
    "an xz bomb": (".xz", lzma.compress(bytes(2**22)), "holds more than"),
    "an xz that asks for memory": (
        ".xz",
        lzma.compress(GOOD, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**30}]),
        "damaged",
    ),
    "a truncated gzip": (".gz", gzip.compress(GOOD)[:-5], "truncated"),
    "a damaged gzip": (".gz", gzip.compress(GOOD)[:-8] + bytes(8), "damaged"),
    "bytes after the gzip": (".gz", gzip.compress(GOOD) + b"more", "left over"),
    "a gzip bomb": (".gz", gzip.compress(bytes(2**22)), "holds more than"),
    "a large plain file": ("", bytes(2**20), "at most"),
    "bzip2": (".xz", b"BZh91AY&SY" + bytes(50), "not a whole pickle"),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_broken_containers_are_refused_in_one_line(tmp_path, kind):
    suffix, data, word = CONTAINERS[kind]
    files = files10()
    del files["data_batch_2"]
    write(tmp_path / "cifar10", files)
    path = tmp_path / "cifar10" / f"data_batch_2{suffix}"
    path.write_bytes(data)
    with pytest.raises(DataError) as error:
        cifar.load10(tmp_path)
    assert_one_line(error, path, word)


# --- the real files


@pytest.mark.slow
def test_a_real_batch_is_what_python_itself_unpickles():
    """Against Python's own machine, on a file whose hash is the published one."""
    import pickle

    path = real_data("cifar10") / "cifar10" / "cifar-10-batches-py" / "test_batch.xz"
    data = lzma.decompress(path.read_bytes())
    assert hashlib.md5(data).hexdigest() == "40351d587109b95175f43aff81a1287e"
    ours = read_pickle(data, path.name)
    theirs = pickle.loads(data, encoding="latin1")
    np.testing.assert_array_equal(ours.pop("data"), theirs.pop("data"))
    assert ours == theirs


@pytest.mark.slow
def test_real_cifar10(monkeypatch):
    root = real_data("cifar10")
    monkeypatch.setattr(cifar, "_CIFAR10", cifar._CIFAR10._replace(rows=10_000, test_rows=10_000))
    source = cifar.load10(root)
    assert source.train["x"].shape == (50_000, 32, 32, 3)
    assert np.all(np.bincount(source.train["y"]) == 5000)
    assert np.all(np.bincount(source.test["y"]) == 1000)
    assert source.train["x"].mean() / cifar.SCALE == pytest.approx(0.4734, abs=1e-4)
    channels = source.train["x"].mean((0, 1, 2)) / cifar.SCALE  # the widely used means of red, green and blue
    np.testing.assert_allclose(channels, [0.4914, 0.4822, 0.4465], atol=1e-4)
