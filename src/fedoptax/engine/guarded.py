"""One compiled round in which clients may fail and uploads are looked at before they count.

Who dropped out or is late does no work. An upload that is not finite, or whose loss is not, is rejected. The rest is
aggregated with renormalised weights, |S| being their number, and only those clients move on to a new state. Too few for
the aggregator, or none: the round changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedoptax.algorithm import (
    Cohort,
    FedAlgorithm,
    Tree,
    accumulate,
    accumulate_result,
    accumulate_zero,
    decoded,
)
from fedoptax.engine.aggregation import MEAN, Aggregator, Mean
from fedoptax.engine.batches import local_steps_of
from fedoptax.engine.data import DeviceData
from fedoptax.engine.faults import Fate, Rates, fate_of_round, spoil, virtual_seconds
from fedoptax.engine.mesh import largest_first, mapped_over
from fedoptax.engine.plan import Plan, runs_sequentially
from fedoptax.engine.round import all_finite, changed, client_work, holds_all, row_of, upload_weights
from fedoptax.engine.sampling import cohort_of_round, round_key
from fedoptax.tasks.task import Task


class Taken(NamedTuple):
    """What came of a cohort: the aggregate, the mean loss, who counts (S,), the sum of their weights."""

    upload: Tree
    loss: jax.Array
    present: jax.Array
    weight: jax.Array


def guarded_round_function(
    task: Task, algorithm: FedAlgorithm, plan: Plan, rates: Rates
) -> Callable[..., tuple[Tree, ...]]:
    """`(server, clients, data, key, round) -> (server, clients, train_loss, finite, columns)`, to be traced.

    As `round_function`. `train_loss` is NaN in a round that changed nothing, which is `finite` all the same; `columns`
    are those of `faults.COUNTS` and `virtual_seconds`.
    """
    work = client_work(task, algorithm, plan)
    in_turn = runs_sequentially(plan, task)

    def a_round(
        server: Tree, clients: Tree, data: DeviceData, key: jax.Array, round: jax.Array
    ) -> tuple[Tree, Tree, jax.Array, jax.Array, dict[str, jax.Array]]:
        cohort = cohort_of_round(key, round, task.num_clients, plan.cohort_size)
        places = cohort if holds_all(plan, task) else jnp.arange(plan.cohort_size)
        rows = cohort if plan.client_states == "device" else jnp.arange(plan.cohort_size)
        if plan.mesh > 1:
            cohort, places, rows = largest_first(data.sizes[places], cohort, places, rows)
        sizes = data.sizes[places]
        fate = fate_of_round(rates, key, round, cohort, local_steps_of(sizes, plan.work))
        message = algorithm.broadcast(server)
        client_keys = round_key(key, round)

        def one(client: tuple[jax.Array, jax.Array, Fate], state: Tree) -> tuple[Tree, jax.Array, jax.Array, Tree]:
            """Upload and loss as they arrive, whether they count, and the state from now on."""
            i, place, fate = client

            def answer() -> tuple[Tree, Tree, jax.Array]:
                upload, new_state, loss = work(message, data, client_keys, i, place, state)
                upload, loss = spoil(upload, loss, fate.nonfinite, fate.scaled, rates.scale)
                return decoded(algorithm, upload), new_state, loss

            def nothing() -> Tree:
                return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(answer))

            upload, new_state, loss = jax.lax.cond(fate.answers, answer, nothing)
            sound = fate.answers & jnp.isfinite(loss) & all_finite(upload)
            state = jax.tree.map(lambda new, old: jnp.where(sound, new, old), new_state, state)
            return upload, loss, sound, state

        before = row_of(clients, rows)
        weights = upload_weights(plan.weighting, sizes)
        given = ((cohort, places, fate), weights, before, plan.aggregate)
        if in_turn and plan.mesh == 1:
            taken, after = _one_after_another(one, *given)
        else:
            mapped = mapped_over(plan.mesh, one, in_turn) if plan.mesh > 1 else jax.vmap(one)
            taken, after = _all_at_once(mapped, *given)
        count = jnp.sum(taken.present)
        enough = (count >= plan.aggregate.least) & (taken.weight > 0)
        new_server = algorithm.server_update(server, taken.upload, Cohort(count, task.num_clients))
        finite = jnp.isfinite(taken.loss) & all_finite(new_server)
        moves = enough & finite
        server = jax.tree.map(lambda new, old: jnp.where(moves, new, old), new_server, server)
        clients = changed(clients, rows, after, moves)
        columns = {
            "participants": count,
            "dropped": jnp.sum(fate.dropped),
            "late": jnp.sum(fate.late),
            "rejected": jnp.sum(fate.answers & ~taken.present),
            "virtual_seconds": virtual_seconds(rates, fate),
        }
        return server, clients, jnp.where(enough, taken.loss, jnp.nan), finite | ~enough, columns

    return a_round


def _one_after_another(
    one: Callable, cohort: Tree, weights: jax.Array, states: Tree, aggregator: Aggregator
) -> tuple[Taken, Tree]:
    """A linear aggregator sums up as the uploads come; any other needs all of them at once."""
    like, like_loss = jax.eval_shape(one, row_of(cohort, 0), row_of(states, 0))[:2]
    size = weights.shape[0]
    linear = aggregator if isinstance(aggregator, Mean) else None
    start = accumulate_zero(like) if linear else jax.tree.map(lambda a: jnp.zeros((size, *a.shape), a.dtype), like)

    def body(j: jax.Array, carry: tuple[Tree, ...]) -> tuple[Tree, ...]:
        uploads, loss, present, states = carry
        upload, own_loss, sound, state = one(row_of(cohort, j), row_of(states, j))
        weight = jnp.where(sound, weights[j], 0)
        if linear:
            uploads = accumulate(uploads, weight, linear.each(upload))
        else:
            uploads = jax.tree.map(lambda all_, new: all_.at[j].set(new), uploads, upload)
        states = jax.tree.map(lambda all_, new: all_.at[j].set(new), states, state)
        return uploads, accumulate(loss, weight, own_loss), present.at[j].set(sound), states

    carry = (start, accumulate_zero(like_loss), jnp.zeros(size, bool), states)
    uploads, loss, present, states = jax.lax.fori_loop(0, size, body, carry)
    weight = jnp.sum(jnp.where(present, weights, 0))
    divisor = jnp.maximum(weight, jnp.finfo(weight.dtype).tiny)
    if linear:
        upload = accumulate_result(jax.tree.map(lambda a: a / divisor.astype(a.dtype), uploads), like)
    else:
        upload = aggregator.combine(uploads, weights, present)
    return Taken(upload, loss / divisor.astype(loss.dtype), present, weight), states


def _all_at_once(
    mapped: Callable, cohort: Tree, weights: jax.Array, states: Tree, aggregator: Aggregator
) -> tuple[Taken, Tree]:
    """`mapped` runs all clients of a stacked cohort and gives their results stacked."""
    uploads, losses, present, states = mapped(cohort, states)
    upload = aggregator.combine(uploads, weights, present)
    loss: Any = MEAN.combine(losses, weights, present)
    return Taken(upload, loss, present, jnp.sum(jnp.where(present, weights, 0))), states
