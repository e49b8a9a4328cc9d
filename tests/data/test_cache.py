"""Arrays on disk are complete or absent, and decoded data are decoded once for each content of the files."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import fedoptax as fx
from fedoptax.data.cache import cached, open_arrays, write_arrays
from fedoptax.errors import DataError
from full_disks import largest_file
from refusals import refused


def test_a_folder_is_replaced_only_by_a_complete_one(tmp_path):
    write_arrays(tmp_path / "a", [("x", np.zeros(3))])
    before = open_arrays(tmp_path / "a")

    def fail():
        yield "x", np.ones(3)
        raise DataError("stopped")

    refused(lambda: write_arrays(tmp_path / "a", fail()), "stopped")
    assert open_arrays(tmp_path / "a")["x"][0] == 0
    write_arrays(tmp_path / "a", [("x", np.ones(1)), ("x", np.ones(3))])
    assert len(open_arrays(tmp_path / "a")["x"]) == 4 and before["x"][0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    with largest_file(10_000), pytest.raises(DataError, match=r"a' cannot be written"):
        write_arrays(tmp_path / "a", [("x", np.ones((100, 10)))] * 100)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_array_is_refused(tmp_path):
    arrays = {"x": np.ones((3, 1)), "names": np.array(["a", "bcd"]), "none": np.empty((0, 4), np.int32)}
    write_arrays(tmp_path / "a", arrays.items())
    assert all(np.array_equal(open_arrays(tmp_path / "a")[name], array) for name, array in arrays.items())
    os.truncate(tmp_path / "a" / "x.npy", 100)
    refused(lambda: open_arrays(tmp_path / "a"), "a' cannot be read")
    refused(lambda: open_arrays(tmp_path / "missing"), "missing")


class Source:
    """A file whose length is decoded, and how often."""

    def __init__(self, folder, data=b"abc"):
        self.path = folder / "source"
        self.path.write_bytes(data)
        self.decoded = 0

    def load(self, version=1):
        return cached("name", [self.path], version, self.decode)["n"]

    def decode(self):
        self.decoded += 1
        yield "n", np.array([len(self.path.read_bytes())])


def test_a_file_is_decoded_once_until_it_changes(tmp_path, cache):
    source = Source(tmp_path)
    assert [int(source.load()[0]) for _ in range(2)] == [3, 3] and source.decoded == 1
    source.path.write_bytes(b"abcd")
    assert source.load() == [4] and source.decoded == 2
    source.load(version=2)
    assert source.decoded == 3
    os.utime(source.path, (1, 1))
    source.load()
    assert source.decoded == 4
    for path in cache.glob("*/n.npy"):
        os.truncate(path, 20)
    assert source.load() == [4] and source.decoded == 5
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]


def test_threads_may_decode_at_once(tmp_path):
    source = Source(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: int(source.load()[0]), range(8))) == [3] * 8


def test_a_federation_on_disk_equals_the_one_in_memory(tmp_path):
    clients = [{"x": np.full((n, 2), n, np.float32), "y": np.arange(n)} for n in (2, 1, 3)]
    fx.FederatedData.write(tmp_path / "f", iter(clients))
    opened, given = fx.FederatedData.open(tmp_path / "f"), fx.FederatedData.from_clients(clients)
    np.testing.assert_array_equal(opened.offsets, given.offsets)
    for i in range(3):
        for name, array in given.client(i).items():
            np.testing.assert_array_equal(opened.client(i)[name], array)
    np.save(tmp_path / "f" / "mine.npy", 1)
    refused(lambda: fx.FederatedData.write(tmp_path / "f", clients), "choose another folder")
    (tmp_path / "f" / "offsets.npy").unlink()
    refused(lambda: fx.FederatedData.open(tmp_path / "f"), "not a federation")
