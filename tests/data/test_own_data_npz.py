"""NumPy archives of one's own: what they may hold, and hostile ones."""

import io
import zipfile

import numpy as np
import pytest

from fedoptax.data.own import npz
from fedoptax.errors import DataError
from own_files import Part, vectors, write_npz


def assert_refused(path, *words, **options):
    with pytest.raises(DataError) as error:
        npz.load(path, **options)
    message = str(error.value)
    assert "\n" not in message
    for word in (path.name, *words):
        assert word in message


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def archive(path, compression=zipfile.ZIP_DEFLATED, **members):
    """A good archive but for `members`: bytes by the name of an array, None for one to leave out."""
    whole = {name: npy(value) for name, value in vectors()._asdict().items()} | members
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in whole.items():
            if data is not None:
                file.writestr(f"{name}.npy", data)
    return path


def test_names_of_the_arrays_can_be_given(tmp_path):
    train = vectors()
    np.savez(tmp_path / "a.npz", images=train.x, digit=train.y, writer=train.client, writer_test=train.client)
    np.savez(tmp_path / "b.npz", images=train.x, digit=train.y, writer=train.client)
    source = npz.load(tmp_path / "b.npz", x="images", y="digit", client="writer")
    np.testing.assert_array_equal(source.train_groups, train.client)
    assert npz.load(tmp_path / "b.npz", x="images", y="digit").train_groups is None
    assert_refused(tmp_path / "a.npz", "'images_test'", x="images", y="digit", client="writer")
    assert_refused(tmp_path / "b.npz", "'x'", "'images', 'digit', 'writer'")


def test_without_a_test_part_there_are_no_test_examples(tmp_path):
    source = npz.load(write_npz(tmp_path / "a.npz", vectors(n=9)))
    assert source.test["x"].shape == (0, 3) and source.test["y"].dtype == np.int32
    assert source.test_groups.shape == (0,) and source.test_groups.dtype == source.train_groups.dtype


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("float64", "float32"),
        ("float16", "float16"),
        (">f4", "float32"),
        ("int64", "int32"),
        ("uint8", "uint8"),
        ("bool", "uint8"),
    ],
)
def test_types_of_x(tmp_path, given, kept):
    x = np.arange(12).reshape(4, 3).astype(given)
    np.savez(tmp_path / "a.npz", x=np.asfortranarray(x), y=[0, 1, 0, 1])
    source = npz.load(tmp_path / "a.npz")
    assert source.train["x"].dtype == np.dtype(kept)
    assert source.train["x"].flags.c_contiguous
    np.testing.assert_array_equal(source.train["x"], x)


def test_one_number_an_example_is_one_feature(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3.0), y=[False, True, True])
    source = npz.load(tmp_path / "a.npz")
    assert source.input_shape == (1,)
    np.testing.assert_array_equal(source.train["y"], [0, 1, 1])


GOOD = vectors(n=4)
WRONG = {
    "fewer labels": ({"y": ["a", "b"]}, ["2 labels for the 4 training examples"]),
    "fewer clients": ({"client": ["a"]}, ["1 clients for the 4"]),
    "labels with a fraction": ({"y": [0.0, 1.0, 2.0, 3.5]}, ["'y'", "float64", "whole number or text"]),
    "labels of two dimensions": ({"y": np.eye(4, dtype=int)}, ["'y'", "int64[4]"]),
    "an empty name": ({"client": ["a", "", "b", "c"]}, ["'client', row 2", "missing"]),
    "a long name": ({"client": ["a", "b" * 201, "b", "c"]}, ["row 2", "201 characters"]),
    "bytes that are no text": ({"y": np.array([b"\xff", b"a", b"b", b"c"])}, ["'y'", "UTF-8"]),
    "NaN": ({"x": np.where(np.eye(4) > 0, np.nan, 1.0)}, ["'x', row 1", "NaN"]),
    "beyond float32": ({"x": np.array([1.0, 2.0, 1e300, 4.0])}, ["'x', row 3"]),
    "beyond int32": ({"x": np.array([1, 2, 2**31, 4])}, ["'x'", "2147483648"]),
    "complex numbers": ({"x": np.ones(4, complex)}, ["'x'", "complex128"]),
    "text": ({"x": np.array(list("abcd"))}, ["'x'", "<U1"]),
    "no features": ({"x": np.ones((4, 0))}, ["'x'", "(4, 0)"]),
    "no examples": (vectors(n=0)._asdict(), ["no training examples"]),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arrays_are_named(tmp_path, kind):
    arrays, words = WRONG[kind]
    np.savez(tmp_path / "a.npz", **(GOOD._asdict() | arrays))
    assert_refused(tmp_path / "a.npz", *words)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ({"x_test": np.ones((2, 3), np.float32)}, ["'y_test'"]),
        ({"x_test": np.ones((2, 3), np.float32), "y_test": ["a", "a"]}, ["'client_test'"]),
        ({"x_test": np.ones((2, 5), np.float32), "y_test": ["a", "a"], "client_test": [1, 1]}, ["float32[5]"]),
        ({"x_test": np.ones((2, 3), np.uint8), "y_test": ["a", "a"], "client_test": [1, 1]}, ["uint8[3]"]),
    ],
)
def test_test_arrays_that_do_not_fit(tmp_path, test, words):
    np.savez(tmp_path / "a.npz", **(GOOD._asdict() | test))
    assert_refused(tmp_path / "a.npz", *words)


