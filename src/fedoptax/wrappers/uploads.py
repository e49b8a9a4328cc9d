"""What the wrappers of uploads share: what of an upload is news, and which numbers in it cannot be negative.

Some algorithms send a change (FedOpt's Δ), others a new value of what they were sent (FAFED's x, m, v). Clipping, noise
and coding want the change in either case, so the wrappers send what differs from the message, and the server adds the
message's part to the mean again. This is exact, because the weights of a mean sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey, tree_map_with_path

from fedoptax.algorithm import FedAlgorithm, Tree

VECTORS = ("delta", "params", "control_delta", "gradient", "m")
"""Fields of this package's uploads that are shaped like the model and may have any sign."""
SECOND_MOMENTS = ("v", "nu")
"""Fields, of uploads and of the optimizers' states in them, that hold second moments: never negative."""
_AS_SENT = {"v": "v_max"}  # Local AMSGrad and Fed-LAMB receive v̂ and send the v that starts from it


class Message(NamedTuple):
    """An algorithm's message, and what a wrapper adds (`()` for nothing)."""

    inner: Any
    added: Any

    @property
    def params(self) -> Tree:
        """x, for `with_prox`."""
        return self.inner.params


def is_floating(leaf: Any) -> bool:
    """Whether an array (or its struct) holds floating-point numbers."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def field_of(path: Sequence[Any]) -> str | None:
    """The upload's field that a leaf belongs to; None in an upload without fields."""
    return path[0].name if path and isinstance(path[0], GetAttrKey) else None


def change(message: Any, upload: Tree, fields: Sequence[str] | None = None) -> Tree:
    """What of an upload the server does not know: the upload minus `known`."""
    return jax.tree.map(jnp.subtract, upload, known(message, upload, fields))


def restored(message: Any, mean: Tree, fields: Sequence[str] | None = None) -> Tree:
    """The mean upload from the mean of its changes, the inverse of `change`."""
    return jax.tree.map(jnp.add, mean, known(message, mean, fields))


def known(message: Any, upload: Tree, fields: Sequence[str] | None = None) -> Tree:
    """What the message has in the place of an upload's floating-point leaves, by field; 0 where it has nothing.

    Args:
      message: what the client received.
      upload: what it sends, for its structure. A field is known if the message has one of its name and form.
      fields: of the upload, those to look up; None for all.
    """
    nothing = jax.tree.map(jnp.zeros_like, upload)
    names = [] if not hasattr(upload, "_fields") else upload._fields if fields is None else fields
    found = {}
    for name in set(names).intersection(getattr(upload, "_fields", ())):
        given, own = getattr(message, name, getattr(message, _AS_SENT.get(name, ""), None)), getattr(upload, name)
        if _form(given) == _form(own):
            found[name] = jax.tree.map(lambda a: a if is_floating(a) else jnp.zeros_like(a), given)
    return nothing._replace(**found) if found else nothing


def clamped(upload: Tree, nonnegative: Sequence[str] = SECOND_MOMENTS) -> Tree:
    """The upload with 0 in place of negative numbers where there can be none."""
    return tree_map_with_path(lambda path, a: jnp.maximum(a, 0) if is_nonnegative(path, nonnegative) else a, upload)


def is_nonnegative(path: Sequence[Any], nonnegative: Sequence[str]) -> bool:
    """Whether the leaf at a path belongs to a field of the given names.

    Names count in fields of tuples, not in dictionaries: a layer of a model may be called "v".
    """
    names = [key.name for key in path if isinstance(key, GetAttrKey)]
    inside = names[:1] if names and names[0] in VECTORS else names
    return any(name in nonnegative for name in inside)


def upload_form(algorithm: FedAlgorithm, params: Tree) -> Tree:
    """The structure of an upload, as shape and dtype structs: the round of a client whose batches nobody looks into."""

    def trace(params: Tree) -> Tree:
        message, client = algorithm.broadcast(algorithm.init(params)), algorithm.init_client(params)
        return algorithm.client_update(lambda y, batch: (jnp.zeros(()), y), message, client, [()])[0]

    return jax.eval_shape(trace, params)


def _form(tree: Tree) -> Any:
    return jax.tree.structure(tree), [(a.shape, a.dtype) for a in map(_struct, jax.tree.leaves(tree))]


def _struct(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else jnp.asarray(leaf)
