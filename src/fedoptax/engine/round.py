"""One round: the cohort, its local training, the aggregate of the uploads, the server's update.

Every engine runs this round. Clients may fail and uploads may be rejected, in which case each member of the cohort has
an outcome; if nothing can fail (`plan.has_outcomes` is False), no condition and no check is part of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Cohort, FedAlgorithm, Tree, accumulate, accumulate_result, accumulate_zero, decoded
from fedoptax.engine.aggregation import MEAN, Mean, sum_weighted
from fedoptax.engine.batches import client_batches, count_local_steps, task_grad_fn
from fedoptax.engine.data import DeviceData
from fedoptax.engine.faults import Faults, Outcome, Rates, sample_outcomes, virtual_seconds
from fedoptax.engine.mesh import all_gathered, all_reduced, assign_clients, own_share
from fedoptax.engine.plan import Plan, runs_sequentially
from fedoptax.engine.sampling import round_key, sample_cohort
from fedoptax.engine.xla import cond
from fedoptax.tasks.task import Task

NO_ROW = 2**31 - 1  # a row that is not there: what is written to it is dropped


class Member(NamedTuple):
    """A client of a round's cohort, or stacked all of them.

    Attributes:
      client: its number in the federation.
      place: where its examples are in the data.
      row: where its state is among the states.
      weight: of its upload; the cohort's sum to 1.
      outcome: what happens to it, or None if no client can fail and no upload be rejected.
    """

    client: jax.Array
    place: jax.Array
    row: jax.Array
    weight: jax.Array
    outcome: Outcome | None


class Sent(NamedTuple):
    """What a member sends: its upload, decoded, and its mean training loss."""

    upload: Tree
    loss: jax.Array


class Kept(NamedTuple):
    """What stays with a member: its state, and whether its upload was accepted, or None if none can fail."""

    state: Tree
    accepted: jax.Array | None


TrainMember = Callable[[Member, Tree], tuple[Sent, Kept]]


class RoundResult(NamedTuple):
    """The states after a round, whether loss and states are finite, and the round's columns of the history."""

    server: Tree
    clients: Tree
    finite: jax.Array
    columns: dict[str, jax.Array]


def round_function(
    task: Task, algorithm: FedAlgorithm, plan: Plan, is_eager: bool = False
) -> Callable[..., RoundResult]:
    """Make `(server, clients, data, key, round, rates) -> RoundResult`, one round, to be traced or, if eager, called.

    `clients` are the stacked states of all N clients, or with `plan.client_states = "host"` of the cohort; those of
    the members that count come back changed. The upload of a member that fails, or that is not finite, does not count:
    weights are renormalised over the others, |S| is their number. A round with fewer uploads than the aggregator needs
    changes nothing. If the loss or the server's new state is not finite, both states come back as they were.
    """
    is_sequential = runs_sequentially(plan, task)
    is_uneven = plan.work.steps is None and bool(np.ptp(task.clients.sizes))
    smallest, capacity = int(task.clients.sizes.min()), int(task.clients.sizes.max())
    grad_fn = jax.jit(task_grad_fn(task)) if is_eager else task_grad_fn(task)

    def train_client(
        message: Tree, data: DeviceData, client_keys: jax.Array, member: Member, state: Tree, listed: bool = False
    ) -> tuple[Sent, Tree]:
        offset, size = data.offsets[member.place], data.sizes[member.place]
        key = jax.random.fold_in(client_keys, member.client)
        batches: Any = client_batches(
            data.examples, offset, size, key, plan.work, capacity, is_sequential and not listed, smallest
        )
        if listed:
            batches = [batches.get(k) for k in range(int(batches.num_steps))]
        upload, state, loss = algorithm.client_update(grad_fn, message, state, batches)
        return Sent(decoded(algorithm, upload), loss), state

    traced = jax.jit(train_client, inline=True)  # once, where a round asks for its form and then for itself

    def run(
        server: Tree, clients: Tree, data: DeviceData, key: jax.Array, round: jax.Array, rates: Rates | None = None
    ) -> RoundResult:
        rates = Faults().rates() if rates is None else rates
        members = sample_members(task, plan, data, key, round, rates)
        message, client_keys = algorithm.broadcast(server), round_key(key, round)

        def train_member(member: Member, state: Tree) -> tuple[Sent, Kept]:
            given = (message, data, client_keys, member, state)

            def train() -> tuple[Sent, Tree]:
                return train_client(*given, listed=True) if is_eager else traced(*given)

            def skip() -> tuple[Sent, Tree]:
                return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(traced, *given))

            if member.outcome is None:
                sent, state = train()
                return sent, Kept(state, None)
            sent, new_state = cond(member.outcome.answers, train, skip)
            accepted = member.outcome.answers & jnp.isfinite(sent.loss) & all_finite(sent.upload)
            if isinstance(plan.aggregate, Mean):
                sent = sent._replace(upload=plan.aggregate.prepare(sent.upload))
            return sent, Kept(_where(accepted, new_state, state), accepted)

        if is_eager:
            trained = _train_at_once(_map_in_python(train_member), members, clients, plan)
        elif plan.mesh > 1:
            steps = count_local_steps(data.sizes[members.place], plan.work) if is_uneven else None
            trained = _train_on_mesh(train_member, members, clients, plan, is_sequential, steps)
        elif is_sequential:
            trained = _train_sequentially(train_member, members, clients, plan)
        else:
            trained = _train_at_once(jax.vmap(train_member), members, clients, plan)
        return _finish(task, algorithm, plan, server, clients, members, trained, rates)

    return run


