"""Algorithms with one fault each, to show that every law can fail."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import fedoptax as fx
from fedoptax import tree
from fedoptax.algorithm import Batches, FedAlgorithm


def _scaled(upload: Any, factor: Any) -> Any:
    return upload._replace(delta=tree.scale(factor, upload.delta))


def _with_upload(algorithm: FedAlgorithm, change: Any) -> FedAlgorithm:
    """`change(upload, batches)` of what the client uploads."""

    def client_update(grad_fn: Any, message: Any, client: Any, batches: Any) -> Any:
        upload, client, loss = algorithm.client_update(grad_fn, message, client, batches)
        return change(upload, batches), client, loss

    return algorithm._replace(client_update=client_update)


def _with_mean(algorithm: FedAlgorithm, change: Any) -> FedAlgorithm:
    """`change(mean)` of what the server receives."""
    return algorithm._replace(server_update=lambda s, mean, cohort: algorithm.server_update(s, change(mean), cohort))


def doubled(lr: float = 0.1) -> FedAlgorithm:
    """Steps twice as far as SGD."""
    return fx.fedavg(lr, 2.0)


def depends_on_order(lr: float = 0.1) -> FedAlgorithm:
    """The second client of a cohort counts more than the first."""
    calls = itertools.count()
    return _with_upload(fx.fedavg(lr), lambda upload, batches: _scaled(upload, 1 + next(calls) % 3))


def takes_the_maximum(lr: float = 0.1) -> FedAlgorithm:
    """Collects the uploads behind the contract's back and takes their maximum instead of the mean."""
    seen: list[Any] = []

    def note(upload: Any, batches: Any) -> Any:
        seen.append(upload.delta)
        return upload

    def largest(mean: Any) -> Any:
        delta = jax.tree.map(lambda *parts: jnp.max(jnp.stack(parts), axis=0), *seen)
        seen.clear()
        return mean._replace(delta=delta)

    return _with_mean(_with_upload(fx.fedavg(lr), note), largest)


def reads_padding(lr: float = 0.1) -> FedAlgorithm:
    """Scales by the mean of a whole minibatch, padded places included."""

    def change(upload: Any, batches: Any) -> Any:
        fields = batches.get(0).examples if isinstance(batches, Batches) else batches[0]
        padded = sum(jnp.mean(a) for name, a in fields.items() if name != "mask")
        return _scaled(upload, 1 + 0.1 * jnp.tanh(padded))

    return _with_upload(fx.fedavg(lr), change)


def promotes(lr: float = 0.1) -> FedAlgorithm:
    """Multiplies by a float32 array: bfloat16 changes are uploaded as float32, twice the bytes."""
    one = jnp.ones((), jnp.float32)

    def change(upload: Any, batches: Any) -> Any:
        return upload._replace(delta=jax.tree.map(lambda a: a * one, upload.delta))

    return _with_upload(fx.fedavg(lr), change)


def recompiles(lr: float = 0.1) -> FedAlgorithm:
    """The server's round comes back weakly typed, another signature than it went in with."""
    base = fx.fedavg(lr)

    def server_update(server: Any, mean: Any, cohort: Any) -> Any:
        server = base.server_update(server, mean, cohort)
        return server._replace(round=jnp.where(server.round > 1, 2, 1))

    return base._replace(server_update=server_update)


def keeps_a_constant(lr: float = 0.1) -> FedAlgorithm:
    """Accepts a traced learning rate and runs with another."""
    return fx.fedavg(lr if isinstance(lr, float) else 0.1)


def counts_steps_in_python(lr: float = 0.1) -> FedAlgorithm:
    """K is counted where the step is traced, once, not where it runs."""
    base = fx.fedavg(lr)

    def client_update(grad_fn: Any, message: Any, client: Any, batches: Any) -> Any:
        steps: list[int] = []

        def counted(params: Any, batch: Any) -> Any:
            steps.append(1)
            return grad_fn(params, batch)

        upload, client, loss = base.client_update(counted, message, client, batches)
        return _scaled(upload, 1 / len(steps)), client, loss

    return base._replace(client_update=client_update)


def counts_on_the_host(lr: float = 0.1) -> FedAlgorithm:
    """The step decays with a counter of the process, which no checkpoint holds."""
    calls = itertools.count()
    count = lambda: np.float32(next(calls))  # noqa: E731

    def change(mean: Any) -> Any:
        return _scaled(mean, 1 / (1 + io_callback(count, jax.ShapeDtypeStruct((), jnp.float32), ordered=True)))

    return _with_mean(fx.fedavg(lr), change)


def hides_its_round(lr: float = 0.1) -> FedAlgorithm:
    """The step decays with a round that is counted in a closure instead of the state."""
    rounds = itertools.count()
    return _with_mean(fx.fedavg(lr), lambda mean: _scaled(mean, 1 / (1 + next(rounds))))


def draws_from_numpy(lr: float = 0.1) -> FedAlgorithm:
    """Adds noise that no key decides."""
    return _with_upload(fx.fedavg(lr), lambda upload, batches: _scaled(upload, 1 + 0.1 * np.random.random()))


def sends_more(lr: float = 0.1) -> FedAlgorithm:
    """Sends the parameters twice, but not while its bytes are counted."""
    base = fx.fedavg(lr)

    def broadcast(server: Any) -> Any:
        message = base.broadcast(server)
        counting = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(server))
        return message if counting else message._replace(lr=server.params)

    return base._replace(broadcast=broadcast)
