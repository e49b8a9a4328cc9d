"""The smallest algorithm: each client sends its first gradient as its change, and the server adds the mean."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import fedoptax as fx
from fedoptax import tree
from fedoptax.algorithm import FedAlgorithm, decoded


class Server(NamedTuple):
    params: Any


class Upload(NamedTuple):
    delta: Any


def sender() -> FedAlgorithm:
    def client_update(grad_fn: Any, message: Any, client: Any, batches: Any) -> Any:
        loss, own = grad_fn(message.params, batches[0])
        return Upload(own), client, loss

    def server_update(server: Server, mean: Upload, cohort: Any) -> Server:
        return Server(tree.add_scaled(server.params, 1, mean.delta))

    return FedAlgorithm(Server, lambda params: (), lambda s: s, client_update, server_update, lambda s: s.params)


def echo(params: Any, batch: Any) -> Any:
    """The gradient is the minibatch."""
    return jnp.zeros(()), batch


def a_round(algorithm: FedAlgorithm, server: Any, own: list[Any], clients: Any = None, num_clients: Any = None) -> Any:
    """A round in which client i sends `own[i]`; returns server, clients, info."""
    clients = [algorithm.init_client(algorithm.params(server)) for _ in own] if clients is None else clients
    return fx.eager.run_round(algorithm, echo, server, clients, [[a] for a in own], None, num_clients)


def stacked_round(algorithm: FedAlgorithm, server: Any, own: Any) -> Any:
    """The server's state after a round of many clients, whose vectors are stacked: quicker to compile."""
    message, params = algorithm.broadcast(server), algorithm.params(server)

    def one(own: Any) -> Any:
        return decoded(algorithm, algorithm.client_update(echo, message, algorithm.init_client(params), [own])[0])

    mean = jax.tree.map(lambda a: jnp.mean(a, axis=0), jax.vmap(one)(own))
    size = len(jax.tree.leaves(own)[0])
    return algorithm.server_update(server, mean, fx.Cohort(size, size))


def leaf(value: Any) -> jax.Array:
    return jnp.asarray(value, jnp.float32)
