"""Files on disk: found plain or compressed, read whole, compared with their hashes; any damage is one line."""

import gzip
import hashlib
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedoptax.data.check import READ, check, file_row, has_files, is_complete
from fedoptax.data.custom import load_file
from fedoptax.data.datasets import emnist, mnist, shakespeare, wikitext
from fedoptax.data.datasets.source import Source
from fedoptax.data.files import read_file, require_file
from fedoptax.data.registry import DATA_SETS, DataSet, Download, File
from fedoptax.errors import DataError
from files import real_data, write, write_femnist, write_mnist, write_shakespeare, write_wikitext

DATA = b"some published bytes"
MD5 = f"md5:{hashlib.md5(DATA).hexdigest()}"


@pytest.mark.parametrize(("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_file_is_found_and_read_plain_or_compressed(tmp_path, suffix, compress):
    path = tmp_path / "mnist" / f"some.file{suffix}"
    path.parent.mkdir()
    path.write_bytes(compress(DATA))
    assert require_file(tmp_path, "mnist", "another.name", "some.file") == path
    assert read_file(path) == DATA
    if suffix:
        path.write_bytes(compress(DATA)[:-5])
        with pytest.raises(DataError, match=r"some\.file"):
            read_file(path)


@pytest.mark.parametrize(
    ("name", "content", "hash", "status"),
    [
        ("f", DATA, MD5, "ok"), ("f", DATA, f"sha256:{hashlib.sha256(DATA).hexdigest()}", "ok"),
        ("f.xz", lzma.compress(DATA), MD5, "ok"), ("f.xz", lzma.compress(DATA + b"!"), MD5, "differs"),
        ("f", DATA + b"!", MD5, "differs"), ("f", DATA, None, "unverified"), ("g", DATA, MD5, "missing"),
    ],
)  # fmt: skip
def test_a_file_is_compared_with_its_published_hash(tmp_path, name, content, hash, status):
    (tmp_path / name).write_bytes(content)
    assert file_row(tmp_path, File("f", hash)).status == status
    assert has_files(tmp_path, [File("f", hash)]) == (status in ("ok", "unverified"))


def test_a_complete_data_set(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    files = tuple(
        Download(path.name, (), f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}")
        for path in sorted((tmp_path / "mnist").iterdir())
    )
    monkeypatch.setitem(DATA_SETS, "mnist", DataSet(files, {"train_examples": 12, "test_examples": 6}))
    rows = check("mnist", tmp_path)
    assert is_complete(rows)
    assert [row.status for row in rows] == ["ok"] * 5
    assert (rows[-1].file, rows[-1].detail) == (READ, "12 train examples, 6 test examples, as published")
    monkeypatch.setitem(DATA_SETS, "mnist", DataSet(files, {"train_examples": 60_000, "test_examples": 6}))
    assert [row.status for row in check("mnist", tmp_path)] == ["ok"] * 4 + ["differs"]
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(DATA)[:-3])
    rows = check("mnist", tmp_path)
    assert not is_complete(rows)
    assert [row.status for row in rows] == ["ok", "ok", "ok", "differs", "broken"]


@pytest.mark.parametrize("name", DATA_SETS)
def test_a_missing_data_set_comes_with_a_remedy(tmp_path, name):
    (row,) = check(name, tmp_path)
    assert row.status == "missing" and ("fedoptax data fetch" in row.detail or "LEAF" in row.detail)
    assert not is_complete([row])
    (tmp_path / name).mkdir()
    rows = check(name, tmp_path)
    assert {row.status for row in rows[:-1]} <= {"missing"} and rows[-1].status == "broken"


LATER = [pytest.param(name, marks=pytest.mark.long) for name in ("qmnist", "fashion-mnist", "wikitext-2")]


@pytest.mark.parametrize("name", ["mnist", "shakespeare", *LATER])
def test_the_real_data_sets_are_complete(name):
    assert is_complete(check(name, real_data(name)))


def write_npz(path: Path) -> Path:
    np.savez_compressed(path, x=np.arange(12.0).reshape(6, 2), y=np.arange(6) % 2, client=np.arange(6) % 3)
    return path


def write_csv(path: Path) -> Path:
    return write(path, b"a,b,client,label\n" + b"".join(b"%d,%d,c%d,%d\n" % (i, i, i % 2, i % 3) for i in range(9)))


WRITER = {"a": (np.zeros((1, 784), np.uint8), [1])}
READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Source]]] = {  # the file that is damaged, its reader
    "mnist": (lambda root: write_mnist(root) / "mnist" / "train-labels-idx1-ubyte.gz", mnist.load),
    "wikitext-2": (
        lambda root: write_wikitext(root, "\n = One = \n \n a b c <unk> \n", "\n = Two = \n \n a <unk> c \n")
        / "wikitext-2" / "train.txt",
        lambda root: wikitext.load(root, length=2),
    ),
    "femnist": (lambda root: write_femnist(root, WRITER, WRITER) / "femnist" / "test" / "1.json", emnist.load_leaf),
    "shakespeare": (
        lambda root: write_shakespeare(root, {"A": [b"word", b"other"]}, {"A": [b"word"]})
        / "shakespeare" / "shakespeare_train.h5",
        shakespeare.load,
    ),
    "npz": (lambda root: write_npz(root / "a.npz"), lambda root: load_file(root / "a.npz", test_fraction=0.0)),
    "csv": (lambda root: write_csv(root / "a.csv"), lambda root: load_file(root / "a.csv", test_fraction=0.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(name, data, tmp_path_factory):
    root = tmp_path_factory.mktemp("damaged")
    make, load = READERS[name]
    path = make(root)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        source = load(root)
    except DataError as error:
        message = str(error)
    else:
        message = "" if len(source.train["x"]) == len(source.train["y"]) > 0 else "examples without labels"
    assert "\n" not in message and message != "examples without labels"
