"""Common code of privacy and compression: changes of uploads, second moments, and keys in states.

Some algorithms send a change (FedOpt's Δ), others a new value of what they were sent (FAFED's x, m, v). Clipping, noise
and coding want the change in either case, so the wrappers send the difference from the message, and the server adds the
message's part to the mean again. This is exact, because the weights of a mean sum to 1. In asynchronous rounds a change
is of an older message than the one it is added to, as FedBuff has it for every algorithm.

A key is stored as the two uint32 words of a Threefry key, so that states are plain arrays.
"""

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey

from fedoptax import tree
from fedoptax.algorithm import BatchList, FedAlgorithm, Minibatches, Tree
from fedoptax.errors import UsageError, check_int

VECTORS = ("delta", "params", "control_delta", "gradient", "m")
"""Fields of this package's uploads that are shaped like the model and may have any sign."""
SECOND_MOMENTS = ("v", "nu")
"""Fields, of uploads and of the optimizers' states in them, that hold second moments: never negative."""
_SHARED = ("v", "client_opt_state")
"""Fields of uploads that start from what clients share: of Local AMSGrad and Fed-LAMB v from v̂."""


class Message(NamedTuple):
    """An algorithm's message, and the wrapper's part (`()` if none)."""

    inner: Tree
    added: Tree

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


def change_of(message: Tree, upload: Tree, fields: Sequence[str] | None = None) -> Tree:
    """The part of an upload that the server does not know: the upload minus `known_part`."""
    return tree.sub(upload, known_part(message, upload, fields))


def upload_of(message: Tree, change: Tree, fields: Sequence[str] | None = None) -> Tree:
    """The upload of a change, or the mean upload of a mean change: the inverse of `change_of`."""
    return tree.add(change, known_part(message, change, fields))


def known_part(message: Tree, upload: Tree, fields: Sequence[str] | None = None) -> Tree:
    """The message's values in the places of an upload's floating-point leaves, field by field; 0 elsewhere.

    A field (of `fields`; None is all) is known if the message has one of its name and form.
    """
    if not (names := getattr(upload, "_fields", ())):
        raise UsageError(f"algorithm must upload a NamedTuple with `delta` or `params`, got {type(upload).__name__}")
    nothing, shared, known = tree.zeros_like(upload), getattr(message, "shared", None), {}
    for name in names if fields is None else set(names).intersection(fields):
        places = getattr(message, name, None), shared if name in _SHARED else None, getattr(shared, name, None)
        received = [place for place in places if _form(place) == _form(getattr(upload, name))]
        if received:
            known[name] = jax.tree.map(lambda a: a if is_floating(a) else jnp.zeros_like(a), received[0])
        elif name == "params":
            raise UsageError("algorithm must send its parameters in a field 'params', as it uploads them")
    return nothing._replace(**known) if known else nothing


def _form(tree: Tree) -> Any:
    return jax.tree.structure(tree), [(jnp.shape(a), jnp.result_type(a)) for a in jax.tree.leaves(tree)]


def upload_form(algorithm: FedAlgorithm, params: Tree, batch: Tree = ()) -> Tree:
    """The structure of an upload, as shape and dtype structs, from a round with one batch, or its form."""

    def run_round(params: Tree, batch: Tree) -> Tree:
        message, client = algorithm.broadcast(algorithm.init(params)), algorithm.init_client(params)
        batches = BatchList([batch], jax.random.key(0))
        return algorithm.client_update(lambda y, batch: (jnp.zeros(()), y), message, client, batches)[0]

    return jax.eval_shape(run_round, params, batch)


def is_nonnegative(path: Sequence[Any], nonnegative: Sequence[str]) -> bool:
    """Whether the leaf at a path belongs to a field of the given names.

    Names count in fields of tuples, not in dictionaries: a layer of a model may be called "v".
    """
    names = [key.name for key in path if isinstance(key, GetAttrKey)]
    inside = names[:1] if names and names[0] in VECTORS else names
    return any(name in nonnegative for name in inside)


def key_words(seed: int | None) -> np.ndarray:
    """The key of a seed, uint32 (2,); None draws 64 bits from the operating system."""
    seed = secrets.randbits(64) if seed is None else check_int("seed", seed, 0, 2**64 - 1)
    return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


def first_key(words: np.ndarray, params: Tree) -> jax.Array:
    """The stored key before round 0. It depends on the initial parameters too, so runs of other seeds differ."""
    bits = [jax.lax.bitcast_convert_type(jnp.real(a).astype(jnp.float32), jnp.uint32) for a in jax.tree.leaves(params)]
    total = sum((jnp.sum(a, dtype=jnp.uint32) for a in bits), jnp.uint32(0))
    return jax.random.key_data(jax.random.fold_in(_key(jnp.asarray(words)), total))


def split_key(stored: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The stored key of the next round, and a key to use in this one, from which the former cannot be computed."""
    following, use = jax.random.split(_key(stored))
    return jax.random.key_data(following), use


def client_key(stored: jax.Array, batches: Minibatches) -> jax.Array:
    """A key for one client in one round: the message's, mixed with that of `batches` (a plain list has none)."""
    key = getattr(batches, "key", None)
    key = jax.random.key(0) if key is None else key
    return jax.random.fold_in(_key(stored), jax.random.bits(key, (), jnp.uint32))


def _key(words: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(words, impl="threefry2x32")
