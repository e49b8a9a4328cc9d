"""Stores of arrays: as they were, whole or not at all, and damage is noticed."""

import errno
import os
import threading

import numpy as np
import pytest

from damaged_stores import DAMAGE, META, X, change
from fedoptax.data import store as storing
from fedoptax.data.store import open_store, write_arrays, write_store
from fedoptax.errors import DataError

ARRAYS = {"x": np.arange(24, dtype=np.uint8).reshape(4, 3, 2), "y": np.array([1, -2, 3], np.int32)}


@pytest.fixture
def store(tmp_path):
    write_arrays(tmp_path / "store", ARRAYS)
    return tmp_path / "store"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- writing and reading


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "float64", "bool", "U5", "S3", "int64"])
def test_arrays_come_back_as_they_were(tmp_path, dtype):
    array = np.arange(6).reshape(3, 2).astype(dtype)
    write_arrays(tmp_path / "store", {"a": array, "empty": array[:0]})
    read = open_store(tmp_path / "store")
    np.testing.assert_array_equal(read["a"], array)
    assert (read["a"].dtype, read["empty"].dtype, read["empty"].shape) == (array.dtype, array.dtype, (0, 2))


def test_arrays_are_mapped_and_read_only(store):
    x = open_store(store)["x"]
    assert isinstance(x, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1


def test_rows_are_added_in_turn(tmp_path):
    def fill(writer):
        for i in range(1000):
            writer.append("a", np.full((i % 3, 2), i, np.int64))
            writer.append("b", np.array([i], np.uint16))

    write_store(tmp_path / "store", fill)
    read = open_store(tmp_path / "store")
    np.testing.assert_array_equal(read["a"][:, 0], np.repeat(np.arange(1000), np.arange(1000) % 3))
    np.testing.assert_array_equal(read["b"], np.arange(1000))


def test_rows_in_any_order_of_memory(tmp_path):
    array = np.arange(24).reshape(4, 6)
    write_arrays(tmp_path / "store", {"a": np.asfortranarray(array), "b": array[::2, ::-3]})
    read = open_store(tmp_path / "store")
    np.testing.assert_array_equal(read["a"], array)
    np.testing.assert_array_equal(read["b"], array[::2, ::-3])


@pytest.mark.parametrize("rows", [np.zeros((1, 3), np.uint8), np.zeros((1, 2), np.int8), np.zeros(1, np.uint8)])
def test_rows_of_another_form_are_refused_and_nothing_is_kept(tmp_path, rows):
    def fill(writer):
        writer.append("a", np.zeros((1, 2), np.uint8))
        writer.append("a", rows)

    with pytest.raises(DataError, match=r"a: rows of .* given after rows of uint8\[2\]"):
        write_store(tmp_path / "store", fill)
    assert names(tmp_path) == []


def test_objects_are_refused(tmp_path):
    with pytest.raises(DataError, match="a: objects given"):
        write_arrays(tmp_path / "store", {"a": np.array([None])})
    assert names(tmp_path) == []


# --- whole or not at all


@pytest.mark.parametrize("error", [KeyboardInterrupt, DataError, ZeroDivisionError])
def test_a_store_that_fails_leaves_the_old_one(store, error):
    def fill(writer):
        writer.append("x", np.zeros(3))
        raise error

    with pytest.raises(error):
        write_store(store, fill)
    np.testing.assert_array_equal(open_store(store)["x"], ARRAYS["x"])
    assert names(store.parent) == ["store"]


def test_a_full_disk_is_one_line_and_leaves_the_old_store(store, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storing.os, "fsync", full)
    with pytest.raises(DataError) as error:
        write_arrays(store, {"z": np.zeros(3)})
    assert str(error.value) == f"'{store}' cannot be written: No space left on device"
    assert list(open_store(store)) == ["x", "y"]
    assert names(store.parent) == ["store"]


def test_a_disk_that_fills_up_while_rows_are_written(tmp_path):
    def fill(writer):
        writer.append("a", np.zeros(3))
        writer._files["a"] = Full()
        writer.append("a", np.zeros(3))

    with pytest.raises(DataError, match="cannot be written: No space left on device"):
        write_store(tmp_path / "store", fill)
    assert names(tmp_path) == []


class Full:
    def write(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_place_that_is_a_file(tmp_path):
    (tmp_path / "store").write_text("mine")
    with pytest.raises(DataError, match="cannot be written"):
        write_arrays(tmp_path / "store", ARRAYS)
    assert names(tmp_path) == ["store"]
    assert (tmp_path / "store").read_text() == "mine"


def test_a_new_store_replaces_the_old_one_whose_readers_keep_it(store):
    old = open_store(store)
    write_arrays(store, {"x": np.zeros(2)})
    assert open_store(store)["x"].shape == (2,)
    np.testing.assert_array_equal(old["x"], ARRAYS["x"])
    assert names(store.parent) == ["store"]


def test_a_whole_store_may_be_kept_a_damaged_one_gives_way(store):
    write_store(store, lambda writer: writer.append("z", np.zeros(1)), replace=False)
    assert list(open_store(store)) == ["x", "y"]
    (store / "x.npy").unlink()
    write_store(store, lambda writer: writer.append("z", np.zeros(1)), replace=False)
    assert list(open_store(store)) == ["z"]


def test_readers_see_all_of_a_store_or_none_while_others_write(store):
    """Eight writers replace it, each in its turn; two readers read: never a mixture."""
    stop = threading.Event()
    errors = []

    def write(value):
        try:
            for _ in range(15):
                write_arrays(store, {name: np.full(50, value) for name in ("x", "y")})
        except DataError as error:
            errors.append(error)

    def read():
        while not stop.is_set():
            try:
                arrays = open_store(store)
            except DataError as error:  # between two renames there is none
                if "is missing" not in str(error):
                    errors.append(error)
                continue
            if len(arrays["x"]) == 50 and arrays["x"][0] != arrays["y"][0]:
                errors.append("mixed")

    writers = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in writers + readers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert not errors
    assert names(store.parent) == ["store"]


# --- damage and hostility


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_noticed_in_one_line(store, kind):
    name, edit = DAMAGE[kind]
    change(store / name, edit)
    with pytest.raises(DataError) as error:
        open_store(store)
    assert "\n" not in str(error.value)
    assert str(store) in str(error.value)


@pytest.mark.parametrize("name", [META, X])
def test_a_missing_file_is_named(store, name):
    (store / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        open_store(store)


@pytest.mark.parametrize("name", [META, X])
def test_a_folder_instead_of_a_file(store, name):
    (store / name).unlink()
    (store / name).mkdir()
    with pytest.raises(DataError, match="is damaged"):
        open_store(store)
