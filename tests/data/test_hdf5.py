"""The reader of TensorFlow Federated's HDF5 files: what it reads, and what it refuses to follow or to unpack."""

import h5py
import numpy as np
import pytest

from fedoptax.data.sources.hdf5 import ClientFile
from fedoptax.errors import DataError
from files import assert_one_line, write, write_tff

TEXT = [b"to be", b"", b"or not \xff"]
CLIENTS = {
    "b": {"text": TEXT, "label": np.array([3, 1, 2], np.int32), "pixels": np.ones((3, 2, 2), np.float32)},
    "a": {"text": [b"x"], "label": np.array([7], np.int32), "pixels": np.zeros((1, 2, 2), np.float32)},
}


def read_text(path):
    with ClientFile(path) as file:
        return [file.text(name, "text") for name in file.names]


@pytest.mark.parametrize(
    "storage", [{}, {"compression": "gzip", "shuffle": True, "fletcher32": True}, {"chunks": True}], ids=str
)
def test_clients_come_sorted_with_their_fields(tmp_path, storage):
    path = write_tff(tmp_path / "a.h5", CLIENTS, **storage)
    with ClientFile(path) as file:
        assert file.names == ["a", "b"]
        assert file.rows("b", "label") == 3
        assert file.text("b", "text") == TEXT
        assert file.text("b", "text", limit=2) == TEXT[:2]
        np.testing.assert_array_equal(file.numbers("b", "label", "iu"), [3, 1, 2])
        pixels = file.numbers("b", "pixels", "f", (2, 2))
        assert pixels.dtype == np.float32 and pixels.shape == (3, 2, 2) and np.all(pixels == 1)


@pytest.mark.parametrize("chunked", [{}, {"chunks": (7,), "compression": "gzip"}], ids=str)
def test_strings_of_variable_length_are_the_same_as_of_one_length(tmp_path, chunked):
    """More of them than are read at once."""
    text = [b"word " * (i % 5) for i in range(600)]
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("examples/a/text", data=text, dtype=h5py.string_dtype(), **chunked)
    with ClientFile(path) as file:
        assert file.text("a", "text") == text
        assert file.text("a", "text", limit=300) == text[:300]


def test_a_client_without_examples_has_none(tmp_path):
    path = write_tff(tmp_path / "a.h5", {"a": {"text": np.empty(0, "S3"), "label": np.empty(0, np.int32)}})
    with ClientFile(path) as file:
        assert file.rows("a", "text") == 0
        assert file.text("a", "text") == []
        assert file.numbers("a", "label", "i").shape == (0,)


def test_the_file_is_closed_behind_the_with(tmp_path):
    path = write_tff(tmp_path / "a.h5", CLIENTS)
    with ClientFile(path) as file:
        pass
    with pytest.raises(DataError, match=r"a\.h5"):
        file.text("a", "text")


# --- files that are none, or lead elsewhere


def no_examples(path):
    with h5py.File(path, "w") as file:
        file["other"] = 1


def soft_examples(path):
    with h5py.File(path, "w") as file:
        file["there/a/text"] = TEXT
        file["examples"] = h5py.SoftLink("/there")


def external_examples(path):
    write_tff(path.with_name("b.h5"), CLIENTS)
    with h5py.File(path, "w") as file:
        file["examples"] = h5py.ExternalLink("b.h5", "/examples")


def external_client(path):
    write_tff(path.with_name("b.h5"), CLIENTS)
    with h5py.File(path, "w") as file:
        file["examples/a/text"] = TEXT
        file["examples/b"] = h5py.ExternalLink("b.h5", "/examples/b")


def soft_client(path):
    with h5py.File(path, "w") as file:
        file["examples/a/text"] = TEXT
        file["examples/b"] = h5py.SoftLink("/examples/a")


def strange_name(path):
    with h5py.File(path, "w") as file:
        file.create_group("examples").create_group(b"\xff\xfe")


def long_name(path):
    with h5py.File(path, "w") as file:
        file.create_group("examples/" + 1000 * "a")


def truncated(path):
    write_tff(path, CLIENTS)
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda path: None, "not a file"),
        (lambda path: path.mkdir(), "not a file"),
        (lambda path: write(path, b""), "signature"),
        (lambda path: write(path, b"no HDF5 file" * 99), "signature"),
        (truncated, "truncated"),
        (no_examples, "examples"),
        (soft_examples, "elsewhere"),
        (external_examples, "elsewhere"),
        (external_client, "elsewhere"),
        (soft_client, "elsewhere"),
        (strange_name, "decode"),
        (long_name, "longer name"),
    ],
)
def test_what_is_not_of_the_layout_is_refused_when_opened(tmp_path, make, word):
    path = tmp_path / "a.h5"
    make(path)
    with pytest.raises(DataError) as error:
        ClientFile(path)
    assert_one_line(error, path, word)


# --- fields


def create(**arguments):
    def make(group, folder):
        group.create_dataset("text", **arguments)

    return make


