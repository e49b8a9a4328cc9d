"""Codecs of arrays for `with_compression`: bits are packed into bytes, so that counted and real sizes agree.

QSGD: Alistarh et al. 2017, *QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding*. Top-k and scaled
sign, with error feedback: Wang, Lin, Chen 2022, *Communication-Efficient Adaptive Federated Learning* (FedCAMS).
`integers` is for algorithms that send whole numbers (FedLion).

A number that is not finite makes the decoded array not finite (but `integers`'), so that it can be refused.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedoptax.algorithm import nbytes
from fedoptax.errors import check_choice, check_int, check_number

Code = dict[str, jax.Array]


@dataclass(frozen=True, eq=False)
class Coded:
    """A coded array: the parts that are sent, and the original's shape and dtype (static, so they cost nothing)."""

    parts: Code
    shape: tuple[int, ...]
    dtype: str


jax.tree_util.register_dataclass(Coded, data_fields=["parts"], meta_fields=["shape", "dtype"])


class Codec(NamedTuple):
    """The coding of one array.

    `encode(flat, key) -> parts` takes a flat floating-point array of at least one number and a random key, None unless
    `random`; `decode(parts, size) -> flat` returns the array, of `size` numbers; its dtype is set afterwards.
    """

    name: str
    encode: Callable[[jax.Array, Any], Code]
    decode: Callable[[Code, int], jax.Array]
    random: bool  # whether it rounds at random, which makes it unbiased
    feedback: bool  # whether the client keeps the error and adds it to its next upload


def qsgd(bits: int = 4, bucket: int = 512, norm: str = "l2") -> Codec:
    """Stochastic quantisation (Alistarh et al. 2017, Section 3.1): unbiased; clients keep nothing.

    Each bucket of d consecutive numbers v is sent as its norm ‖v‖ (float32) and a whole number from −s to s for each
    number, s = 2^(bits−1) − 1: s |vᵢ|/‖v‖ rounded up or down at random with expectation unchanged. With the 2-norm the
    squared error is at most min(d/s², √d/s) ‖v‖² in expectation (Lemma 3.1), so short buckets are accurate.

    Args:
      bits: of a number on the wire, 2 to 8.
      bucket: d ≥ 1, the numbers that share a norm.
      norm: `"l2"`, or `"max"`, the largest |vᵢ| (the paper's experiments): a smaller error, at most d/(4s²) max²,
        without the bound by √d.
    """
    check_int("bits", bits, 2, 8)
    check_int("bucket", bucket)
    check_choice("norm", norm, ("l2", "max"))
    levels = 2 ** (bits - 1) - 1

    def encode(flat: jax.Array, key: Any) -> Code:
        wide, row = flat.astype(jnp.float32), min(bucket, flat.size)
        rows = jnp.pad(wide, (0, -wide.size % row)).reshape(-1, row)
        length = largest = jnp.max(jnp.abs(rows), axis=1)
        if norm == "l2":  # of the rows scaled to 1, so that squares neither overflow nor vanish
            length = largest * jnp.linalg.norm(rows / jnp.where(largest > 0, largest, 1)[:, None], axis=1)
        share = jnp.abs(rows) / jnp.where(length > 0, length, 1)[:, None]
        drawn = jnp.floor(levels * share + jax.random.uniform(key, rows.shape, jnp.float32))
        signed = jnp.sign(rows) * jnp.minimum(drawn, levels)
        codes = (jnp.nan_to_num(signed) + levels).astype(jnp.uint8)
        return {"codes": pack_bits(codes.ravel()[: wide.size], bits), "norms": length}

    def decode(parts: Code, size: int) -> jax.Array:
        signed = unpack_bits(parts["codes"], bits, size).astype(jnp.float32) - levels
        return signed / levels * jnp.repeat(parts["norms"], min(bucket, size))[:size]

    return Codec(f"qsgd:bits={bits},bucket={bucket},norm={norm}", encode, decode, random=True, feedback=False)