def sample_members(task: Task, plan: Plan, data: DeviceData, key: jax.Array, round: jax.Array, rates: Rates) -> Member:
    """Sample a round's cohort, and what happens to its members, stacked."""
    cohort, own = sample_cohort(key, round, task.num_clients, plan.cohort_size), jnp.arange(plan.cohort_size)
    places = cohort if plan.examples == "device" and task.devices is None else own
    rows = cohort if plan.client_states == "device" else own
    sizes = data.sizes[places]
    weights = sizes.astype(jnp.result_type(float)) if plan.weighting == "examples" else jnp.ones(sizes.shape)
    outcomes = None
    if plan.has_outcomes:
        outcomes = sample_outcomes(rates, key, round, cohort, count_local_steps(sizes, plan.work))
    return Member(cohort, places, rows, weights / jnp.sum(weights), outcomes)


def all_finite(tree: Tree) -> jax.Array:
    """Whether every floating-point or complex number of `tree` is finite: 0 times another number is not 0."""
    sums = [jnp.sum(0 * jnp.asarray(a)) for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.isfinite(s) for s in sums], bool))


def row_of(tree: Tree, i: Any) -> Tree:
    """Row i, or the rows i, of stacked trees."""
    return jax.tree.map(lambda a: a[i], tree)


class _Trained(NamedTuple):
    """What a cohort's members made.

    Attributes:
      sent: of a mean the weighted sum, else stacked.
      form: of what one member sends, as structs.
      kept: stacked.
      order: the member that each row of what is stacked belongs to, or a number >= |S| for none.
    """

    sent: Sent
    form: Sent
    kept: Kept
    order: jax.Array


def _train_sequentially(
    train: TrainMember, members: Member, clients: Tree, plan: Plan, count: jax.Array | None = None
) -> _Trained:
    """Train the members, or the first `count` of them, one after another; a mean is summed up as uploads come."""
    size, is_mean = members.weight.shape[0], isinstance(plan.aggregate, Mean)
    states = row_of(clients, members.row)  # the cohort's alone: were all N written in the loop, XLA would copy them all
    form, _ = jax.eval_shape(train, row_of(members, 0), row_of(states, 0))
    total = accumulate_zero(form) if is_mean else jax.tree.map(lambda a: jnp.zeros((size, *a.shape), a.dtype), form)

    def body(j: jax.Array, carry: tuple[Sent, Kept]) -> tuple[Sent, Kept]:
        total, kept = carry
        member = row_of(members, j)
        sent, own = train(member, row_of(kept.state, j))
        total = accumulate(total, _counted(member.weight, own.accepted), sent) if is_mean else _set_row(total, j, sent)
        return total, _set_row(kept, j, own)

    kept = Kept(states, jnp.zeros(size, bool) if plan.has_outcomes else None)
    total, kept = jax.lax.fori_loop(0, size if count is None else count, body, (total, kept))
    return _Trained(total, form, kept, jnp.arange(size))


def _train_at_once(
    train_all: Callable[[Member, Tree], tuple[Sent, Kept]], members: Member, clients: Tree, plan: Plan
) -> _Trained:
    """Train all members as one batch."""
    sent, kept = train_all(members, row_of(clients, members.row))
    form = jax.eval_shape(lambda: row_of(sent, 0))
    if isinstance(plan.aggregate, Mean):
        sent = sum_weighted(_counted(members.weight, kept.accepted), sent)
    return _Trained(sent, form, kept, jnp.arange(members.weight.shape[0]))


