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


class RawReply(NamedTuple):
    """What a node sent back, unchecked: named arrays and named numbers; or `error`, why there are none."""

    arrays: Mapping[str, WireArray]
    numbers: Mapping[str, Any]
    error: str | None = None


class Reply(NamedTuple):
    """A client's sound reply."""

    upload: Tree
    loss: float
    examples: int


class Forms(NamedTuple):
    """The structures of an algorithm's client state and message on a task, as shape and dtype structs."""

    client: Tree
    message: Tree


def forms(task: Task, algorithm: FedAlgorithm) -> Forms:
    """Return the structures by abstract evaluation: nothing is computed."""

    def trace(key: jax.Array) -> Forms:
        params = task.init(key)
        return Forms(algorithm.init_client(params), algorithm.broadcast(algorithm.init(params)))

    return jax.eval_shape(trace, jax.random.key(0))


def upload_form(task: Task, algorithm: FedAlgorithm, work: LocalWork) -> Tree:
    """Return the structure of an upload, likewise."""
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
    """Return a reply after every part of it was compared with what it must be.

    Args:
      raw: the reply.
      upload: the expected upload, as structs.
      max_examples: the largest number of examples that is believed.
      decode: the algorithm's, of coded uploads; the decoded upload must be finite too.

    Raises:
      WireError: it is an error, the upload is not what is expected, or a number is missing, not finite or out of range.
    """
    if raw.error is not None:
        raise WireError(shown(raw.error))
    examples, loss = check_count(raw.numbers, max_examples), raw.numbers.get("train-loss")
    if not isinstance(loss, float) or not is_float32(loss):
        raise WireError(f"train-loss: {shown(loss)} instead of a finite number of float32")
    tree = unpack(raw.arrays, upload)
    if decode is not None and not all_finite(decode(jax.tree.map(jnp.asarray, tree))):
        raise WireError("upload: NaN or infinity once it is decoded")
    return Reply(tree, loss, examples)


def check_count(numbers: Mapping[str, Any], max_examples: int) -> int:
    """Return the number of examples that a reply claims.

    Raises:
      WireError: it is missing, or not a whole number from 1 to `max_examples`.
    """
    count = numbers.get("num-examples")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= max_examples:
        raise WireError(f"num-examples: {shown(count)} instead of a whole number from 1 to {max_examples}")
    return count


def is_float32(number: float) -> bool:
    """Return whether a number is finite in float32: one client's loss must not make the mean of all infinite."""
    return abs(number) <= float(np.finfo(np.float32).max)


def next_state(
    algorithm: FedAlgorithm,
    server: Tree,
    replies: Sequence[Reply],
    weighting: str,
    num_clients: int,
    aggregator: Aggregator = MEAN,
) -> tuple[Tree, float, bool]:
    """Return the server's state after a round with these replies, in the cohort's order.

    Clients without a reply count as if they had not been asked: |S| is the number of replies, and the weights are
    renormalised over them. There are at least as many replies as the aggregator needs.

    Returns:
      The new state, the weighted mean training loss, and whether both are finite.
    """
    weights = [reply.examples for reply in replies] if weighting == "examples" else None
    trees = [decoded(algorithm, jax.tree.map(jnp.asarray, reply.upload)) for reply in replies]
    loss = float(np.average([reply.loss for reply in replies], weights=weights))  # float64: their sum cannot overflow
    if aggregator == MEAN:
        upload = weighted_mean(trees, weights)
    else:
        shares = jnp.ones(len(trees)) if weights is None else jnp.asarray(weights, jnp.result_type(float))
        upload = aggregator.combine(stacked(trees), shares, jnp.ones(len(trees), bool))
    server = algorithm.server_update(server, upload, Cohort(len(replies), num_clients))
    return server, loss, bool(all_finite(server)) and bool(np.isfinite(loss))
