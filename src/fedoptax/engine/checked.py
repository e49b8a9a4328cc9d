"""The round in which clients may fail and uploads may be rejected: those that count are combined, the rest is counted.

Uploads that are not finite are rejected. Each member of the cohort has an outcome.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import Cohort, FedAlgorithm, Tree, accumulate_result, cond
from fedoptax.engine import round as plain
from fedoptax.engine.aggregation import MEAN, Aggregator, Mean, Sent
from fedoptax.engine.data import DeviceData
from fedoptax.engine.faults import Outcome, Rates, sample_outcomes, virtual_seconds
from fedoptax.engine.plan import Plan
from fedoptax.engine.sampling import round_key, sample_cohort
from fedoptax.engine.xla import as_bits
from fedoptax.tasks.task import Task


def checked_round(
    task: Task, algorithm: FedAlgorithm, plan: Plan, is_eager: bool = False
) -> Callable[..., plain.RoundResult]:
    """Make a round as `plain_round` does, in which members fail at the given `rates`.

    The upload of a member that fails, or that is not finite, does not count: weights are renormalised over the others,
    |S| is their number, and its client's state stays. A round with fewer uploads than the aggregator needs changes
    nothing.
    """
    train_client, traced = plain.local_training(task, algorithm, plan, is_eager)
    train_cohort = plain.cohort_training(task, plan, is_eager)
    prepare = plan.aggregate.prepare if isinstance(plan.aggregate, Mean) else lambda upload: upload

    def run(
        server: Tree, clients: Tree, data: DeviceData, key: jax.Array, round: jax.Array, rates: Rates, arrivals: None
    ) -> plain.RoundResult:
        members = plain.members_of(task, plan, data, sample_cohort(key, round, task.num_clients, plan.cohort_size))
        outcome = sample_outcomes(rates, key, round, members.client, members.steps)
        members = members._replace(outcome=outcome)
        shared = algorithm.broadcast(server), data, round_key(key, round)
        forms = jax.eval_shape(traced, *shared, *tree.take((members, clients), 0))

        def train_member(member: plain.Member, state: Tree) -> tuple[Sent, plain.MemberResult]:
            answers = member.outcome.answers
            train, fail = partial(train_client, *shared, member, state), partial(tree.zeros_like, forms)
            (upload, loss), new_state = cond(answers, train, fail)
            accepted = answers & jnp.isfinite(loss) & plain.all_finite(upload)
            return Sent(prepare(upload), loss), plain.MemberResult(tree.select(accepted, new_state, state), accepted)

        sent, (states, accepted) = train_cohort(train_member, members, clients, forms[0])
        total, weight = _combine(plan.aggregate, members, sent, accepted, forms[0])
        upload, loss = accumulate_result(total, forms[0])
        count = jnp.sum(accepted)
        is_enough = (count >= plan.aggregate.least) & (weight > 0)
        new_server = algorithm.server_update(server, upload, Cohort(count, task.num_clients))
        is_finite = jnp.isfinite(loss) & plain.all_finite(new_server)
        has_effect = is_finite & is_enough
        rows = jnp.where(has_effect, members.row, plain.OUT_OF_RANGE)
        return plain.RoundResult(
            tree.select(has_effect, new_server, server),
            plain.put_rows(clients, rows, states),
            is_finite | ~is_enough,
            {"train_loss": as_bits(loss, is_enough), **_columns(rates, outcome, accepted)},
        )

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
