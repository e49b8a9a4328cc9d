"""What `check` says of files that are right, packed, changed, missing or broken, and of what the reader counts."""

import gzip
import hashlib
import lzma

import numpy as np
import pytest

from fedoptax.data import check as checking
from fedoptax.data.cache import cached
from fedoptax.data.check import READ, Row, caches, check, is_whole
from fedoptax.data.registry import DATA_SETS, DataSet, Download, File
from fedoptax.data.sources import Source
from fedoptax.data.verify import record
from fedoptax.errors import DataError, UsageError
from files import real_data
from hostile_archives import tar_bytes

DATA = b"0123456789" * 50


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDOPTAX_CACHE", str(tmp_path / "cache"))


def digest(kind, data):
    return f"{kind}:{hashlib.new(kind, data).hexdigest()}"


def plain(name, kind="md5"):
    return Download(name, ("http://127.0.0.1:9/x",), digest(kind, DATA), len(DATA))


def packed(*files):
    return Download("all.tar", ("http://127.0.0.1:9/x",), digest("sha256", tar_bytes([])), files=files)


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Checks a data set `tiny` of these downloads, whose reader gives 30 + 10 examples."""
    numbers = {"train_examples": 30, "test_examples": 10}
    monkeypatch.setattr(checking, "_READERS", {"tiny": lambda data_dir: numbers})

    def look(*downloads, counts=numbers):
        (tmp_path / "tiny").mkdir(exist_ok=True)
        return check("tiny", tmp_path, {"tiny": DataSet(downloads, counts)})

    return look


def put(tmp_path, name, data):
    path = tmp_path / "tiny" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_right_file(tmp_path, look, kind):
    put(tmp_path, "a", DATA)
    rows = look(plain("a", kind))
    assert rows[0] == Row("a", "ok", f"{'MD5' if kind == 'md5' else 'SHA-256'} as published")
    assert rows[1] == Row(READ, "ok", "30 train examples, 10 test examples, as published")
    assert is_whole(rows)


def test_a_changed_file(tmp_path, look):
    put(tmp_path, "a", DATA[:-1])
    rows = look(plain("a"))
    assert rows[0][:2] == ("a", "differs")
    assert hashlib.md5(DATA).hexdigest() in rows[0].detail
    assert hashlib.md5(DATA[:-1]).hexdigest() in rows[0].detail
    assert not is_whole(rows)


def test_a_missing_file(look):
    assert look(plain("a"))[0] == Row("a", "missing", "")


@pytest.mark.parametrize(("suffix", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress)])
def test_a_packed_file_counts_by_its_content(tmp_path, look, suffix, pack):
    put(tmp_path, f"a{suffix}", pack(DATA))
    rows = look(plain("a"))
    assert rows[0] == Row("a", "ok", f"packed as a{suffix}; unpacked, its MD5 is as published")
    put(tmp_path, f"a{suffix}", pack(DATA + b"!"))
    assert look(plain("a"))[0].status == "differs"
    put(tmp_path, f"a{suffix}", pack(DATA)[:-3])
    assert look(plain("a"))[0].status == "broken"


def test_an_unpacked_file_whose_packed_form_is_published(tmp_path, look):
    put(tmp_path, "a", DATA)
    rows = look(plain("a.gz"))
    assert rows[0].status == "unverified"
    assert is_whole(rows)


def test_a_file_without_a_published_hash_counts_by_the_record(tmp_path, look):
    put(tmp_path, "deep/a", DATA)
    item = packed(File("deep/a"))
    assert look(item)[0] == Row("deep/a", "unverified", "no hash of it is published")
    record(tmp_path / "tiny", {"deep/a": hashlib.sha256(DATA).hexdigest()})
    assert look(item)[0] == Row("deep/a", "ok", "SHA-256 as in SHA256SUMS")
    put(tmp_path, "deep/a", DATA[1:])
    assert look(item)[0].status == "differs"


def test_the_record_may_lie_in_the_folder_of_all_data_sets(tmp_path, look):
    put(tmp_path, "a", DATA)
    line = f"{hashlib.sha256(DATA).hexdigest()}  tiny/a\n"
    (tmp_path / "SHA256SUMS").write_bytes(b"\xff nonsense\n" + line.encode())
    assert look(packed(File("a")))[0].status == "ok"


def test_an_archive_stands_for_its_files(tmp_path, look):
    put(tmp_path, "all.tar", tar_bytes([]))
    rows = look(packed(File("a"), File("b")))
    assert [row[:2] for row in rows] == [("all.tar", "ok"), ("a", "ok"), ("b", "ok"), (READ, "ok")]
    assert rows[1].detail == "in all.tar"
    put(tmp_path, "all.tar", b"another")
    rows = look(packed(File("a"), File("b")))
    assert [row.status for row in rows] == ["differs", "missing", "missing", "ok"]


def test_other_counts_than_published(tmp_path, look):
    put(tmp_path, "a", DATA)
    rows = look(plain("a"), counts={"train_examples": 30, "test_examples": 11})
    assert rows[-1] == Row(READ, "differs", "30 train examples, 10 test examples; 11 test examples were published")
    assert not is_whole(rows)


def test_counts_are_given_where_none_are_published(look):
    assert look(counts={})[-1].detail == "30 train examples, 10 test examples"


def test_a_reader_that_refuses(tmp_path, look, monkeypatch):
    def refuse(data_dir):
        raise DataError("a: broken")

    put(tmp_path, "a", DATA)
    monkeypatch.setattr(checking, "_READERS", {"tiny": refuse})
    rows = look(plain("a"))
    assert rows[-1] == Row(READ, "broken", "a: broken")
    assert not is_whole(rows)


@pytest.mark.parametrize(("name", "word"), [("mnist", "fedoptax data fetch mnist"), ("femnist", "preprocess.sh")])
def test_a_missing_folder_comes_with_the_remedy(tmp_path, name, word):
    (row,) = check(name, tmp_path)
    assert row[:2] == (f"{name}/", "missing")
    assert word in row.detail
    assert not is_whole([row])


def test_an_unknown_name(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'mnist'"):
        check("minst", tmp_path)


def test_clients_are_counted_and_what_the_source_counts_itself():
    y = np.zeros(4, np.int32)
    source = Source({"y": y}, {"y": y[:2]}, 10, (1,), train_groups=np.array([5, 5, 7, 9]), counts={"train_tokens": 99})
    expected = {"train_examples": 4, "test_examples": 2, "train_clients": 3, "train_tokens": 99}
    assert checking._counts(source) == expected


def test_of_stack_overflow_only_the_users_are_counted(tmp_path):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "stackoverflow").mkdir()
    for part, users in (("train", "abc"), ("test", "ab")):
        with h5py.File(tmp_path / "stackoverflow" / f"stackoverflow_{part}.h5", "w") as file:
            for user in users:
                file[f"examples/{user}/tokens"] = [b"hello world"]
    row = check("stackoverflow", tmp_path)[-1]
    assert row[:2] == (READ, "differs")
    assert row.detail.startswith("3 train clients, 2 test clients; 342,477 train clients")


def test_the_size_of_the_caches(tmp_path):
    assert caches()[:2] == (str(tmp_path / "cache"), "missing")
    cached("tiny", [], 1, lambda writer: writer.append("x", np.zeros(1_000_000, np.uint8)))
    row = caches()
    assert row.status == "ok"
    assert row.detail.startswith("1.0 MB of decoded copies; may be deleted")


def test_every_data_set_has_a_reader():
    assert checking._READERS.keys() == DATA_SETS.keys()


@pytest.mark.parametrize("name", [name for name in DATA_SETS if name not in ("cifar10", "femnist")])
def test_the_real_files_are_as_published(name):
    rows = check(name, real_data(name))
    assert is_whole(rows), rows
    assert all(row.status == "ok" for row in rows), rows


@pytest.mark.long
@pytest.mark.parametrize("name", ["cifar10", "femnist"])
def test_the_real_files_are_as_published_slow(name):
    assert is_whole(check(name, real_data(name)))
