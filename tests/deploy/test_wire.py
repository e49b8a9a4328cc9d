"""Trees on the wire: what is packed comes out, and anything else is refused."""

import inspect
import io
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedoptax.algorithms import ALGORITHMS
from fedoptax.deploy.wire import HEADER_LIMIT, STYPE, WireArray, WireError, expected_of, pack, shown, unpack
from fedoptax.errors import UsageError
from small import START

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int8, np.uint8, np.uint32, np.bool_]


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    numbers = draw(hnp.arrays(np.float32, shape, elements=st.floats(-100, 100, width=32)))
    array = np.abs(numbers).astype(dtype) if dtype.kind in "ub" else numbers.astype(dtype)
    return np.asfortranarray(array) if draw(st.booleans()) else array


trees = st.recursive(
    arrays() | st.just(()),
    lambda inner: (
        st.dictionaries(st.text(max_size=5), inner, max_size=3) | st.tuples(inner, inner) | st.lists(inner, max_size=2)
    ),
    max_leaves=8,
)


@given(trees)
@settings(max_examples=50, deadline=None)
def test_a_tree_comes_back_bit_for_bit_with_its_dtypes(tree: Any) -> None:
    back = unpack(pack(tree), tree)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(back)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def test_names_are_key_paths_with_slashes_in_keys_escaped() -> None:
    tree = {"a/b": {"c": jnp.ones(2)}, "a": {"b~": [jnp.ones(1)]}}
    assert set(expected_of(tree)) == {"a~1b/c", "a/b~0/0"}
    assert list(expected_of(jnp.ones(3))) == ["."]


def test_ordinary_arrays_are_what_flower_reads() -> None:
    packed = pack({"w": jnp.arange(6.0).reshape(2, 3)})["w"]
    np.testing.assert_array_equal(np.load(io.BytesIO(packed.data), allow_pickle=False), np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_messages_of_every_algorithm_travel(name: str) -> None:
    needed = [k for k, v in inspect.signature(ALGORITHMS[name]).parameters.items() if v.default is v.empty]
    algorithm = ALGORITHMS[name](**dict.fromkeys(needed, 0.1))
    server = algorithm.init(jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), START))
    message = algorithm.broadcast(server)
    jax.tree.map(np.testing.assert_array_equal, message, unpack(pack(message), jax.eval_shape(lambda: message)))


def test_keys_and_texts_are_refused() -> None:
    with pytest.raises(UsageError, match="must hold numbers"):
        pack({"key": jax.random.key(0)})
    with pytest.raises(UsageError, match="must hold numbers"):
        pack({"text": np.array(["a"])})


LIKE = {"w": jax.ShapeDtypeStruct((2, 3), np.float32), "n": jax.ShapeDtypeStruct((), np.int32)}
GOOD = pack({"w": np.ones((2, 3), np.float32), "n": np.int32(1)})


def npy(array: np.ndarray, **changes: Any) -> WireArray:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return WireArray("float32", (2, 3), STYPE, buffer.getvalue())._replace(**changes)