def external_storage(group, folder):
    (folder / "secret").write_bytes(b"secret" * 10)
    group.create_dataset("text", (6,), "S10", external=[(str(folder / "secret"), 0, 60)])


def virtual(group, folder):
    write_tff(folder / "b.h5", CLIENTS)
    layout = h5py.VirtualLayout((3,), "S10")
    layout[:] = h5py.VirtualSource(folder / "b.h5", "examples/b/text", (3,))
    group.create_virtual_dataset("text", layout)


def external_link(group, folder):
    write_tff(folder / "b.h5", CLIENTS)
    group["text"] = h5py.ExternalLink(str(folder / "b.h5"), "/examples/b/text")


def soft_link(group, folder):
    group["other"] = TEXT
    group["text"] = h5py.SoftLink("other")


BROKEN = {
    "missing": (lambda group, folder: None, "missing"),
    "a group": (lambda group, folder: group.create_group("text"), ""),
    "a soft link": (soft_link, "elsewhere"),
    "an external link": (external_link, "elsewhere"),
    "a virtual array": (virtual, "outside"),
    "bytes of another file": (external_storage, "outside"),
    "a filter that is not HDF5's": (create(data=TEXT, compression="lzf"), "filters"),
    "no dimension": (create(data=b"x"), "dimension"),
    "two dimensions": (create(data=np.array([[b"x", b"y"]])), "one string an example"),
    "numbers": (create(data=[1, 2]), "one string an example"),
    "compounds": (create(data=np.zeros(2, "i4,f4")), "one string an example"),
    "references": (create(shape=(2,), dtype=h5py.ref_dtype), "one string an example"),
    "lists": (create(shape=(2,), dtype=h5py.vlen_dtype(np.int32)), "one string an example"),
    "2^60 strings that are not there": (create(shape=(2**60,), dtype="S1", chunks=(2**10,)), "declares"),
    "2^60 strings of any length": (create(shape=(2**60,), dtype=h5py.string_dtype(), chunks=(2**10,)), "declares"),
    "2^30 strings that are not there": (create(shape=(2**30,), dtype="S100", chunks=(2**10,)), "declares"),
    "a chunk of a gigabyte": (create(shape=(2,), maxshape=(None,), dtype="S1024", chunks=(2**20,)), "chunks"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_field_of_strings_is_refused_in_one_line(tmp_path, kind):
    make, word = BROKEN[kind]
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        make(file.create_group("examples/a"), tmp_path)
    with ClientFile(path) as file, pytest.raises(DataError) as error:
        file.text("a", "text")
    assert_one_line(error, path, "client 'a'", "field 'text'", word)


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (np.zeros((3, 2, 3), np.float32), "3 × 2 × 3; n × 2 × 2"),
        (np.zeros(3, np.float32), "array of 3;"),
        (np.zeros((3, 2, 2), np.int64), "int64; floating-point numbers"),
        (np.zeros((3, 2, 2), np.longdouble), "expected"),
        (np.zeros((3, 2, 2), "S4"), "expected"),
    ],
)
def test_numbers_of_another_shape_or_type_are_refused(tmp_path, array, word):
    path = write_tff(tmp_path / "a.h5", {"a": {"pixels": array}})
    with ClientFile(path) as file, pytest.raises(DataError) as error:
        file.numbers("a", "pixels", "f", (2, 2))
    assert_one_line(error, path, "'pixels'", word)


def test_a_huge_number_of_rows_is_refused_before_it_is_added_up(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("examples/a/text", (2**62,), "S1", chunks=(2**10,))
    with ClientFile(path) as file, pytest.raises(DataError, match="declares"):
        file.rows("a", "text")


def test_many_clients_may_not_share_one_well_packed_array(tmp_path):
    """A few kilobytes that would unpack to 128 MiB, client after client."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("examples/0/text", data=np.zeros(2**20, "S1"), chunks=(2**20,), compression="gzip")
        for i in range(1, 2**7):
            file[f"examples/{i}"] = file["examples/0"]
    with pytest.raises(DataError, match="a file of this size"):
        read_text(path)


def test_strings_may_not_share_their_bytes(tmp_path):
    """Every reference of variable length leads to the same long string."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("examples/a/text", data=[b"y" * 2**15] + [b"x"] * 8191, dtype=h5py.string_dtype())
        start, size = data.id.get_offset(), data.id.get_storage_size()
        for i in range(8):
            file[f"examples/{i}"] = file["examples/a"]
    content = bytearray(path.read_bytes())
    content[start : start + size] = content[start : start + 16] * 8192
    path.write_bytes(content)
    with pytest.raises(DataError, match="a file of this size"):
        read_text(path)


def test_damage_anywhere_ends_in_one_line_or_in_data(tmp_path):
    path = write_tff(tmp_path / "a.h5", {"a": {"text": TEXT}}, compression="gzip")
    good, rng, messages = path.read_bytes(), np.random.default_rng(0), []
    for _ in range(200):
        damaged = bytearray(good)
        damaged[rng.integers(len(good))] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            read_text(path)
        except DataError as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert all("\n" not in message and "a.h5" in message for message in messages)