def test_pickled_objects_are_not_read(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    np.savez(tmp_path / "a.npz", x=GOOD.x, y=np.array([Trap()] * 4, object), client=GOOD.client)
    assert_refused(tmp_path / "a.npz", "'y'", "object")


def header(shape, dtype="<f4"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


HOSTILE = {
    "declares more than is there": (header((10**6, 10**6)) + bytes(64), "declares"),
    "declares less than is there": (header((2, 2)) + bytes(64), "declares"),
    "overflows": (header((2**62, 2**62)) + bytes(64), "declares"),
    "a negative size": (header((-4, -4)) + bytes(63), "declares"),
    "a wide type": (header((4,), "<U200000000") + bytes(64), "declares"),
    "records": (header((4,), [("a", "<f4")]) + bytes(16), "numbers or text"),
    "no array": (b"\x89PNG" + bytes(99), "magic"),
    "cut": (npy(GOOD.x)[:40], "EOF"),
    "empty": (b"", "EOF"),
    "a header of code": (b"\x93NUMPY\x01\x00\x10\x00__import__('os')", "malformed"),
    "another version": (b"\x93NUMPY\x09\x00" + bytes(99), "(1, 0) or (2, 0)"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_members_are_refused_in_one_line(tmp_path, kind):
    data, word = HOSTILE[kind]
    assert_refused(archive(tmp_path / "a.npz", x=data), word)


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    """64 MiB of zeros in 64 KiB: within what the file declares, beyond what is allowed."""
    path = archive(tmp_path / "a.npz", x=header((2**24,)) + bytes(2**26))
    assert path.stat().st_size < 2**17
    assert_refused(path, "at most 1048576 (max_bytes)", max_bytes=2**20)


def test_a_member_that_lies_about_its_size(tmp_path):
    """The zip directory and the array declare 4 GiB, which the stored bytes cannot hold."""
    path = archive(tmp_path / "a.npz", x=header((2**28,)) + bytes(1024))
    data, small = path.read_bytes(), (len(header((1,))) + 1024).to_bytes(4, "little")
    assert data.count(small) >= 2
    path.write_bytes(data.replace(small, (len(header((1,))) + 2**30).to_bytes(4, "little")))
    assert_refused(path, "declares")


def test_a_damaged_archive(tmp_path):
    path = archive(tmp_path / "a.npz", zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[data.index(vectors().x.tobytes())] ^= 0xFF
    path.write_bytes(data)
    assert_refused(path, "CRC")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(tmp_path, method):
    assert_refused(archive(tmp_path / "a.npz", method), "method")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"no archive", npy(GOOD.x)])
def test_what_is_no_archive(tmp_path, data):
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    assert_refused(path, "cannot be read as a NumPy archive")


def test_what_is_not_a_file(tmp_path):
    assert_refused(tmp_path / "a.npz", "not a file")
    assert_refused(archive(tmp_path / "b.npz", x=None), "lacks the array 'x'", "'y', 'client'")


def test_a_single_client_and_class(tmp_path):
    one = Part(np.ones((2, 3)), np.array([5, 5]), np.array([9, 9]))
    source = npz.load(write_npz(tmp_path / "a.npz", one))
    assert source.num_classes == 1
    np.testing.assert_array_equal(source.train_groups, [9, 9])
