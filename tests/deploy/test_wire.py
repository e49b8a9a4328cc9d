"""Trees on the wire: what is packed comes out, and anything else is refused."""

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedoptax.deploy.wire import WireError, expected_of, pack, quote, unpack
from fedoptax.errors import UsageError
from refusals import refusals

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
def test_a_tree_comes_back_bit_for_bit_with_its_dtypes(tree):
    back = unpack(pack(tree), tree)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(back)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def test_names_are_key_paths_with_slashes_in_keys_escaped():
    tree = {"a/b": {"c": jnp.ones(2)}, "a": {"b~": [jnp.ones(1)]}}
    assert set(expected_of(tree)) == {"a~1b/c", "a/b~0/0"}
    assert list(expected_of(jnp.ones(3))) == ["."]


LIKE = {"w": jax.ShapeDtypeStruct((2, 3), np.float32), "n": jax.ShapeDtypeStruct((), np.int32)}
TREE = {"w": np.ones((2, 3), np.float32), "n": np.int32(1)}
GOOD, W = pack(TREE), TREE["w"]
ORDERS = b'{"n": ["int32", []], "w": ["float32", [2, 3]]}', b'{"w": ["float32", [2, 3]], "n": ["int32", []]}'
HOSTILE = {
    "missing": (pack({"n": TREE["n"]}), "array 'w': none instead of"),
    "extra": (pack({**TREE, "..\\evil\n": W}), "array '..\\\\evil': .* instead of none"),
    "order": (GOOD.replace(*ORDERS), "in another order"),
    "shape": (pack({**TREE, "w": W.T}), "'float32', \\[3, 2\\]\\] instead of \\['float32', \\[2, 3\\]\\]"),
    "shape huge": (GOOD.replace(b"[2, 3]", b"[1000000000000, 1000000000000]"), "instead of \\['float32'"),
    "shape nonsense": (GOOD.replace(b"[2, 3]", b'["a", null]'), "instead of \\['float32'"),
    "dtype": (pack({**TREE, "w": W.astype(np.float64)}), "'float64', \\[2, 3\\]\\] instead"),
    "dtype nonsense": (GOOD.replace(b"float32", b"x" * 1000), "instead of \\['float32'"),
    "oversized": (GOOD + bytes(10**6), "1000092 bytes instead of 92"),
    "truncated": (GOOD[:-1], "91 bytes instead of 92"),
    "empty": (b"", "no line"),
    "noise": (b"\x93" * 10**6, "no line"),
    "no table": (b"[1]\n", "no line"),
    "a number": (b"1\n", "no line"),
    "deep": (b"[" * 4000 + b"\n", "no line"),
    "nan": (pack({**TREE, "w": W * np.nan}), "NaN or infinity"),
    "infinity": (pack({**TREE, "w": W * np.inf}), "NaN or infinity"),
}


test_a_hostile_message_is_refused_in_one_line = refusals(
    {case: (partial(unpack, message, LIKE), WireError, reason) for case, (message, reason) in HOSTILE.items()}
)


NAN, TRUE = {"x": np.array([np.nan], ml_dtypes.bfloat16)}, {"b": np.array([True])}
test_keys_texts_and_odd_numbers_are_refused = refusals({
    "key": (lambda: pack({"key": jax.random.key(0)}), (WireError, UsageError), "must hold numbers"),
    "text": (lambda: pack({"text": np.array(["a"])}), (WireError, UsageError), "must hold numbers"),
    "NaN in bfloat16": (lambda: unpack(pack(NAN), NAN), WireError, "NaN"),
    "a boolean of 7": (lambda: unpack(pack(TRUE)[:-1] + b"\x07", TRUE), WireError, "true and false"),
})  # fmt: skip


@given(st.binary(max_size=200) | st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=3))
@settings(max_examples=100, deadline=None)
def test_any_message_is_either_refused_or_sound(message):
    if not isinstance(message, bytes):  # a good one with some bytes changed
        changed = bytearray(GOOD)
        for place, byte in message:
            changed[place] = byte
        message = bytes(changed)
    try:
        tree = unpack(message, LIKE)
    except WireError:
        return
    assert tree["w"].shape == (2, 3) and tree["w"].dtype == np.float32 and np.isfinite(tree["w"]).all()


def test_quoted_text_is_one_short_line():
    assert quote("a\nb\x1b[31m" + "c" * 500).startswith("a b?[31mccc") and len(quote("x" * 500)) <= 80
