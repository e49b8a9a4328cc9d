"""From replies to the server's next state: pure functions, the same whatever carried the replies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax import threefry
from fedoptax.algorithm import Cohort, FedAlgorithm, Tree, decoded, weighted_mean
from fedoptax.deploy.wire import WireArray, WireError, shown, unpack
from fedoptax.engine.aggregation import MEAN, Aggregator, stacked
from fedoptax.engine.local import LocalWork, client_batches, task_grad_fn
from fedoptax.engine.round import all_finite
from fedoptax.task import Task


class RawReply(NamedTuple):
    """What a node sent back, unchecked: named arrays and named numbers; or `error`, why there are none."""

    arrays: Mapping[str, WireArray]
    numbers: Mapping[str, Any]
    error: str | None = None


class Reply(NamedTuple):
    """A client's reply that was found sound."""

    upload: Tree
    loss: float
    examples: int


class Forms(NamedTuple):
    """The structures of an algorithm on a task, as shape and dtype structs: what is kept, and what is sent down."""

    server: Tree
    client: Tree
    message: Tree


def forms(task: Task, algorithm: FedAlgorithm) -> Forms:
    """The structures of the states and of the message, by abstract evaluation: nothing is computed."""

    def trace(key: jax.Array) -> Forms:
        params = task.init(key)
        server = algorithm.init(params)
        return Forms(server, algorithm.init_client(params), algorithm.broadcast(server))

    return jax.eval_shape(trace, threefry.key(0))


def upload_form(task: Task, algorithm: FedAlgorithm, work: LocalWork) -> Tree:
    """The structure of an upload, likewise."""
    form = forms(task, algorithm)

    def trace(message: Tree, client: Tree, key: jax.Array, examples: Tree, n: jax.Array) -> Tree:
        batches = client_batches(examples, n, n, key, work, 1)
        return algorithm.client_update(task_grad_fn(task), message, client, batches)[0]

    one = {
        name: jax.ShapeDtypeStruct((1, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype))
        for name, array in task.clients.examples.items()
    }
    return jax.eval_shape(trace, form.message, form.client, threefry.key(0), one, np.int32(1))


def check_reply(raw: RawReply, upload: Tree, max_examples: int) -> Reply:
    """A reply, believed only after every part of it was compared with what it must be.

    Args:
      raw: the reply.
      upload: the expected upload, as structs.
      max_examples: the largest number of examples that is believed.

    Raises:
      WireError: it is an error, the upload is not what is expected, or a number is missing, not finite or out of range.
    """
    if raw.error is not None:
        raise WireError(shown(raw.error))
    examples, loss = raw.numbers.get("num-examples"), raw.numbers.get("train-loss")
    if not isinstance(examples, int) or isinstance(examples, bool) or not 1 <= examples <= max_examples:
        raise WireError(f"num-examples: {shown(examples)} instead of a whole number from 1 to {max_examples}")
    if not isinstance(loss, float) or not math.isfinite(loss):
        raise WireError(f"train-loss: {shown(loss)} instead of a finite number")
    return Reply(unpack(raw.arrays, upload), loss, examples)


def next_state(
    algorithm: FedAlgorithm,
    server: Tree,
    replies: Sequence[Reply],
    weighting: str,
    num_clients: int,
    aggregator: Aggregator = MEAN,
) -> tuple[Tree, float, bool]:
    """The server's state after a round in which `replies` came, in the cohort's order.

    Those that did not come count as if they had not been asked: |S| is the number of replies, and the weights are
    renormalised over them. There are at least as many replies as the aggregator needs.

    Returns:
      The new state, the weighted mean training loss, and whether both are finite.
    """
    weights = [reply.examples for reply in replies] if weighting == "examples" else None
    trees = [
        (decoded(algorithm, jax.tree.map(jnp.asarray, reply.upload)), jnp.float32(reply.loss)) for reply in replies
    ]
    upload, loss = weighted_mean(trees, weights)
    if aggregator != MEAN:
        shares = jnp.ones(len(trees)) if weights is None else jnp.asarray(weights, jnp.result_type(float))
        upload = aggregator.combine(stacked([tree for tree, _ in trees]), shares, jnp.ones(len(trees), bool))
    server = algorithm.server_update(server, upload, Cohort(len(replies), num_clients))
    return server, float(loss), bool(all_finite(server)) and bool(np.isfinite(loss))
