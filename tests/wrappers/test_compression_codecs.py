"""Codecs of arrays: their parts, their bytes, and the decoded arrays."""

import math
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.algorithm import nbytes
from fedoptax.wrappers.codecs import Codec, Coded, decode_array, encode_array, pack_bits, unpack_bits

codecs = fx.codecs
KEY = jax.random.key(3)
ALL = [codecs.qsgd(), codecs.qsgd(3, 7, "max"), codecs.topk(0.1), codecs.sign()]
every = pytest.mark.parametrize("codec", ALL, ids=lambda c: c.name)


@lru_cache
def compiled(codec: Codec) -> Any:
    """`(array, key) -> (coded, decoded)`."""

    def run(array: jax.Array, key: Any) -> Any:
        sent = encode_array(codec, array, key)
        return sent, decode_array(codec, sent)

    return jax.jit(run)


def there_and_back(codec: Codec, array: Any, key: Any = KEY) -> jax.Array:
    return compiled(codec)(jnp.asarray(array), key)[1]


@pytest.mark.parametrize(("largest", "size_of_1000"), [(1, 250), (3, 375), (127, 1000), (128, 2000), (32767, 2000)])
def test_whole_numbers_come_back_as_they_were(largest, size_of_1000):
    numbers = np.random.default_rng(largest).integers(-largest, largest + 1, 1000).astype(np.float32)
    numbers[:2] = -largest, largest
    coded, decoded = compiled(codecs.integers(largest))(jnp.asarray(numbers), None)
    assert nbytes(coded) == size_of_1000
    np.testing.assert_array_equal(decoded, numbers)


@pytest.mark.parametrize(("bits", "size"), [*((bits, 13) for bits in range(1, 9)), (3, 0)])
def test_packed_bits_unpack_to_the_same_numbers(bits, size):
    codes = np.random.default_rng(bits).integers(0, 2**bits, size).astype(np.uint8)
    packed = np.asarray(jax.jit(pack_bits, static_argnums=1)(codes, bits))
    text = "".join(f"{code:0{bits}b}" for code in codes)
    text += "0" * (-len(text) % 8)
    assert packed.tobytes() == bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
    unpack = jax.jit(unpack_bits, static_argnums=(1, 2))
    np.testing.assert_array_equal(unpack(packed, bits, len(codes)), codes)


@pytest.mark.parametrize(
    ("codec", "size", "expected"),
    [
        (codecs.qsgd(4, 512), 1000, 500 + 2 * 4), (codecs.qsgd(3, 100), 1001, math.ceil(3003 / 8) + 11 * 4),
        (codecs.qsgd(2, 512), 100, 25 + 4), (codecs.topk(0.01), 1001, 11 * 8), (codecs.topk(0.25), 10, 3 * 8),
        (codecs.sign(), 1001, 126 + 4),
    ],
    ids=lambda v: v.name if isinstance(v, Codec) else str(v),
)  # fmt: skip
def test_bytes_follow_the_formula(codec, size, expected):
    sent = jax.eval_shape(partial(encode_array, codec), jnp.ones(size), KEY)
    assert isinstance(sent, Coded) and nbytes(sent) == expected


@every
def test_an_array_that_would_not_become_smaller_is_sent_as_it_is(codec):
    for shape in ((), (1,), (0,), (3, 0)):
        sent = jax.eval_shape(partial(encode_array, codec), jnp.full(shape, 0.3), KEY)
        assert not isinstance(sent, Coded) and decode_array(codec, sent) is sent


@every
def test_shape_and_dtype_stay_and_zero_stays_zero(codec):
    zero = jnp.zeros((8, 16), jnp.bfloat16)
    back = there_and_back(codec, zero)
    assert (back.shape, back.dtype) == (zero.shape, zero.dtype)
    np.testing.assert_array_equal(back, zero)
    one = there_and_back(codec, zero.at[3, 4].set(-2.0))
    assert float(one[3, 4]) < 0


@every
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_an_array_that_is_not_finite_decodes_to_one_that_is_not(codec, bad):
    array = jnp.ones((8, 16), jnp.bfloat16).at[3, 4].set(bad)
    sent, back = compiled(codec)(array, KEY)
    assert not np.isfinite(back).all()
    assert not all(np.isfinite(np.asarray(part, np.float64)).all() for part in sent.parts.values())  # seen on the wire


@pytest.mark.parametrize("norm", ["l2", "max"])
def test_qsgd_against_numpy(norm):
    """Section 3.1 with the same uniform numbers: level l or l + 1 of s, for buckets of 5 of 13 numbers."""
    v, s = np.random.default_rng(0).normal(size=13), 7
    decoded = there_and_back(codecs.qsgd(4, 5, norm), v.astype(np.float32))
    u = np.asarray(jax.random.uniform(KEY, (3, 5)), np.float64).ravel()
    expected = []
    for i, x in enumerate(v):
        bucket = v[i // 5 * 5 : i // 5 * 5 + 5]
        length = np.linalg.norm(bucket) if norm == "l2" else np.abs(bucket).max()
        level = math.floor(s * abs(x) / length)
        up = u[i] >= 1 - (s * abs(x) / length - level)
        expected.append(length * np.sign(x) * (level + up) / s)
    np.testing.assert_allclose(decoded, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("codec", "size"),
    [(codecs.qsgd(2), 24), (codecs.qsgd(3, 10, "max"), 40)],
    ids=lambda v: v.name if isinstance(v, Codec) else str(v),
)
def test_qsgd_is_unbiased_within_its_bound_on_the_variance(codec, size):
    v = jnp.asarray(np.random.default_rng(1).normal(size=size), jnp.float32)
    draws = 2000
    back = np.asarray(
        jax.jit(jax.vmap(lambda k: there_and_back(codec, v, k)))(jax.random.split(KEY, draws)), np.float64
    )
    error = back - np.asarray(v, np.float64)
    spread = error.std(axis=0)
    assert (np.abs(error.mean(axis=0)) <= 5 * spread / math.sqrt(draws) + 1e-6).all()
    total = (error**2).sum(axis=1)
    bits, bucket = (int(part.split("=")[1]) for part in codec.name.split(",")[:2] for part in [part.split(":")[-1]])
    s, d = 2 ** (bits - 1) - 1, min(bucket, size)
    if "l2" in codec.name:
        bound = min(d / s**2, math.sqrt(d) / s) * float(v @ v)
    else:
        bound = sum(d / (4 * s**2) * float(jnp.abs(row).max()) ** 2 for row in v.reshape(-1, d))
    assert total.mean() <= bound
    assert total.mean() > bound / 20  # it does round


def test_topk_keeps_the_largest_and_nothing_else():
    v = np.random.default_rng(2).normal(size=(20, 15)).astype("f4")
    back = np.asarray(there_and_back(codecs.topk(0.1), v))
    largest = np.argsort(-np.abs(v).ravel())[:30]
    expected = np.zeros(300, "f4")
    expected[largest] = v.ravel()[largest]
    np.testing.assert_array_equal(back.ravel(), expected)


def test_sign_is_exact_where_all_are_equally_large():
    v = np.where(np.random.default_rng(2).random(50) < 0.4, -1.5, 1.5).astype("f4")
    np.testing.assert_array_equal(there_and_back(codecs.sign(), v), v)
    np.testing.assert_allclose(np.abs(there_and_back(codecs.sign(), np.arange(8, dtype="f4"))), 3.5)
