"""Archives are unpacked whole or not at all, and hostile ones are refused."""

import gzip
import os
from pathlib import Path

import pytest

from fedoptax.data import archives
from fedoptax.data.archives import read_members, unpack
from fedoptax.errors import DataError
from files import assert_one_line
from hostile_archives import FILES, GOOD, HOSTILE, LIMIT, member, tar_bytes, zip_bytes


@pytest.fixture
def archive(tmp_path):
    """Writes the bytes of an archive; its name says nothing."""

    def write(data):
        path = tmp_path / "archive"
        path.write_bytes(data)
        return path

    return write


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", GOOD)
def test_every_kind_of_archive_is_unpacked(tmp_path, archive, kind):
    unpack(archive(GOOD[kind]), tmp_path / "out", LIMIT)
    assert content(tmp_path / "out") == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "out"]


@pytest.mark.parametrize("kind", GOOD)
def test_every_kind_of_archive_is_read_in_place(tmp_path, archive, kind):
    path = archive(GOOD[kind])
    assert read_members(path, ["data/train", "readme"], LIMIT) == {
        name: FILES[name] for name in ("data/train", "readme")
    }
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_the_archive_lacks(archive):
    path = archive(GOOD["tar.gz"])
    with pytest.raises(DataError) as error:
        read_members(path, ["readme", "b", "a"], LIMIT)
    assert_one_line(error, path, "lacks a, b")


def test_many_files_up_to_the_limits(tmp_path, archive):
    data = tar_bytes([(member(f"{i}", 100), bytes(100)) for i in range(50)], gzip.compress)
    unpack(archive(data), tmp_path / "out", max_bytes=5000, max_members=50)
    assert len(content(tmp_path / "out")) == 50


# --- hostile archives


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_refused_and_leave_nothing(tmp_path, archive, kind):
    data, word = HOSTILE[kind]
    path = archive(data)
    with pytest.raises(DataError) as error:
        unpack(path, tmp_path / "out", max_bytes=LIMIT, max_members=100)
    assert_one_line(error, path, word)
    assert list(tmp_path.iterdir()) == [path]
    assert not Path("/tmp/owned").exists()


@pytest.mark.parametrize(
    "kind", ["a name above", "a symbolic link", "a gzip bomb", "a truncated gzip", "a damaged zip"]
)
def test_hostile_archives_are_not_read_in_place_either(archive, kind):
    path = archive(HOSTILE[kind][0])
    with pytest.raises(DataError) as error:
        read_members(path, ["good"], max_bytes=LIMIT, max_members=100)
    assert_one_line(error, path)


def test_two_files_of_one_name_in_a_zip(tmp_path, archive):
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = archive(zip_bytes([("a", b"1"), ("a", b"2")]))
    with pytest.raises(DataError, match="two files named 'a'"):
        unpack(path, tmp_path / "out", LIMIT)


def test_what_is_there_is_not_touched(tmp_path, archive):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    with pytest.raises(DataError, match="is there already"):
        unpack(archive(GOOD["zip"]), out, LIMIT)
    assert content(out) == {"mine": b"mine"}


def test_a_missing_archive(tmp_path):
    with pytest.raises(DataError) as error:
        unpack(tmp_path / "none.zip", tmp_path / "out", LIMIT)
    assert_one_line(error, tmp_path / "none.zip", "No such file")


def test_an_interrupt_leaves_nothing(tmp_path, archive, monkeypatch):
    def interrupt(name):
        raise KeyboardInterrupt

    path = archive(GOOD["tar.gz"])
    monkeypatch.setattr(archives, "_plain_path", interrupt)
    with pytest.raises(KeyboardInterrupt):
        unpack(path, tmp_path / "out", LIMIT)
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_nothing(tmp_path, archive, monkeypatch):
    def full(self, *args, **kwargs):
        raise OSError(28, os.strerror(28))

    path = archive(GOOD["tar.gz"])
    monkeypatch.setattr(archives.Path, "rename", full)
    with pytest.raises(DataError) as error:
        unpack(path, tmp_path / "out", LIMIT)
    assert_one_line(error, path, "No space left")
    assert list(tmp_path.iterdir()) == [path]
