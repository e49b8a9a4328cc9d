"""`with_compression`: the coded fields, error feedback, independent rounding, the wire, nesting."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax import tree
from fedoptax.algorithm import BatchList, decoded
from fedoptax.wrappers import uploads
from fedoptax.wrappers.codecs import Coded
from refusals import refused
from sending import a_round, echo, leaf, sender
from small_rounds import ALL, close, every, federate, model

codecs = fx.codecs
DATA = [[(1.0, -1.0), (2.0, 0.5)], [(3.0, 2.0)]]
HALF = codecs.Codec("half", lambda a, key: {"a": a.astype(jnp.float16)}, lambda p, size: p["a"], False, True)


def update(algorithm: Any, server: Any, client: Any, own: Any) -> Any:
    """(upload, client) of a client that sends `own`."""
    return algorithm.client_update(echo, algorithm.broadcast(server), client, [own])[:2]


@every
def test_an_accurate_codec_changes_little_in_any_algorithm(name):
    """Half precision of the changes, with error feedback."""
    algorithm = ALL[name](0.05)
    if algorithm.exchanges > 1:  # what one exchange leaves unsent is not for the other
        return refused(lambda: fx.with_compression(algorithm, HALF), "one exchange")
    coded = fx.with_compression(algorithm, HALF)
    assert coded.weighting == algorithm.weighting and coded.epsilon is None
    server, clients, path = federate(coded, model(), DATA, 3)
    plain_server, plain_clients, plain_path = federate(algorithm, model(), DATA, 3)
    close((server.inner, [c.inner for c in clients], path), (plain_server, plain_clients, plain_path), 3e-3, 3e-3)
    assert any(np.any(a) for client in clients for a in client.unsent)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("fafed", {"params", "m"}), ("scaffold", {"delta", "control_delta"}), ("mimelite", {"delta", "gradient"}),
     ("fedlamb", {"params"}), ("lookahead", {"delta"}), ("naive_adaptive", {"params"})],
)  # fmt: skip
def test_the_models_vectors_are_coded_and_second_moments_are_not(name, expected):
    upload = uploads.upload_form(fx.with_compression(ALL[name](0.1), codecs.sign()), {"w": jnp.ones((8, 8))})
    leaves = {n: jax.tree.leaves(part, is_leaf=lambda a: isinstance(a, Coded)) for n, part in upload._asdict().items()}
    assert {n for n, arrays in leaves.items() if any(isinstance(a, Coded) for a in arrays)} == expected


@pytest.mark.parametrize(
    "codec", [codecs.topk(0.1), pytest.param(codecs.sign(), marks=pytest.mark.long)], ids=lambda c: c.name
)
def test_decoded_uploads_and_the_residual_sum_to_the_changes(codec):
    """Σ decoded + the last residual = Σ changes, for two leaves of which one is too small to code."""
    algorithm = fx.with_compression(sender(), codec)
    start = {"a": jnp.zeros((6, 10)), "b": jnp.zeros(1)}
    server, client = algorithm.init(start), algorithm.init_client(start)
    send = jax.jit(lambda client, own: update(algorithm, server, client, own))
    total, arrived = tree.zeros_like(start), tree.zeros_like(start)
    for key in jax.random.split(jax.random.key(0), 12):
        own = {"a": jnp.round(64 * jax.random.normal(key, (6, 10))), "b": jnp.ones(1)}
        sent, client = send(client, own)
        total, arrived = tree.add_scaled(total, 1, own), tree.add_scaled(arrived, 1, decoded(algorithm, sent).delta)
    left = dict(zip(start, client.unsent))
    close(tree.add_scaled(arrived, 1, left), total, rtol=1e-6, atol=1e-3)
    assert float(jnp.abs(left["a"]).max()) > 10 and float(left["b"][0]) == 0
    assert float(arrived["b"][0]) == 12


def test_an_upload_that_is_not_finite_leaves_the_residual_untouched():
    algorithm = fx.with_compression(sender(), codecs.topk(0.2))
    server, client = algorithm.init(jnp.zeros(5)), algorithm.init_client(jnp.zeros(5))
    _, client = update(algorithm, server, client, leaf([3.0, 2.0, 1.0, 0.0, 0.0]))
    upload, after = update(algorithm, server, client, leaf([0.0, np.nan, 0.0, 0.0, 0.0]))
    assert np.isnan(decoded(algorithm, upload).delta).any()
    close(after, client, rtol=0, atol=0)


def test_clients_and_rounds_are_rounded_independently():
    """Equal changes of clients whose keys differ: the mean's error falls as 1/√|S|."""
    algorithm = fx.with_compression(sender(), codecs.qsgd(2, 64))
    own = 0.1 + jax.random.uniform(jax.random.key(1), (64,))

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0))
    def decoded_uploads(message: Any, key: jax.Array) -> jax.Array:
        return decoded(algorithm, algorithm.client_update(echo, message, (), BatchList([own], key))[0]).delta

    server, errors, keys = algorithm.init(jnp.zeros(64)), [], jax.random.split(jax.random.key(2), 24)
    for _ in range(2):
        errors.append(np.asarray(decoded_uploads(algorithm.broadcast(server), keys) - own))
        server, _, _ = a_round(algorithm, server, [own])
    single = np.sqrt((errors[0] ** 2).mean())
    together = np.sqrt((errors[0].mean(axis=0) ** 2).mean())
    assert single / np.sqrt(24) / 1.6 < together < 1.6 * single / np.sqrt(24)
    assert not any(np.array_equal(a, b) for a, b in zip(*errors))
    same = [decoded_uploads(algorithm.broadcast(algorithm.init(jnp.zeros(64))), keys[:1]) for _ in range(2)]
    np.testing.assert_array_equal(*same)


def test_places_outside_an_array_are_ignored():
    codec = codecs.topk(0.2)
    sent = {"values": leaf([1.0, 2.0]), "places": jnp.asarray([1000, 3], jnp.int32)}
    assert list(map(float, codec.decode(sent, 10))) == [0, 0, 0, 2, 0, 0, 0, 0, 0, 0]
