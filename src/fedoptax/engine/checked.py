"""The round in which clients may fail and uploads may be rejected: those that count are combined, the rest is counted.

Uploads that are not finite are rejected. Each member of the cohort has an outcome.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import Cohort, FedAlgorithm, Tree, accumulate_result, cond
from fedoptax.engine import round as plain
from fedoptax.engine.aggregation import MEAN, Aggregator, Mean, Sent
from fedoptax.engine.faults import Outcome, Rates, sample_outcomes, virtual_seconds
from fedoptax.engine.plan import Plan
from fedoptax.engine.xla import as_bits
from fedoptax.tasks.task import Task


def checked_round(task: Task, algorithm: FedAlgorithm, plan: Plan, is_eager: bool = False) -> plain.RunRound:
    """Make the round in which members fail at some rates.

    The upload of a member that fails, or that is not finite, does not count: weights are renormalised over the others,
    |S| is their number, and its client's state stays. A round with fewer uploads than the aggregator needs changes
    nothing.
    """
    prepare = plan.aggregate.prepare if isinstance(plan.aggregate, Mean) else lambda upload: upload

    def train_member(member: plain.Member, state: Tree, train: Any, forms: Tree) -> tuple[Sent, plain.MemberResult]:
        answers = member.outcome.answers
        (upload, loss), new_state = cond(answers, train, partial(tree.zeros_like, forms))
        accepted = answers & jnp.isfinite(loss) & plain.all_finite(upload)
        return Sent(prepare(upload), loss), plain.MemberResult(tree.select(accepted, new_state, state), accepted)

    train_cohort = plain.cohort_training(task, algorithm, plan, is_eager, train_member)

    def run(server: Tree, clients: Tree, inputs: plain.RoundInput) -> plain.RoundResult:
        members, message = plain.members_of(task, plan, inputs), algorithm.broadcast(server)
        outcome = sample_outcomes(inputs.rates, inputs.key, inputs.round, members.client, members.steps)
        members = members._replace(outcome=outcome)
        sent, (states, accepted), form = train_cohort(inputs, members, clients, lambda member: message)
        total, weight = _combine(plan.aggregate, members, sent, accepted, form)
        upload, loss = accumulate_result(total, form)
        count = jnp.sum(accepted)
        is_enough = (count >= plan.aggregate.least) & (weight > 0)
        new_server = algorithm.server_update(server, upload, Cohort(count, task.num_clients))
        result = plain.finish(server, new_server, loss, clients, members.row, states, is_enough)
        return result._replace(columns=result.columns | _columns(inputs.rates, outcome, accepted))

    return run


def _combine(
    aggregator: Aggregator, members: plain.Member, sent: Sent, accepted: jax.Array, form: Sent
) -> tuple[Sent, jax.Array]:
    """Combine the accepted uploads; return with the result the sum of their weights."""
    weight = jnp.sum(jnp.where(accepted, members.weight, 0))
    if isinstance(aggregator, Mean):
        return aggregator.divide(sent, jnp.maximum(weight, jnp.finfo(weight.dtype).tiny), form), weight
    upload = aggregator.combine(sent.upload, members.weight, accepted)
    return Sent(upload, MEAN.combine(sent.loss, members.weight, accepted)), weight


def _columns(rates: Rates, outcome: Outcome, accepted: jax.Array) -> dict[str, jax.Array]:
    columns = {
        "participants": jnp.sum(accepted),
        "dropped": jnp.sum(outcome.dropped),
        "late": jnp.sum(outcome.late),
        "rejected": jnp.sum(outcome.answers & ~accepted),
        "virtual_seconds": virtual_seconds(rates, outcome),
    }
    return jax.tree.map(as_bits, columns)
