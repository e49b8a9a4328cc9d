"""FAFED and STEM: a client without minibatches, and the number of gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fedoptax.algorithm import Batches
from fedoptax.algorithms import fafed, stem
from small_rounds import close, federate, quadratic, scalars


@pytest.mark.parametrize("make", [lambda: stem(0.5), lambda: fafed(0.5), lambda: fafed(0.5, variant="released")])
def test_a_client_without_batches_uploads_the_model_that_it_got(make):
    def towards(params: Any, batch: Any) -> Any:
        return 0.5 * (params["x"] - batch) ** 2, {"x": params["x"] - batch}

    algorithm = make()
    server, _, path = federate(algorithm, scalars(0.0), [[jnp.float32(1.0)]] * 2, 3, towards)
    message = algorithm.broadcast(server)
    upload, _, _ = algorithm.client_update(towards, message, algorithm.init_client(scalars(0.0)), [])
    assert float(path[-1]["x"]) > 0.1
    close(upload.params, message.params)
    close(upload.m, message.m)


def test_fafed_computes_k_gradients_in_round_0_and_2k_later():
    calls: list[Any] = []

    def counted(params: Any, batch: Any) -> tuple[jax.Array, Any]:
        loss, grads = quadratic(params, batch)
        jax.debug.callback(calls.append, loss)
        return loss, grads

    alg, params = fafed(0.1), scalars(3.0)

    @jax.jit
    def work(server: Any, clients: Any) -> Any:
        def one(client: Any, b: jax.Array) -> Any:
            return alg.client_update(counted, alg.broadcast(server), client, Batches(jnp.int32(5), lambda k: (1.0, b)))

        return jax.vmap(one)(clients, jnp.arange(3.0))

    clients = jax.tree.map(lambda a: jnp.stack([a] * 3), alg.init_client(params))
    for t, expected in ((0, 15), (1, 30), (9, 30)):
        calls.clear()
        jax.block_until_ready(work(alg.init(params)._replace(t=jnp.int32(t)), clients))
        jax.effects_barrier()
        assert len(calls) == expected
