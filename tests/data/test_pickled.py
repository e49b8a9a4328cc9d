"""The pickles of arrays are read without running anything, whatever the file asks for."""

import os
import pickle
import pickletools
import random
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptax.data.sources import pickled
from fedoptax.data.sources.pickled import read_pickle
from fedoptax.errors import DataError
from files import assert_one_line
from python2_pickles import array, dictionary, integer, listing, text

ROWS = np.arange(12, dtype=np.uint8).reshape(3, 4)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_lists_and_numbers_of_any_python_are_read(protocol):
    value = {"labels": [0, 255, 65535, -1], "none": None, "yes": True, "pair": (1, "two"), "bytes": ["é", []]}
    assert read_pickle(pickle.dumps(value, protocol), "f") == value


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_this_numpy_are_read(protocol, order):
    read = read_pickle(pickle.dumps({"data": np.asarray(ROWS, order=order)}, protocol), "f")["data"]
    np.testing.assert_array_equal(read, ROWS)
    assert read.dtype == np.uint8


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
@pytest.mark.parametrize("fortran", [False, True])
def test_arrays_of_python_2_are_read(module, fortran):
    data = array((3, 4), ROWS.tobytes("F" if fortran else "C"), fortran=fortran, module=module)
    content = read_pickle(dictionary({"data": data, "labels": listing(map(integer, [6, 9]))}), "f")
    np.testing.assert_array_equal(content["data"], ROWS)
    assert content["labels"] == [6, 9]


