"""The round of clients that each work at their own pace: a server step over uploads that began with earlier models.

`engine.schedule` plans which clients' uploads arrive for each step. For SGD at the server the step is that of FedBuff
(Nguyen et al. 2022), the mean of s(τᵢ) Δᵢ; for uploads of parameters it is FedAsync's mixing (Xie et al. 2019).
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import Cohort, FedAlgorithm, Tree, accumulate_result
from fedoptax.engine import round as plain
from fedoptax.engine.plan import Plan
from fedoptax.tasks.task import Task


def asynchronous_round(task: Task, algorithm: FedAlgorithm, plan: Plan, is_eager: bool = False) -> plain.RunRound:
    """Make the round of the uploads in `arrivals`.

    In place of the clients' states, which keep nothing, are the messages that were sent and are still in use, stacked:
    each member trains from its own. With s̄ the mean of the uploads' staleness weights, the server moves by the share s̄
    of its step, (1 − s̄)·old + s̄·new.
    """
    train_cohort = plain.cohort_training(task, algorithm, plan, is_eager)

    def run(server: Tree, messages: Tree, inputs: plain.RoundInput) -> plain.RoundResult:
        arrivals, members = inputs.arrivals, plain.members_of(task, plan, inputs)
        messages = plain.put_rows(messages, jnp.asarray(arrivals.slot), algorithm.broadcast(server))
        weights, share = discount_weights(members.weight, arrivals.weights)
        members = members._replace(weight=weights, slot=jnp.asarray(arrivals.slots))
        total, _, form = train_cohort(inputs, members, (), lambda member: tree.take(messages, member.slot))
        upload, loss = accumulate_result(total, form)
        step = algorithm.server_update(server, upload, Cohort(plan.cohort_size, task.num_clients))
        result = plain.finish(server, interpolate_state(share, server, step), loss, (), members.row, ())
        return result._replace(clients=messages)

    return run


def discount_weights(weights: Any, by_staleness: Any) -> tuple[jax.Array, jax.Array]:
    """The weights of late uploads, which sum to 1 as `weights` do, and 1 − s̄, see `asynchronous_round`."""
    old_share = jnp.sum(weights * (1 - by_staleness))
    return weights * by_staleness / (1 - old_share), old_share


def interpolate_state(old_share: jax.Array, old: Tree, new: Tree) -> Tree:
    """A server's state whose numbers are old_share·old + (1 − old_share)·new; counters are the new ones."""

    def leaf(o: jax.Array, n: jax.Array) -> jax.Array:
        return tree.ema(old_share, o, n) if jnp.issubdtype(n.dtype, jnp.inexact) else n

    return jax.tree.map(leaf, old, new)
