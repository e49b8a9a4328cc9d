"""The rounds in which clients fail and uploads are rejected, and those of clients that each work at their own pace.

`engine.schedule` plans whose uploads arrive for each asynchronous step. For SGD at the server the step is that of
FedBuff (Nguyen et al. 2022), the mean of s(τᵢ) Δᵢ; for uploads of parameters it is FedAsync's mixing (Xie et al. 2019).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import Cohort, FedAlgorithm, Tree, accumulate_result, cond
from fedoptax.engine import round as rounds
from fedoptax.engine.aggregation import MEAN, Aggregator, Mean, Sent
from fedoptax.engine.faults import COUNTS, sample_outcomes, virtual_seconds
from fedoptax.engine.plan import Plan
from fedoptax.engine.xla import as_bits
from fedoptax.tasks.task import Task


def checked_round(task: Task, algorithm: FedAlgorithm, plan: Plan, is_eager: bool = False) -> rounds.RunRound:
    """Make the round in which members fail at some rates.

    The upload of a member that fails, or that is not finite, does not count: weights are renormalised over the others,
    |S| is their number, and its client's state stays. A round with fewer uploads than the aggregator needs changes
    nothing.
    """
    prepare = plan.aggregate.prepare if isinstance(plan.aggregate, Mean) else lambda upload: upload

    def train_member(member: rounds.Member, state: Tree, train: Any, forms: Tree) -> tuple[Sent, rounds.MemberResult]:
        answers = member.outcome.answers
        (upload, loss), new_state = cond(answers, train, partial(tree.zeros_like, forms))
        accepted = answers & jnp.isfinite(loss) & tree.all_finite(upload)
        return Sent(prepare(upload), loss), rounds.MemberResult(tree.select(accepted, new_state, state), accepted)

    train_cohort = rounds.cohort_training(task, algorithm, plan, is_eager, train_member)

    def run(server: Tree, clients: Tree, inputs: rounds.RoundInput) -> rounds.RoundResult:
        members, message = rounds.members_of(task, plan, inputs), algorithm.broadcast(server)
        outcome = sample_outcomes(inputs.rates, inputs.key, inputs.round, members.client, members.steps)
        members = members._replace(outcome=outcome)
        sent, (states, accepted), form = train_cohort(inputs, members, clients, lambda member: message)
        total, weight = _combine(plan.aggregate, members, sent, accepted, form)
        upload, loss = accumulate_result(total, form)
        count = jnp.sum(accepted)
        is_enough = (count >= plan.aggregate.min_uploads) & (weight > 0)
        new_server = algorithm.server_update(server, upload, Cohort(count, task.num_clients))
        result = rounds.finish(server, new_server, loss, clients, members.row, states, is_enough)
        counts = [jnp.sum(a) for a in (accepted, outcome.dropped, outcome.late, outcome.answers & ~accepted)]
        counted = dict(zip(COUNTS, counts)) | {"virtual_seconds": virtual_seconds(inputs.rates, outcome)}
        return result._replace(columns=result.columns | jax.tree.map(as_bits, counted))

    return run


def asynchronous_round(task: Task, algorithm: FedAlgorithm, plan: Plan, is_eager: bool = False) -> rounds.RunRound:
    """Make the round of the uploads in `arrivals`.

    In place of the clients' states, which keep nothing, are the messages that were sent and are still in use, stacked:
    each member trains from its own. With s̄ the mean of the uploads' staleness weights, the server moves by the share s̄
    of its step, (1 − s̄)·old + s̄·new.
    """
    train_cohort = rounds.cohort_training(task, algorithm, plan, is_eager)

    def run(server: Tree, messages: Tree, inputs: rounds.RoundInput) -> rounds.RoundResult:
        arrivals: Any = inputs.arrivals
        members = rounds.members_of(task, plan, inputs)
        messages = tree.put(messages, jnp.asarray(arrivals.slot), algorithm.broadcast(server))
        weights, share = discount_weights(members.weight, arrivals.weights)
        members = members._replace(weight=weights, slot=jnp.asarray(arrivals.slots))
        total, _, form = train_cohort(inputs, members, (), lambda member: tree.take(messages, member.slot))
        upload, loss = accumulate_result(total, form)
        step = algorithm.server_update(server, upload, Cohort(plan.cohort_size, task.num_clients))
        result = rounds.finish(server, interpolate_state(share, server, step), loss, (), members.row, ())
        return result._replace(clients=messages)

    return run


def discount_weights(weights: Any, by_staleness: Any) -> tuple[jax.Array, jax.Array]:
    """The weights of late uploads, which sum to 1 as `weights` do, and 1 − s̄, see `asynchronous_round`."""
    late = weights * by_staleness
    share = jnp.sum(late)
    return late / jnp.maximum(share, jnp.finfo(share.dtype).tiny), 1 - share


def interpolate_state(old_share: jax.Array, old: Tree, new: Tree) -> Tree:
    """Return old_share·old + (1 − old_share)·new of the numbers of a server's state, and its new counters."""
    return jax.tree.map(lambda o, n: tree.ema(old_share, o, n) if jnp.issubdtype(n.dtype, jnp.inexact) else n, old, new)


def _combine(
    aggregator: Aggregator, members: rounds.Member, sent: Sent, accepted: jax.Array, form: Sent
) -> tuple[Sent, jax.Array]:
    """Combine the accepted uploads; return with the result the sum of their weights."""
    weight = jnp.sum(jnp.where(accepted, members.weight, 0))
    if isinstance(aggregator, Mean):
        return aggregator.divide(sent, jnp.maximum(weight, jnp.finfo(weight.dtype).tiny), form), weight
    upload = aggregator.combine(sent.upload, members.weight, accepted)
    return Sent(upload, MEAN.combine(sent.loss, members.weight, accepted)), weight
