"""Clients that send what the test says: each its one minibatch, whose mean the server adds."""

from typing import Any

import jax
import jax.numpy as jnp

import fedoptax as fx
from fedoptax import tree
from fedoptax.algorithm import FedAlgorithm, decoded


def sender() -> FedAlgorithm:
    """FedAvg, whose clients send their one minibatch as their change, by `echo`."""
    return fx.fedavg(1.0)


def echo(params: Any, batch: Any) -> Any:
    """The gradient is minus the minibatch."""
    return jnp.zeros(()), tree.scale(-1, batch)


def a_round(algorithm: FedAlgorithm, server: Any, own: list[Any], num_clients: Any = None) -> Any:
    """A round in which client i sends `own[i]`; returns server, clients, info."""
    clients = [algorithm.init_client(algorithm.params(server)) for _ in own]
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
