"""Trees of arrays as messages: bytes, rebuilt only into a structure that is known beforehand.

The sender is not trusted. A message is a line of JSON, `{"name": ["float32", [2, 3]], ...}`, and after it the bytes of
all arrays, little-endian and in C order. The line must be the expected one, and the size what follows from it; then the
numbers must be finite. Every fault is a `WireError`. All arrays are one for Flower, which makes requests for each: a
round of digits takes half the processor time that it took with an array per leaf.
"""

import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Tree
from fedoptax.errors import RunError, UsageError, shorten
from fedoptax.tree import leaf_names

SHOWN, REASON = 80, 600  # characters quoted of a text from elsewhere; of a reason, which is read as a whole
ALIGNMENT = 64  # bytes; the line is filled up with spaces
UNEXPECTED = 4096  # bytes by which a line may be longer than the expected one, and still be read for the error's text


class WireError(RunError):
    """A message has another form than expected; one line says where and why."""


def expected_of(tree: Tree) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the names, shapes and dtypes of a tree's leaves (arrays, or the structs of `jax.eval_shape`).

    The names are those of `leaf_names`; `.` for a tree that is a single array. Two leaves of the same name, or one that
    is not an array of numbers, are a `UsageError`.
    """
    named: dict[str, jax.ShapeDtypeStruct] = {}
    for name, leaf in zip(leaf_names(tree), jax.tree.leaves(tree)):
        name = name or "."
        if name in named:
            raise UsageError(f"tree must have different names, got '{name}' twice")
        array = leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else jnp.asarray(leaf)
        if jnp.issubdtype(array.dtype, jax.dtypes.extended) or array.dtype.kind in "OUSMm":
            raise UsageError(f"array '{name}' must hold numbers, got {array.dtype}")
        named[name] = jax.ShapeDtypeStruct(array.shape, array.dtype)
    return named


def pack(tree: Tree) -> bytes:
    """Return the leaves of a tree as a message, in their dtypes; a `UsageError` as of `expected_of`."""
    leaves = (leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for leaf in jax.tree.leaves(tree))
    contents = (np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data for leaf in leaves)
    return b"".join([_line(expected_of(tree)), *contents])


def unpack(message: bytes, like: Tree) -> Tree:
    """Rebuild the tree that `pack` took, as NumPy arrays in the structure of `like` (arrays, or structs).

    A missing or unknown name, another dtype, shape or size, or a number that is not finite is a `WireError`.
    """
    expected = expected_of(like)
    line, leaves = _line(expected), []
    if not message.startswith(line):
        raise WireError(_difference(message[: len(line) + UNEXPECTED], expected))
    place, size = len(line), len(line) + sum(map(_size, expected.values()))
    if len(message) != size:
        raise WireError(f"{len(message)} bytes instead of {size}")
    for name, struct in expected.items():
        flat = np.frombuffer(message, np.uint8, _size(struct), place)
        array = flat.view(struct.dtype).reshape(struct.shape)
        if array.dtype == np.bool_ and np.any(flat > 1):
            raise WireError(f"array '{name}': bytes other than true and false")
        if jnp.issubdtype(array.dtype, jnp.inexact) and not np.isfinite(array).all():
            raise WireError(f"array '{name}': NaN or infinity")
        leaves.append(array)
        place += flat.size
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def quote(text: object, most: int = SHOWN) -> str:
    """Quote a text from elsewhere: one short line of printable characters."""
    return shorten(" ".join(str(text).split()), most)


def _line(expected: dict[str, jax.ShapeDtypeStruct]) -> bytes:
    line = json.dumps({name: (np.dtype(form.dtype).name, form.shape) for name, form in expected.items()}).encode()
    return line + b" " * (-(len(line) + 1) % ALIGNMENT) + b"\n"


def _size(struct: jax.ShapeDtypeStruct) -> int:
    return math.prod(struct.shape) * np.dtype(struct.dtype).itemsize


def _difference(start: bytes, expected: dict[str, jax.ShapeDtypeStruct]) -> str:
    """Say how a message that begins like this differs from what is expected."""
    try:
        forms: dict[str, Any] = {**json.loads(start[: start.index(b"\n")])}
    except (ValueError, TypeError, RecursionError):
        return "arrays: no line that names them"
    wanted = json.loads(_line(expected))
    for name in [*wanted, *forms]:
        if (form := forms.get(name, "none")) != (right := wanted.get(name, "none")):
            return f"array '{quote(name)}': {quote(form)} instead of {right}"
    return "arrays: in another order"