W = np.ones((2, 3), np.float32)
HOSTILE = {
    "missing": ({"n": GOOD["n"]}, "1 missing \\('w'\\)"),
    "extra": ({**GOOD, "../evil\n": GOOD["n"]}, "1 unknown \\('../evil'\\)"),
    "declared shape": ({**GOOD, "w": npy(W, shape=(3, 2))}, "instead of float32"),
    "shape huge": ({**GOOD, "w": npy(W, shape=(10**12, 10**12))}, "instead of float32"),
    "shape nonsense": ({**GOOD, "w": npy(W, shape=("a", None))}, "instead of float32"),
    "declared dtype": ({**GOOD, "w": npy(W, dtype="float64")}, "float64\\[2, 3\\] instead"),
    "dtype nonsense": ({**GOOD, "w": npy(W, dtype="x" * 1000)}, "instead of float32"),
    "stype": ({**GOOD, "w": npy(W, stype="pickle")}, "serialised as 'pickle'"),
    "shape inside": ({**GOOD, "w": npy(W.T)}, "not what is declared"),
    "dtype inside": ({**GOOD, "w": npy(W.astype("i4"))}, "not what is declared"),
    "byte order inside": ({**GOOD, "w": npy(W.astype(">f4"))}, "not what is declared"),
    "objects inside": ({**GOOD, "w": npy(np.array([[None, {}, 1]]))}, "array 'w'"),
    "oversized": ({**GOOD, "w": npy(np.ones((2000, 3), np.float32))}, "24128 bytes instead of 24"),
    "trailing": ({**GOOD, "w": npy(W)._replace(data=npy(W).data + b"x")}, "not what is declared"),
    "truncated": ({**GOOD, "w": npy(W)._replace(data=npy(W).data[:-1])}, "not what is declared"),
    "empty": ({**GOOD, "w": npy(W, data=b"")}, "0 bytes"),
    "noise": ({**GOOD, "w": npy(W, data=b"\x00" * 100)}, "damaged"),
    "version": ({**GOOD, "w": npy(W, data=b"\x93NUMPY\x09\x00" + b"v" * 60)}, r"version \(9, 0\)"),
    "header without end": ({**GOOD, "w": npy(W, data=b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 90)}, "damaged"),
    "nan": ({**GOOD, "w": npy(W * np.nan)}, "NaN or infinity"),
    "infinity": ({**GOOD, "w": npy(W * np.inf)}, "NaN or infinity"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_record_is_refused_in_one_line(case: str) -> None:
    record, reason = HOSTILE[case]
    with pytest.raises(WireError, match=reason) as refused:
        unpack(record, LIKE)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def test_nan_is_noticed_in_bfloat16() -> None:
    with pytest.raises(WireError, match="NaN"):
        unpack(pack({"x": np.array([np.nan], ml_dtypes.bfloat16)}), {"x": jax.ShapeDtypeStruct((1,), jnp.bfloat16)})


def test_booleans_other_than_0_and_1_are_refused() -> None:
    flag = pack({"b": np.array([True])})["b"]
    with pytest.raises(WireError, match="true and false"):
        unpack({"b": flag._replace(data=flag.data[:-1] + b"\x07")}, {"b": jax.ShapeDtypeStruct((1,), np.bool_)})


names = st.sampled_from(["w", "n", "x", ""]) | st.text(max_size=4)
wire_arrays = st.builds(
    WireArray,
    st.sampled_from(["float32", "int32", "object", ""]) | st.text(max_size=8),
    st.lists(st.integers(-5, 2**70) | st.integers(0, 3), max_size=4).map(tuple),
    st.just(STYPE) | st.text(max_size=4),
    st.binary(max_size=300) | st.binary(max_size=100).map(lambda b: GOOD["w"].data[: len(b)] + b),
)


@given(st.dictionaries(names, wire_arrays, max_size=4), st.data())
@settings(max_examples=100, deadline=None)
def test_any_record_is_either_refused_or_sound(record: dict[str, WireArray], data: st.DataObject) -> None:
    if data.draw(st.booleans()):  # nearer to a good one: some bytes of its arrays changed
        flipped = bytearray(GOOD["w"].data)
        for place in data.draw(st.lists(st.integers(0, len(flipped) - 1), max_size=3)):
            flipped[place] ^= data.draw(st.integers(1, 255))
        record = {"w": GOOD["w"]._replace(data=bytes(flipped)), "n": GOOD["n"]}
    try:
        tree = unpack(record, LIKE)
    except WireError:
        return
    assert tree["w"].shape == (2, 3) and tree["w"].dtype == np.float32 and np.isfinite(tree["w"]).all()


def test_a_large_declared_array_costs_no_memory() -> None:
    struct = {"w": jax.ShapeDtypeStruct((2**40,), np.float32)}
    with pytest.raises(WireError, match="bytes"):
        unpack({"w": WireArray("float32", (2**40,), STYPE, b"\x93NUMPY" * 10)}, struct)


def test_quoted_text_is_one_short_line() -> None:
    assert shown("a\nb\x1b[31m" + "c" * 500).startswith("a b?[31mccc") and len(shown("x" * 500)) <= 80
    assert HEADER_LIMIT < 10_000
