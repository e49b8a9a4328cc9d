"""Trees of arrays as messages: named arrays, rebuilt only into a structure that is known beforehand.

The sender is not trusted: names, shapes, dtypes and sizes are compared with the expected structure before anything is
allocated, then the numbers must be finite; every fault is a `WireError`. An array travels as the bytes of a `.npy`
file, which is what Flower's own `Array` holds; dtypes that such files do not know (bfloat16) travel as unsigned
integers of the same size.
"""

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Tree
from fedoptax.errors import RunError, UsageError, shorten
from fedoptax.tree import leaf_names

STYPE = "numpy.ndarray"  # Flower's name for this serialisation
HEADER_LIMIT = 4096  # bytes of a .npy header, far more than any of our arrays needs
SHOWN, REASON = 80, 600  # characters quoted of a text from elsewhere; of a reason, which is read as a whole


class WireError(RunError):
    """A message has another form than expected; one line says where and why."""


class WireArray(NamedTuple):
    """An array as it travels: its declared form, and the bytes of a `.npy` file."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes


Arrays = Mapping[str, WireArray]


def expected_of(tree: Tree) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the names, shapes and dtypes of a tree's leaves (arrays, or the structs of `jax.eval_shape`).

    The names are those of `leaf_names`; `.` for a tree that is a single array.

    Raises:
      UsageError: two leaves have the same name.
    """
    named: dict[str, jax.ShapeDtypeStruct] = {}
    for name, leaf in zip(leaf_names(tree), jax.tree.leaves(tree)):
        name = name or "."
        if name in named:
            raise UsageError(f"tree must have different names, got '{name}' twice")
        array = leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else jnp.asarray(leaf)
        named[name] = jax.ShapeDtypeStruct(array.shape, array.dtype)
    return named


def pack(tree: Tree) -> dict[str, WireArray]:
    """Return the leaves of a tree by name, in their dtypes.

    Raises:
      UsageError: two leaves have the same name, or one is not an array of numbers.
    """
    return {name: _pack_array(name, leaf) for name, leaf in zip(expected_of(tree), jax.tree.leaves(tree))}


def unpack(arrays: Arrays, like: Tree) -> Tree:
    """Rebuild the tree that `pack` took, as NumPy arrays in the structure of `like` (arrays, or structs).

    Raises:
      WireError: a name is missing or unknown, a dtype, shape or size differs, the bytes are damaged, or a number is not
        finite.
    """
    expected = expected_of(like)
    if arrays.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - arrays.keys()), sorted(map(str, arrays.keys() - expected.keys()))
        counts = f"{len(missing)} missing{_first(missing)}, {len(extra)} unknown{_first(extra)}"
        raise WireError(f"{len(arrays)} arrays instead of {len(expected)}: {counts}")
    leaves = [_unpack_array(name, arrays[name], struct) for name, struct in expected.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def shown(text: object, most: int = SHOWN) -> str:
    """Quote a text from elsewhere: one short line of printable characters."""
    return shorten(" ".join(str(text).split()), most)


def _pack_array(name: str, leaf: Any) -> WireArray:
    leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) or leaf.dtype.kind in "OUSMm":
        raise UsageError(f"array '{name}' must hold numbers, got {leaf.dtype}")
    array, buffer = np.asarray(leaf), io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array).reshape(array.shape).view(_stored(array.dtype)))
    return WireArray(array.dtype.name, array.shape, STYPE, buffer.getvalue())


def _unpack_array(name: str, sent: WireArray, struct: jax.ShapeDtypeStruct) -> np.ndarray:
    dtype, shape = np.dtype(struct.dtype), tuple(struct.shape)
    if sent.stype != STYPE:
        raise WireError(f"array '{name}': serialised as '{shown(sent.stype)}' instead of '{STYPE}'")
    if sent.dtype != dtype.name or tuple(sent.shape) != shape:
        declared = f"{shown(sent.dtype)}{shown(list(sent.shape))}"
        raise WireError(f"array '{name}': {declared} instead of {dtype.name}{list(shape)}")
    size, buffer = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, io.BytesIO(sent.data)
    if not size < len(sent.data) <= size + HEADER_LIMIT:
        raise WireError(f"array '{name}': {len(sent.data)} bytes instead of {size} and a short header")
    try:
        version = np.lib.format.read_magic(buffer)
        header = np.lib.format.read_array_header_1_0(buffer, HEADER_LIMIT) if version == (1, 0) else None
    except Exception as error:  # whatever a parser of untrusted bytes raises, they are damaged
        raise WireError(f"array '{name}': damaged ({type(error).__name__})") from error
    if header is None:
        raise WireError(f"array '{name}': version {version} of the .npy format instead of (1, 0)")
    stored_shape, in_columns, stored = header
    if (stored_shape, stored) != (shape, _stored(dtype)) or len(sent.data) - buffer.tell() != size:
        raise WireError(f"array '{name}': its bytes hold {stored}{shown(list(stored_shape))}, not what is declared")
    order: Any = "F" if in_columns else "C"
    array = np.frombuffer(sent.data, stored, offset=buffer.tell()).reshape(shape, order=order).view(dtype)
    if dtype == np.bool_ and np.any(array.view(np.uint8) > 1):
        raise WireError(f"array '{name}': bytes other than true and false")
    if jnp.issubdtype(dtype, jnp.inexact) and not np.isfinite(array).all():
        raise WireError(f"array '{name}': NaN or infinity")
    return array


def _stored(dtype: np.dtype) -> np.dtype:
    """Return the dtype in the file: itself, or an unsigned integer of its size where NumPy has no name for it."""
    return dtype if dtype.kind in "biufc" and dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


def _first(names: list[str]) -> str:
    return f" ('{shown(names[0])}')" if names else ""