def topk(fraction: float = 0.01) -> Codec:
    """The largest numbers of each array, values and int32 places, with error feedback (Wang, Lin, Chen 2022).

    Of each array ⌈`fraction` · size⌉ numbers are sent, `fraction` in (0, 1].
    """
    check_number("fraction", fraction, 0, 1, open_low=True, open_high=False)

    def encode(flat: jax.Array, key: Any) -> Code:
        size = jnp.where(jnp.isnan(flat), jnp.inf, jnp.abs(flat))  # so that a NaN is sent
        _, places = jax.lax.top_k(size, math.ceil(fraction * flat.size * (1 - 1e-12)))
        return {"values": flat[places], "places": places.astype(jnp.int32)}

    def decode(parts: Code, size: int) -> jax.Array:
        values = parts["values"]
        return jnp.zeros(size, values.dtype).at[parts["places"]].set(values, mode="drop")

    return Codec(f"topk:fraction={fraction:g}", encode, decode, random=False, feedback=True)


def sign() -> Codec:
    """The signs, one bit per number, times the mean absolute value, with error feedback (Wang, Lin, Chen 2022)."""

    def encode(flat: jax.Array, key: Any) -> Code:
        bits = pack_bits((flat >= 0).astype(jnp.uint8), 1)
        return {"bits": bits, "scale": jnp.mean(jnp.abs(flat.astype(jnp.float32)))}

    def decode(parts: Code, size: int) -> jax.Array:
        return parts["scale"] * (2 * unpack_bits(parts["bits"], 1, size).astype(jnp.float32) - 1)

    return Codec("sign", encode, decode, random=False, feedback=True)


def integers(largest: int) -> Codec:
    """Whole numbers from −`largest` to `largest` in ⌈log₂(2·largest + 1)⌉ bits each, exact; above 127 as int16.

    `largest` is from 1 to 32,767. A number that is larger is sent wrongly.
    """
    bits = (2 * check_int("largest", largest, 1, 2**15 - 1)).bit_length()

    def encode(flat: jax.Array, key: Any) -> Code:
        if bits > 8:
            return {"codes": flat.astype(jnp.int16)}
        return {"codes": pack_bits((flat.astype(jnp.int32) + largest).astype(jnp.uint8), bits)}

    def decode(parts: Code, size: int) -> jax.Array:
        if bits > 8:
            return parts["codes"].astype(jnp.float32)
        return unpack_bits(parts["codes"], bits, size).astype(jnp.float32) - largest

    return Codec(f"integers:largest={largest}", encode, decode, random=False, feedback=False)


CODECS: dict[str, Callable[..., Codec]] = {"qsgd": qsgd, "topk": topk, "sign": sign}


def encode_array(codec: Codec, leaf: jax.Array, key: Any = None) -> Any:
    """A `Coded` in place of an array; the array itself where that would not be smaller (a few numbers)."""
    if leaf.size == 0:
        return leaf
    parts = codec.encode(leaf.ravel(), key)
    return Coded(parts, leaf.shape, leaf.dtype.name) if nbytes(parts) < nbytes(leaf) else leaf


def decode_array(codec: Codec, sent: Any) -> jax.Array:
    """The array again that `encode_array` coded."""
    if not isinstance(sent, Coded):
        return sent
    return codec.decode(sent.parts, math.prod(sent.shape)).astype(sent.dtype).reshape(sent.shape)


def pack_bits(codes: jax.Array, bits: int) -> jax.Array:
    """n whole numbers below 2^bits, uint8 (n,), as ⌈n · bits/8⌉ bytes; the highest bit first."""
    places = jnp.arange(bits - 1, -1, -1, dtype=jnp.uint8)
    return jnp.packbits(((codes[:, None] >> places) & 1).ravel())


def unpack_bits(packed: jax.Array, bits: int, size: int) -> jax.Array:
    """The n = `size` numbers that `pack_bits` packed."""
    planes = jnp.unpackbits(packed, count=size * bits).reshape(size, bits)
    places = jnp.arange(bits - 1, -1, -1, dtype=jnp.uint8)
    return jnp.sum(planes << places, axis=1, dtype=jnp.uint8)