class Call:
    """Pickles as the call of any function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class State:
    def __init__(self):
        self.x = 1


def by_hand(code):
    """A pickle of a dictionary whose only value is what `code` leaves on the stack."""
    return b"\x80\x02}" + text("data") + code + b"s."


NDARRAY, SHAPE0 = b"cnumpy\nndarray\n", b"K\0\x85"
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\n" + NDARRAY + SHAPE0 + text("b") + b"\x87R"
HOSTILE = {
    "a shell": (pickle.dumps({"data": Call(os.system, "touch /tmp/owned")}, 2), "system"),
    "a shell, protocol 4": (pickle.dumps({"data": Call(os.system, "touch /tmp/owned")}, 4), "system"),
    "eval": (pickle.dumps({"data": Call(eval, "1/0")}, 4), "eval"),
    "getattr": (by_hand(b"c__builtin__\ngetattr\n"), "getattr"),
    "a nested name": (by_hand(b"cnumpy\ncore.multiarray._reconstruct\n"), "numpy.core.multiarray"),
    "a nested name, protocol 4": (by_hand(b"\x8c\x05numpy\x8c\x07ndarray\x8c\x01x\x93"), "ndarray.x"),
    "names that are no strings": (by_hand(b"K\1K\2\x93"), "no string"),
    "an object": (pickle.dumps({"data": State()}, 2), "test_pickled.State"),
    "an object of a known class": (by_hand(NDARRAY + b")\x81"), "instruction NEWOBJ"),
    "an object of Python 2": (by_hand(b"(cnumpy\nndarray\no"), "instruction OBJ"),
    "an instance": (by_hand(b"(iposix\nsystem\n"), "instruction INST"),
    "a persistent id": (by_hand(b"Pid\n"), "instruction PERSID"),
    "an extension": (by_hand(b"\x82\x01"), "instruction EXT1"),
    "the call of an array": (by_hand(EMPTY + b")R"), "calls something"),
    "the call of a type": (by_hand(NDARRAY + SHAPE0 + b"\x85R"), "calls something"),
    "a shape of its own": (by_hand(EMPTY.replace(SHAPE0, b"J\xff\xff\xff\x7f\x85")), "calls something"),
    "a state for a name": (by_hand(NDARRAY + b"}b"), "sets the state"),
    "a state for a list": (by_hand(b"]}b"), "sets the state"),
    "a huge shape": (by_hand(array((2**31 - 1, 2**31 - 1), b"123")), "with 3 bytes"),
    "a negative shape": (by_hand(array((-1, -3), b"123")), "no shape"),
    "many dimensions": (by_hand(array((1,) * 5, b"1")), "no shape"),
    "objects": (by_hand(array((1,), b"12345678", dtype="O8")), "'O8'"),
    "floats": (by_hand(array((1,), b"1234", dtype="f4")), "'f4'"),
    "a state without bytes": (by_hand(EMPTY + b"(K\1))tb"), "without a shape"),
    "a type that is a number": (
        by_hand(array((1,), b"1").replace(b"cnumpy\ndtype\nU\x02u1", b"cnumpy\ndtype\nK\1")),
        "calls",
    ),
    "a type with fields": (by_hand(array((1,), b"1").replace(b"NNN", b"N]N")), "unknown type"),
    "a filled array that is filled again": (by_hand(array((1,), b"1") + b"(K\1K\1\x85NNNtb"), "filled twice"),
    "keys that are no strings": (b"\x80\x02}K\1K\2s.", "keys"),
    "a key without a value": (b"\x80\x02}(" + text("a") + b"u.", "keys"),
    "a list instead of a dictionary": (b"\x80\x02].", "no dictionary"),
    "an array instead of a dictionary": (b"\x80\x02" + array((1,), b"1") + b".", "no dictionary"),
    "an item for a number": (by_hand(b"K\1K\2a"), "fills"),
    "an item for a number's dictionary": (b"\x80\x02K\1" + text("a") + b"K\2s.", "fills"),
    "a long integer": (by_hand(b"\x8a\x09" + b"\1" * 9), "instruction LONG1"),
    "a number that was never stored": (by_hand(b"h\7"), "number 7"),
    "an empty stack": (b"\x80\x02}s.", "runs empty"),
    "no mark": (b"\x80\x02}u.", "runs empty"),
    "nothing to return": (b"\x80\x02.", "not a whole pickle"),
    "no end": (b"\x80\x02}", "not a whole pickle"),
    "nothing": (b"", "not a whole pickle"),
    "text": (b"hello", "not a whole pickle"),
    "a string longer than the file": (by_hand(b"T\xff\xff\xff\x7fabc"), "not a whole pickle"),
    "bytes longer than memory": (by_hand(b"\x8e" + struct.pack("<Q", 2**62) + b"abc"), "not a whole pickle"),
    "digits without end": (by_hand(b"L" + b"9" * 10_000 + b"L\n"), "not a whole pickle"),
    "letters that are no bytes": (
        by_hand(array((1,), b"1").replace(b"T\1\0\0\0" + b"1", b"\x8c\3" + "€".encode())),
        "not a whole",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_pickles_are_refused_in_one_line(kind):
    data, word = HOSTILE[kind]
    with pytest.raises(DataError) as error:
        read_pickle(data, "batch_1")
    assert_one_line(error, Path("batch_1"), word)


def test_nothing_is_imported_or_called(monkeypatch, tmp_path):
    owned = tmp_path / "owned"
    monkeypatch.delitem(sys.modules, "this", raising=False)
    for code in (b"cthis\ns\n", b"\x8c\x04this\x8c\x01s\x93", b"cos\nmkdir\n" + text(str(owned)) + b"\x85R"):
        with pytest.raises(DataError, match="it names"):
            read_pickle(by_hand(code), "f")
    assert "this" not in sys.modules
    assert not owned.exists()


def test_depth_costs_nothing():
    """100,000 lists in each other, then compared, named and dropped: no recursion."""
    deep = b"](" * 50_000 + b"e" * 50_000
    assert read_pickle(by_hand(deep), "f")["data"]
    for code in (b"cnumpy\ndtype\n" + deep + b"K\0K\1\x87R", deep + deep + b"\x93", EMPTY + deep + b"b"):
        with pytest.raises(DataError):
            read_pickle(by_hand(code), "f")


def test_a_list_within_itself_is_harmless():
    assert isinstance(read_pickle(by_hand(b"]q\0h\0a"), "f")["data"], list)


def test_sharing_does_not_multiply():
    """Sixty lists, each twice in the next: 2^60 leaves if anything copied, compared or printed them."""
    shared = b"]q\0" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60))
    with pytest.raises(DataError, match="calls something"):
        read_pickle(by_hand(b"cnumpy\ndtype\n" + shared + b"K\0K\1\x87R"), "f")


def test_long_programs_are_refused():
    with pytest.raises(DataError) as error:
        read_pickle(b"\x80\x02" + b"]" * (pickled.MAX_INSTRUCTIONS + 1), "f")
    assert_one_line(error, Path("f"), "instructions")


def test_a_memo_index_costs_no_memory():
    """Python's own machine would make a table of 2^31 entries."""
    content = read_pickle(by_hand(b"]r\xff\xff\xff\x7f"), "f")
    assert content == {"data": []}


GOOD = dictionary({"data": array((3, 4), ROWS.tobytes()), "labels": listing(map(integer, [6, 9, 1]))})


def test_every_truncation_is_refused():
    for cut in range(len(GOOD)):
        with pytest.raises(DataError):
            read_pickle(GOOD[:cut], "f")


@given(seed=st.integers(0, 2**32 - 1))
def test_damage_gives_an_error_of_one_line_or_a_dictionary(seed):
    rng = random.Random(seed)
    codes = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
    data = bytearray(GOOD)
    for _ in range(rng.randrange(1, 6)):
        where = rng.randrange(len(data))
        data[where : where + rng.randrange(3)] = rng.choice([rng.randbytes(1), rng.choice(codes)])
    try:
        result = read_pickle(bytes(data), "f")
    except DataError as error:
        result = str(error).splitlines()
    assert isinstance(result, dict) or len(result) == 1
