"""Every reader of foreign bytes on hostile ones, for a moment, in a process that may grow by a gigabyte.

`benchmarks/fuzz.py` does the same for long. What it found is below, each with the few bytes that it takes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import sys
import time
from pathlib import Path

import h5py
import pytest

from files import assert_one_line
from fuzzing.drive import watch

CASES = int(os.environ.get("FEDOPTAX_FUZZ_CASES", "30"))
SLOW = ("report-figures",)  # by design: it draws; the driver runs it


@pytest.mark.parametrize("module", ["data_targets", "own_targets", "deploy_targets"])
def test_hostile_bytes_are_read_or_refused(tmp_path: Path, module: str) -> None:
    from importlib import import_module

    names = [name for name in import_module(f"fuzzing.{module}").TARGETS if name not in SLOW]
    cases = CASES if module in ("data_targets", "own_targets", "deploy_targets") else CASES // 5
    command = [sys.executable, "-m", "fuzzing.worker", ",".join(names), str(tmp_path), "--cases", str(cases)]
    died, told = watch(command, tmp_path, patience=30)
    assert not died
    results = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert len(results) == len(names)
    for result in results:
        assert result["findings"] == {}
        assert result["cases"] == cases
        assert result["grown"] < 2**30


# --- what was found, each of which hung, filled memory or ended in another way than it should


def with_heap(text: list[bytes]) -> bytes:
    """An HDF5 file of strings of variable length."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset("examples/a/text", data=text, dtype=h5py.string_dtype())
    return buffer.getvalue()


def read_heap(path: Path) -> list[bytes]:
    from fedoptax.data.sources.hdf5 import ClientFile

    with ClientFile(path) as file:
        return file.text("a", "text")


def objects(data: bytes) -> tuple[int, int]:
    """The places of the first object of the heap and of its free space."""
    start = data.index(b"GCOL") + 16
    place = start
    while (number := struct.unpack_from("<H", data, place)[0]) != 0:
        place += 16 + -(-struct.unpack_from("<Q", data, place + 8)[0] // 8) * 8
    assert number == 0
    return start, place


def test_a_heap_that_would_keep_hdf5_walking_for_ever_is_refused(tmp_path: Path) -> None:
    from fedoptax.errors import DataError

    sound = with_heap([b"To be, or not to be", b"that"])
    path = tmp_path / "a.h5"
    path.write_bytes(sound)
    assert read_heap(path) == [b"To be, or not to be", b"that"]
    first, free = objects(sound)
    for place, size in ((free, 0), (free, 2**63), (first, 2**64 - 16), (first, 2**64 - 1), (first, 2**40)):
        data = bytearray(sound)
        struct.pack_into("<Q", data, place + 8, size)
        path.write_bytes(data)
        with pytest.raises(DataError) as error:
            read_heap(path)
        assert_one_line(error, path, "damaged heap", f"byte {place}", str(size))


def test_heaps_in_each_other_are_refused_and_words_are_no_heaps(tmp_path: Path) -> None:
    from fedoptax.data.sources.hdf5_heaps import check_heaps
    from fedoptax.errors import DataError

    inner = b"GCOL\x01\0\0\0" + struct.pack("<Q", 4096)
    path = tmp_path / "a.h5"
    path.write_bytes(with_heap([b"y" * 16 + b"x" * 8000]).replace(b"y" * 16, inner))
    with pytest.raises(DataError, match="inside another"):
        read_heap(path)
    path.write_bytes(with_heap([b"GCOL", b"GCOL\x01", b"GCOL\x01" + b"a" * 20]))
    assert read_heap(path)[0] == b"GCOL"
    path.write_bytes(b"\0" * (2**26 - 3) + b"GCOL\x01\0\0\0" + struct.pack("<Q", 4096) + bytes(4096))  # on the edge
    with pytest.raises(ValueError, match=f"byte {2**26 + 13}"):
        check_heaps(path)


def test_a_key_or_column_that_comes_twice_among_many_is_found_at_once(tmp_path: Path) -> None:
    from fedoptax.data.own import table
    from fedoptax.data.sources.strict_json import parse_json
    from fedoptax.errors import DataError

    start = time.process_time()
    with pytest.raises(DataError, match="'9' is there twice"):
        parse_json(Path("a.json"), b"{" + b",".join(b'"%d":0' % i for i in range(60_000)) + b',"9":1}')
    path = tmp_path / "a.csv"
    path.write_text(",".join(map(str, range(60_000))) + ",9,label\n")
    with pytest.raises(DataError, match="two columns named '9'"):
        table.load(path)
    assert time.process_time() - start < 5  # it took minutes


@pytest.mark.parametrize(
    "header", [b"(((((((", b"{'descr': '<f4', 'fortran_order'", b"'" + b"a" * 50, b"\xff", b"9" * 50]
)
def test_numpy_headers_that_are_no_python_are_refused(tmp_path: Path, header: bytes) -> None:
    import zipfile

    from fedoptax.data.own import npz
    from fedoptax.errors import DataError

    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
        archive.writestr("y.npy", b"")
    with pytest.raises(DataError) as error:
        npz.load(path)
    assert_one_line(error, path, "'x'", "header")


@pytest.mark.parametrize("cell", ["9" * 400, "-" + "9" * 400])
def test_whole_numbers_beyond_floating_point_are_named(tmp_path: Path, cell: str) -> None:
    from fedoptax.data.own import table
    from fedoptax.errors import DataError

    path = tmp_path / "a.csv"
    path.write_text(f"f,label\n1,a\n{cell},b\n")
    with pytest.raises(DataError) as error:
        table.load(path)
    assert_one_line(error, path, "column 'f', row 2", "within float32")


def test_errors_stay_short_and_printable_whatever_they_quote() -> None:
    from fedoptax.errors import LONGEST, DataError, RunError, UsageError, brief

    for kind in (UsageError, RunError, DataError):
        message = str(kind("file.json: user '" + "\x1b[2J\u202e\n" * 10**6 + "' has no x"))
        assert len(message) == LONGEST and message.isprintable()
        assert message.startswith("file.json: user '") and message.endswith("' has no x")
    assert brief("a\tb\u2028c\x07") == "a b c?"
    assert brief("é 联邦 ✓") == "é 联邦 ✓"


def test_tags_that_are_no_text_are_refused(tmp_path: Path) -> None:
    from fedoptax.data.sources.stackoverflow_text import read_tags
    from fedoptax.errors import DataError

    path = tmp_path / "stackoverflow.tag_count"
    path.write_text('{"\\ud800": 2, "python": 1}')
    with pytest.raises(DataError) as error:
        read_tags(path, 2)
    assert_one_line(error, path, "surrogate")
    path.write_text('{"\\ud83d\\ude00": 2, "python": 1}')
    assert read_tags(path, 2) == ["\U0001f600", "python"]


def test_a_user_with_an_endless_name_is_named_shortly(tmp_path: Path) -> None:
    from fedoptax.data.sources import femnist
    from fedoptax.errors import DataError

    name = "u" * 10**6
    document = {"users": [name], "num_samples": [2], "user_data": {name: {"x": [[0.0] * 784], "y": [1]}}}
    path = tmp_path / "femnist" / "train" / "all.json.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    (tmp_path / "femnist" / "test").symlink_to(path.parent)
    with pytest.raises(DataError) as error:
        femnist.load(tmp_path)
    assert len(str(error.value)) <= 1000
    assert_one_line(error, path, "'num_samples' says 2")
