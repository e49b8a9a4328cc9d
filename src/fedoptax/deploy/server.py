"""From replies to the server's next state: pure functions, the same whatever carried the replies."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Cohort, FedAlgorithm, Tree, weighted_mean
from fedoptax.deploy.wire import WireError, quote, unpack
from fedoptax.engine.aggregation import MEAN, Aggregator, stacked
from fedoptax.engine.batches import LocalWork, count_local_steps
from fedoptax.engine.schedule import staleness_weights
from fedoptax.engine.variants import discount_weights, interpolate_state
from fedoptax.tasks.task import Task
from fedoptax.tree import all_finite


class RawReply(NamedTuple):
    """An unchecked reply of a node: packed arrays and named numbers; or `error`, why there are none."""

    arrays: bytes
    numbers: Mapping[str, Any]
    error: str | None = None


class Reply(NamedTuple):
    """A client's valid reply, its upload decoded; `staleness` is the age of its model in rounds."""

    upload: Tree
    loss: float
    examples: int
    staleness: int = 0


def forms(task: Task, algorithm: FedAlgorithm) -> tuple[Tree, Tree]:
    """Return the structures of a client's state and of the message to it, by abstract evaluation."""
    params = jax.eval_shape(task.init, jax.random.key(0))
    return jax.eval_shape(lambda p: (algorithm.init_client(p), algorithm.broadcast(algorithm.init(p))), params)


def check_reply(raw: RawReply, upload: Tree, max_examples: int, decode: Callable[[Tree], Tree] | None = None) -> Reply:
    """Return a reply after checking every part of it.

    `upload` are the structs of the expected upload, and `decode` is the algorithm's if uploads are coded. Another
    structure, or a number that is missing, not finite or out of range, is a `WireError`.
    """
    examples, loss = check_count(raw.numbers, max_examples), raw.numbers.get("train-loss")
    # in float32, or one client's loss could make the mean of all infinite
    if not isinstance(loss, float) or not abs(loss) <= float(np.finfo(np.float32).max):
        raise WireError(f"train-loss: {quote(loss)} instead of a finite number of float32")
    tree = unpack(raw.arrays, upload)
    if decode is not None:
        tree = decode(jax.tree.map(jnp.asarray, tree))
        if not all_finite(tree):
            raise WireError("upload: NaN or infinity once it is decoded")
    return Reply(tree, loss, examples)


def check_count(numbers: Mapping[str, Any], max_examples: int) -> int:
    """Return the number of examples that a reply claims; a `WireError` unless it is from 1 to `max_examples`."""
    count = numbers.get("num-examples")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= max_examples:
        raise WireError(f"num-examples: {quote(count)} instead of a whole number from 1 to {max_examples}")
    return count


@dataclass(frozen=True)
class UploadBound:
    """How large an upload or a loss may be, learned from the run.

    A norm may be `factor` times the largest median norm of a round so far, so that a client with few or hard examples
    is no outlier among others that have converged; or `factor` times its steps times the largest median norm per step,
    as more steps go further. Medians are the lower ones, so that of two the larger is refused, and at least 1. A loss,
    which changes no model, may be 100 times as large. `norm`, `rate` and `loss` are the largest medians so far.
    """

    factor: float  # 0 allows everything
    work: LocalWork  # tells the steps of a client
    norm: float = 0.0
    rate: float = 0.0
    loss: float = 0.0

    def learn(self, replies: Mapping[Any, Reply], norms: Mapping[Any, float] | None = None) -> "UploadBound":
        """Return the bound after a round with these replies; `norms` are those of their uploads, if already known."""
        norms = norms or {key: norm(reply.upload) for key, reply in replies.items()}
        return replace(
            self,
            norm=max(self.norm, median_low(norms.values())),
            rate=max(self.rate, median_low(norms[key] / self._steps(reply) for key, reply in replies.items())),
            loss=max(self.loss, median_low(abs(reply.loss) for reply in replies.values())),
        )

    def refuse(self, reply: Reply, size: float) -> str | None:
        """Return why an upload of norm `size` is too large, or None."""
        steps = self._steps(reply)
        for what, value, factor, learned in (
            ("upload: norm", size, self.factor, max(self.norm, self.rate * steps)),
            ("train-loss:", abs(reply.loss), 100 * self.factor, self.loss),
        ):
            if factor and value > (most := factor * max(1.0, learned)):
                return f"{what} {value:.3g} instead of at most {most:.3g}, {factor:g} times the run's for {steps} steps"
        return None

    def find_outliers(self, replies: Mapping[Any, Reply]) -> dict[Any, str]:
        """Return the replies of a round that are out of all proportion, each with its reason in one line."""
        norms = {key: norm(reply.upload) for key, reply in replies.items()}
        bound = self.learn(replies, norms)
        return {key: reason for key, reply in replies.items() if (reason := bound.refuse(reply, norms[key]))}

    def _steps(self, reply: Reply) -> int:
        return int(count_local_steps(np.asarray(reply.examples), self.work))


def norm(upload: Tree) -> float:
    """Return the 2-norm over all leaves together; in float64, where no square of a float32 overflows."""
    return math.hypot(*(np.linalg.norm(np.abs(leaf).astype(np.float64)) for leaf in jax.tree.leaves(upload)))


def next_state(
    algorithm: FedAlgorithm,
    server: Tree,
    replies: Sequence[Reply],
    weighting: str,
    num_clients: int,
    aggregator: Aggregator = MEAN,
    staleness_exponent: float = 0.0,
) -> tuple[Tree, float, bool]:
    """Return the server's state after a round with these replies, in the cohort's order.

    Clients without a reply count as if they had not been asked: |S| is the number of replies, at least as many as the
    aggregator needs, and the weights are renormalised over them. Where replies are stale the step is that of
    `engine.variants.asynchronous_round`.

    Returns:
      The new state, the weighted mean training loss, and whether both are finite, also after one more such update.
    """
    shares = np.array([reply.examples if weighting == "examples" else 1 for reply in replies], float)
    by_staleness = staleness_weights(np.asarray([reply.staleness for reply in replies]), staleness_exponent)
    weights, old_share = discount_weights(shares / shares.sum(), by_staleness)
    trees = [jax.tree.map(jnp.asarray, reply.upload) for reply in replies]
    loss = float(np.average([reply.loss for reply in replies], weights=weights))  # float64: their sum cannot overflow
    if aggregator == MEAN:
        upload = weighted_mean(trees, weights)
    else:
        upload = aggregator.combine(stacked(trees), jnp.asarray(weights), jnp.ones(len(trees), bool))
    return advance(algorithm, server, upload, loss, Cohort(len(replies), num_clients), old_share)


def advance(
    algorithm: FedAlgorithm, server: Tree, upload: Tree, loss: float, cohort: Cohort, old_share: Any = 0.0
) -> tuple[Tree, float, bool]:
    """Return the server's state after a round with this mean, as `next_state` does."""

    def update(old: Tree) -> Tree:
        new = algorithm.server_update(old, upload, cohort)
        return interpolate_state(old_share, old, new) if old_share else new

    server = update(server)
    following = update(server)  # may be the first to use what was uploaded now
    return server, loss, bool(all_finite((server, following))) and bool(np.isfinite(loss))
