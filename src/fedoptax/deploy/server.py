"""From replies to the server's next state: pure functions, the same whatever carried the replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Cohort, FedAlgorithm, Tree, decoded, weighted_mean
from fedoptax.deploy.wire import WireArray, WireError, shown, unpack
from fedoptax.engine.aggregation import MEAN, Aggregator, stacked
from fedoptax.engine.batches import LocalWork, client_batches, task_grad_fn
from fedoptax.engine.round import all_finite
from fedoptax.tasks.task import Task

LARGEST = float(np.finfo(np.float32).max)  # of a number that is believed: beyond it is infinity as float32


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

    return jax.eval_shape(trace, jax.random.key(0))


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
    return jax.eval_shape(trace, form.message, form.client, jax.random.key(0), one, np.int32(1))


def check_reply(raw: RawReply, upload: Tree, max_examples: int, decode: Callable[[Tree], Tree] | None = None) -> Reply:
    """A reply, believed only after every part of it was compared with what it must be.

    Args:
      raw: the reply.
      upload: the expected upload, as structs.
      max_examples: the largest number of examples that is believed.
      decode: the algorithm's, of coded uploads; what it makes of this one must be finite too.

    Raises:
      WireError: it is an error, the upload is not what is expected, or a number is missing, not finite or out of range.
    """
    if raw.error is not None:
        raise WireError(shown(raw.error))
    examples, loss = raw.numbers.get("num-examples"), raw.numbers.get("train-loss")
    if not isinstance(examples, int) or isinstance(examples, bool) or not 1 <= examples <= max_examples:
        raise WireError(f"num-examples: {shown(examples)} instead of a whole number from 1 to {max_examples}")
    if not isinstance(loss, float) or not believable(loss):
        raise WireError(f"train-loss: {shown(loss)} instead of a finite number of float32")
    sent = unpack(raw.arrays, upload)
    if decode is not None and not all_finite(decode(jax.tree.map(jnp.asarray, sent))):
        raise WireError("upload: NaN or infinity once it is decoded")
    return Reply(sent, loss, examples)


def believable(number: float) -> bool:
    """Whether a number is finite, as float32 too: one client's must not make the mean of all infinite."""
    return abs(number) <= LARGEST


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
    trees = [decoded(algorithm, jax.tree.map(jnp.asarray, reply.upload)) for reply in replies]
    loss = float(np.average([reply.loss for reply in replies], weights=weights))  # float64: no sum of theirs overflows
    upload = weighted_mean(trees, weights)
    if aggregator != MEAN:
        shares = jnp.ones(len(trees)) if weights is None else jnp.asarray(weights, jnp.result_type(float))
        upload = aggregator.combine(stacked(trees), shares, jnp.ones(len(trees), bool))
    server = algorithm.server_update(server, upload, Cohort(len(replies), num_clients))
    return server, loss, bool(all_finite(server)) and bool(np.isfinite(loss))