def _train_on_mesh(
    train: TrainMember, members: Member, clients: Tree, plan: Plan, is_sequential: bool, steps: jax.Array | None
) -> _Trained:
    """Train each device's share of the members; `steps` are their local steps if these differ."""
    size, is_mean = members.weight.shape[0], isinstance(plan.aggregate, Mean)
    has_bound = is_sequential and is_mean and steps is not None  # a loop of as many clients as there is time for
    order = assign_clients(size, plan.mesh, steps, size if has_bound else -(-size // plan.mesh))
    chosen, is_real = own_share(order, size)
    own = row_of(members, chosen)
    own = own._replace(weight=jnp.where(is_real, own.weight, 0))
    if is_sequential:
        trained = _train_sequentially(train, own, clients, plan, jnp.sum(is_real))
    else:
        trained = _train_at_once(jax.vmap(train), own, clients, plan)
    sent = all_reduced(trained.sent) if is_mean else all_gathered(trained.sent)
    return _Trained(sent, trained.form, all_gathered(trained.kept), order.reshape(-1))


def _finish(
    task: Task,
    algorithm: FedAlgorithm,
    plan: Plan,
    server: Tree,
    clients: Tree,
    members: Member,
    trained: _Trained,
    rates: Rates,
) -> RoundResult:
    """Aggregate what the members sent, update the server, and keep the members' states."""
    size, order = plan.cohort_size, trained.order
    total, is_enough = trained.sent, jnp.bool_(True)
    count: Any = size
    columns: dict[str, jax.Array] = {}
    if members.outcome is not None and trained.kept.accepted is not None:
        accepted = _in_order(trained.kept.accepted, order, size)
        count, weight = jnp.sum(accepted), jnp.sum(jnp.where(accepted, members.weight, 0))
        is_enough = (count >= plan.aggregate.least) & (weight > 0)
        if isinstance(plan.aggregate, Mean):
            divisor = jnp.maximum(weight, jnp.finfo(weight.dtype).tiny)
            total = jax.tree.map(lambda a: a / divisor.astype(a.dtype), total)
        else:
            uploads, losses = _in_order(total, order, size)
            upload = plan.aggregate.combine(uploads, members.weight, accepted)
            total = Sent(upload, MEAN.combine(losses, members.weight, accepted))
        columns = {
            "participants": count,
            "dropped": jnp.sum(members.outcome.dropped),
            "late": jnp.sum(members.outcome.late),
            "rejected": jnp.sum(members.outcome.answers & ~accepted),
            "virtual_seconds": virtual_seconds(rates, members.outcome),
        }
    upload, loss = accumulate_result(total, trained.form)
    new_server = algorithm.server_update(server, upload, Cohort(count, task.num_clients))
    finite = jnp.isfinite(loss) & all_finite(new_server)
    has_effect = finite & is_enough
    rows = jnp.where(has_effect & (order < size), members.row[jnp.minimum(order, size - 1)], NO_ROW)
    return RoundResult(
        _where(has_effect, new_server, server),
        jax.tree.map(lambda all_, new: all_.at[rows].set(new, mode="drop"), clients, trained.kept.state),
        finite | ~is_enough,
        {"train_loss": jnp.where(is_enough, loss, jnp.nan), **columns},
    )


def _in_order(tree: Tree, order: jax.Array, size: int) -> Tree:
    """The rows of stacked trees in the order of the cohort's members."""
    return jax.tree.map(lambda a: jnp.zeros((size, *a.shape[1:]), a.dtype).at[order].set(a, mode="drop"), tree)


def _map_in_python(train: TrainMember) -> Callable[[Member, Tree], tuple[Sent, Kept]]:
    """As `jax.vmap(train)`, one member after another in plain Python."""

    def train_all(members: Member, states: Tree) -> tuple[Sent, Kept]:
        results = [train(row_of(members, j), row_of(states, j)) for j in range(members.weight.shape[0])]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)

    return train_all


def _counted(weight: jax.Array, accepted: jax.Array | None) -> jax.Array:
    return weight if accepted is None else jnp.where(accepted, weight, 0)


def _set_row(tree: Tree, j: jax.Array, row: Tree) -> Tree:
    return jax.tree.map(lambda all_, new: all_.at[j].set(new), tree, row)


def _where(choice: jax.Array, yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(choice, a, b), yes, no)
