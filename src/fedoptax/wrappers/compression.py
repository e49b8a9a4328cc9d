"""Compressed uploads for any algorithm: fewer bytes up, counted as sent. See docs/compression.md."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import tree_leaves_with_path

from fedoptax import tree
from fedoptax.algorithm import ClientResult, Cohort, FedAlgorithm, GradFn, Minibatches, Tree, check_algorithm, decoded
from fedoptax.errors import UsageError
from fedoptax.wrappers import codecs, uploads
from fedoptax.wrappers.codecs import Codec, Coded
from fedoptax.wrappers.uploads import Message, is_floating

FIELDS = (*uploads.VECTORS, "change")
"""Fields of uploads that are coded; `change` is that of `with_privacy`."""


class CompressionState(NamedTuple):
    """The server: the algorithm's state, and the key of the clients' rounding (`()` if nothing is random)."""

    inner: Tree
    key: Tree


class CompressionClient(NamedTuple):
    """The client: the algorithm's state, and the error of each encoded array."""

    inner: Tree
    unsent: tuple[jax.Array, ...]


def with_compression(algorithm: FedAlgorithm, codec: Codec, seed: int = 0) -> FedAlgorithm:
    """Send uploads coded, each array for itself; the server decodes each before the mean (`FedAlgorithm.decode`).

    Coded are the floating-point arrays of an upload's model-sized vectors, as changes against what the client received
    (see `wrappers.uploads`), where that saves bytes. Except in private uploads, second moments and optimizers'
    states stay as they are: they must not become negative, and errors do not average out. With error feedback (`topk`,
    `sign`) a client adds what it has not sent yet (Wang, Lin, Chen 2022, Algorithm 2, lines 9–10), and so keeps one
    more vector for each that it sends; an upload that is not finite leaves this untouched.

    Args:
      algorithm: any algorithm; with privacy, the private one.
      codec: `codecs.qsgd(...)`, `codecs.topk(...)`, `codecs.sign()` or your own.
      seed: of the rounding, which also draws from each client's key: it is independent from client to client.

    Raises:
      UsageError: no codec, a wrong seed, error feedback with two exchanges per step (Mime), or (when a client runs) an
        upload that is coded, or has none of `FIELDS`.
    """
    check_algorithm(algorithm)
    if not isinstance(codec, Codec):
        raise UsageError(f"codec must be one of fedoptax.codecs, such as codecs.qsgd(), got {codec!r}")
    if codec.feedback and algorithm.exchanges > 1:
        raise UsageError("algorithm must have one exchange per step: what one leaves unsent is not for the other")
    own_params = algorithm.client_params
    words = ~uploads.key_words(seed)  # clients receive this key, which with privacy's seed is not that of the noise
    sends_changes = algorithm.decode is not None  # another wrapper made them

    def coded_places(upload: Tree) -> list[int]:
        leaves = enumerate(tree_leaves_with_path(upload))
        return [i for i, (p, a) in leaves if is_floating(a) and uploads.field_of(p) in FIELDS]

    def init(params: Tree) -> CompressionState:
        return CompressionState(algorithm.init(params), uploads.first_key(words, params) if codec.random else ())

    def init_client(params: Tree) -> Tree:
        inner = algorithm.init_client(params)
        if not codec.feedback:
            return inner
        form = uploads.upload_form(algorithm, params)
        leaves = jax.tree.leaves(form)
        return CompressionClient(inner, tuple(jnp.zeros(leaves[i].shape, leaves[i].dtype) for i in coded_places(form)))

    def broadcast(server: CompressionState) -> Message:
        return Message(algorithm.broadcast(server.inner), server.key)

    def client_update(grad_fn: GradFn, message: Message, client: Tree, batches: Minibatches) -> ClientResult:
        inner = client.inner if codec.feedback else client
        upload, inner, loss = algorithm.client_update(grad_fn, message.inner, inner, batches)
        if any(map(_is_coded, jax.tree.leaves(upload, is_leaf=_is_coded))):
            raise UsageError("algorithm must not compress its uploads already")
        if set(FIELDS).isdisjoint(names := getattr(upload, "_fields", (type(upload).__name__,))):
            raise UsageError(f"algorithm must upload one of {', '.join(FIELDS)}, got {', '.join(names)}")
        change = upload if sends_changes else uploads.change_of(message.inner, upload, FIELDS)
        leaves, structure = jax.tree.flatten(change)
        places = coded_places(upload)
        arrays = [leaves[i] for i in places]
        if codec.feedback:
            arrays = [a + unsent for a, unsent in zip(arrays, client.unsent, strict=True)]
        count = len(places)
        keys = jax.random.split(uploads.client_key(message.added, batches), count) if codec.random else [None] * count
        coded = [codecs.encode_array(codec, a, key) for a, key in zip(arrays, keys)]
        for i, a in zip(places, coded):
            leaves[i] = a
        if codec.feedback:
            left = tuple(a - codecs.decode_array(codec, sent) for a, sent in zip(arrays, coded))
            inner = CompressionClient(inner, tree.select(tree.all_finite(arrays), left, client.unsent))
        return jax.tree.unflatten(structure, leaves), inner, loss

    def decode(sent: Tree) -> Tree:
        return decoded(algorithm, jax.tree.map(lambda node: codecs.decode_array(codec, node), sent, is_leaf=_is_coded))

    def server_update(server: CompressionState, mean: Tree, cohort: Cohort) -> CompressionState:
        if not sends_changes:
            mean = uploads.upload_of(algorithm.broadcast(server.inner), mean, FIELDS)
        key = uploads.split_key(server.key)[0] if codec.random else ()
        return CompressionState(algorithm.server_update(server.inner, mean, cohort), key)

    def client_params(params: Tree, client: CompressionClient) -> Tree:
        return own_params(params, client.inner) if own_params is not None else params

    return algorithm._replace(
        init=init, init_client=init_client, broadcast=broadcast, client_update=client_update,
        server_update=server_update, params=lambda server: algorithm.params(server.inner), decode=decode,
        client_params=client_params if own_params is not None and codec.feedback else own_params,
    )  # fmt: skip


def _is_coded(node: Any) -> bool:
    return isinstance(node, Coded)
