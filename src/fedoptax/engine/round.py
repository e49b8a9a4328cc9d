"""One round: the cohort, its local training, the aggregate of the uploads, the server's update.

Every engine runs this round. Clients may fail and uploads may be rejected, in which case each member of the cohort has
an outcome; if nothing can fail (`plan.has_outcomes` is False), no condition and no check is part of the program.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax._tree import ema, select, zeros_like
from fedoptax.algorithm import Cohort, FedAlgorithm, Tree, accumulate_result, decoded
from fedoptax.engine.aggregation import MEAN, Aggregator, Mean, Sent, stacked
from fedoptax.engine.batches import client_batches, count_local_steps, task_grad_fn
from fedoptax.engine.data import DeviceData
from fedoptax.engine.faults import Outcome, Rates, sample_outcomes, virtual_seconds
from fedoptax.engine.mesh import AXIS, assign_clients
from fedoptax.engine.plan import Plan, runs_sequentially
from fedoptax.engine.sampling import round_key, sample_cohort
from fedoptax.engine.schedule import Schedule
from fedoptax.engine.xla import as_bits, cond
from fedoptax.errors import is_traced
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
      slot: where the message is kept that it was sent in an earlier round; None in a synchronous round.
    """

    client: jax.Array
    place: jax.Array
    row: jax.Array
    weight: jax.Array
    outcome: Outcome | None
    slot: jax.Array | None = None


class Kept(NamedTuple):
    """What stays with a member: its state, and whether its upload was accepted, or None if none can fail."""

    state: Tree
    accepted: jax.Array | None


Train = Callable[..., tuple[Sent, Kept]]  # of a member and its state, or of members and how many of them to train


class RoundResult(NamedTuple):
    """The states after a round, whether loss and states are finite, and the round's columns of the history as bits."""

    server: Tree
    clients: Tree
    finite: jax.Array
    columns: dict[str, jax.Array]


def round_function(
    task: Task, algorithm: FedAlgorithm, plan: Plan, is_eager: bool = False
) -> Callable[..., RoundResult]:
    """Make `(server, clients, data, key, round, rates, turn) -> RoundResult`, to be traced or, if eager, called.

    `clients` are the stacked states of all N clients, or with `plan.client_states = "host"` of the cohort; those of
    the members that count come back changed. The upload of a member that fails, or that is not finite, does not count:
    weights are renormalised over the others, |S| is their number. A round with fewer uploads than the aggregator needs
    changes nothing. If the loss or the server's new state is not finite, both states come back as they were.

    In an asynchronous round `turn` is its row of the `Schedule`, and `clients`, which keep nothing, are the messages
    that were sent and are still in use, stacked: each member trains from its own. With s̄ the mean of the uploads'
    staleness weights, the server moves by the share s̄ of its step, (1 − s̄)·old + s̄·new. For SGD at the server that is
    FedBuff's mean of s(τᵢ)Δᵢ, for uploads of parameters FedAsync's mixing.
    """
    is_sequential = runs_sequentially(plan, task) and not is_eager
    mean = plan.aggregate if isinstance(plan.aggregate, Mean) else None
    smallest, capacity = int(task.clients.sizes.min()), int(task.clients.sizes.max())
    grad_fn = jax.jit(task_grad_fn(task)) if is_eager else task_grad_fn(task)

    def train_client(message: Tree, data: DeviceData, client_keys: jax.Array, member: Member, state: Tree) -> Any:
        offset, size = data.offsets[member.place], data.sizes[member.place]
        key = jax.random.fold_in(client_keys, member.client)
        batches: Any = client_batches(data.examples, offset, size, key, plan.work, capacity, is_sequential, smallest)
        if is_eager and not is_traced(size):
            batches = [batches.get(k) for k in range(int(batches.num_steps))]
        upload, state, loss = algorithm.client_update(grad_fn, message, state, batches)
        return Sent(decoded(algorithm, upload), loss), state

    traced = jax.jit(train_client, inline=True)  # once, where a round asks for its form and then for itself

    def run(
        server: Tree,
        clients: Tree,
        data: DeviceData,
        key: jax.Array,
        round: jax.Array,
        rates: Rates,
        turn: Schedule | None = None,
    ) -> RoundResult:
        members = sample_members(task, plan, data, key, round, rates, turn)
        message, given = algorithm.broadcast(server), (data, round_key(key, round))
        messages, held_back = None, jnp.zeros(())  # 1 − s̄
        if turn is not None:
            messages, clients = _set_row(clients, jnp.asarray(turn.slot), message), ()
            weights, held_back = discount(members.weight, turn.weights)
            members = members._replace(weight=weights)
        form = jax.eval_shape(lambda: traced(message, *given, row_of(members, 0), row_of(clients, 0)))

        def train_member(member: Member, state: Tree) -> tuple[Sent, Kept]:
            def train() -> tuple[Sent, Tree]:
                received = message if messages is None else row_of(messages, member.slot)
                return (train_client if is_eager else traced)(received, *given, member, state)

            if member.outcome is None:
                sent, state = train()
                return sent, Kept(state, None)
            sent, new_state = cond(member.outcome.answers, train, lambda: zeros_like(form))
            accepted = member.outcome.answers & jnp.isfinite(sent.loss) & all_finite(sent.upload)
            if mean is not None:
                sent = sent._replace(upload=mean.prepare(sent.upload))
            return sent, Kept(select(accepted, new_state, state), accepted)

        def train_members(members: Member, count: Any = plan.cohort_size) -> tuple[Sent, Kept]:
            """Train members, or if sequentially the first `count`; for a mean, the weighted sum of what they send."""
            states = row_of(clients, members.row)  # were all N written in a loop, XLA would copy them all
            if is_sequential:
                return _train_sequentially(train_member, members, states, count, form[0], mean)
            if is_eager:
                sent, kept = stacked([train_member(row_of(members, j), row_of(states, j)) for j in range(count)])
            else:
                sent, kept = jax.vmap(train_member)(members, states)
            return sent if mean is None else mean.sum(_counted(members.weight, kept.accepted), sent), kept

        if plan.mesh > 1:
            steps = None
            if plan.work.steps is None and np.ptp(task.clients.sizes):
                steps = count_local_steps(data.sizes[members.place], plan.work)
            sent, kept = _train_on_mesh(train_members, members, plan.mesh, steps, is_sequential, mean is not None)
        else:
            sent, kept = train_members(members)
        count: Any = plan.cohort_size
        is_enough, columns = jnp.bool_(True), dict[str, jax.Array]()
        if kept.accepted is not None:
            sent, count, is_enough, columns = _aggregate_accepted(
                plan.aggregate, members, sent, kept.accepted, rates, form[0]
            )
        upload, loss = accumulate_result(sent, form[0])
        new_server = algorithm.server_update(server, upload, Cohort(count, task.num_clients))
        if messages is not None:
            new_server = hold_back(held_back, server, new_server)
        finite = jnp.isfinite(loss) & all_finite(new_server)
        has_effect = finite & is_enough
        rows = jnp.where(has_effect, members.row, NO_ROW)
        return RoundResult(
            select(has_effect, new_server, server),
            jax.tree.map(lambda all_, new: all_.at[rows].set(new, mode="drop"), clients, kept.state)
            if messages is None
            else messages,
            finite | ~is_enough,
            {"train_loss": as_bits(loss, is_enough), **jax.tree.map(as_bits, columns)},
        )

    return run


def sample_members(
    task: Task,
    plan: Plan,
    data: DeviceData,
    key: jax.Array,
    round: jax.Array,
    rates: Rates,
    turn: Schedule | None = None,
) -> Member:
    """Sample a round's cohort, or take it from the schedule, and what happens to its members, stacked."""
    cohort = (
        sample_cohort(key, round, task.num_clients, plan.cohort_size) if turn is None else jnp.asarray(turn.clients)
    )
    own = jnp.arange(plan.cohort_size)
    places = cohort if plan.examples == "device" and task.devices is None else own
    rows = cohort if plan.client_states == "device" else own
    sizes = data.sizes[places]
    weights = sizes.astype(jnp.result_type(float)) if plan.weighting == "examples" else jnp.ones(sizes.shape)
    outcomes = None
    if plan.has_outcomes:
        outcomes = sample_outcomes(rates, key, round, cohort, count_local_steps(sizes, plan.work))
    slots = None if turn is None else jnp.asarray(turn.slots)
    return Member(cohort, places, rows, weights / jnp.sum(weights), outcomes, slots)


def discount(weights: Any, by_staleness: Any) -> tuple[jax.Array, jax.Array]:
    """Return the weights of late uploads, which sum to 1 as `weights` do, and 1 − s̄, see `round_function`."""
    held_back = jnp.sum(weights * (1 - by_staleness))
    return weights * by_staleness / (1 - held_back), held_back


def hold_back(share: jax.Array, old: Tree, new: Tree) -> Tree:
    """Return a server's state that takes the share `share` of its numbers from the old state; counters count."""
    return jax.tree.map(lambda o, n: ema(share, o, n) if jnp.issubdtype(n.dtype, jnp.inexact) else n, old, new)


def all_finite(tree: Tree) -> jax.Array:
    """Whether every floating-point or complex number of `tree` is finite: 0 times another number is not 0."""
    sums = [jnp.sum(0 * jnp.asarray(a)) for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.isfinite(s) for s in sums], bool))


def row_of(tree: Tree, i: Any) -> Tree:
    """Row i, or the rows i, of stacked trees."""
    return jax.tree.map(lambda a: a[i], tree)


def _train_sequentially(
    train: Train, members: Member, states: Tree, count: Any, form: Sent, mean: Mean | None
) -> tuple[Sent, Kept]:
    """Train the first `count` members one after another, and sum up or stack what they send, of the given form."""
    size = members.weight.shape[0]
    total = mean.zero(form) if mean else jax.tree.map(lambda a: jnp.zeros((size, *a.shape), a.dtype), form)

    def body(j: jax.Array, carry: tuple[Sent, Kept]) -> tuple[Sent, Kept]:
        total, kept = carry
        member = row_of(members, j)
        sent, own = train(member, row_of(states, j))
        total = mean.add(total, _counted(member.weight, own.accepted), sent) if mean else _set_row(total, j, sent)
        return total, _set_row(kept, j, own)

    kept = Kept(zeros_like(states), None if members.outcome is None else jnp.zeros(size, bool))
    return jax.lax.fori_loop(0, count, body, (total, kept))


def _train_on_mesh(
    train: Train, members: Member, devices: int, steps: jax.Array | None, is_sequential: bool, is_mean: bool
) -> tuple[Sent, Kept]:
    """Train each device's share of the members; `steps` are their local steps if these differ."""
    size = members.weight.shape[0]
    has_bound = is_sequential and is_mean and steps is not None  # a loop of as many clients as there is time for
    order = assign_clients(size, devices, steps, size if has_bound else -(-size // devices))
    chosen = order[jax.lax.axis_index(AXIS)]
    own, is_real = row_of(members, jnp.minimum(chosen, size - 1)), chosen < size
    sent, kept = train(own._replace(weight=jnp.where(is_real, own.weight, 0)), jnp.sum(is_real))
    # Of the members among the rows of all devices; a permutation of equal shares would copy the states once more.
    places = slice(size) if steps is None else jnp.argsort(order.reshape(-1))[:size]

    def gather(tree: Tree) -> Tree:
        return row_of(jax.lax.all_gather(tree, AXIS, tiled=True), places)

    return jax.lax.psum(sent, AXIS) if is_mean else gather(sent), gather(kept)


def _aggregate_accepted(
    aggregator: Aggregator, members: Member, sent: Sent, accepted: jax.Array, rates: Rates, form: Sent
) -> tuple[Sent, jax.Array, jax.Array, dict[str, jax.Array]]:
    """Aggregate the accepted uploads; return with it their number, whether it is enough, and the history's columns."""
    assert members.outcome is not None
    count, weight = jnp.sum(accepted), jnp.sum(jnp.where(accepted, members.weight, 0))
    if isinstance(aggregator, Mean):
        sent = aggregator.divide(sent, jnp.maximum(weight, jnp.finfo(weight.dtype).tiny), form)
    else:
        upload = aggregator.combine(sent.upload, members.weight, accepted)
        sent = Sent(upload, MEAN.combine(sent.loss, members.weight, accepted))
    columns = {
        "participants": count,
        "dropped": jnp.sum(members.outcome.dropped),
        "late": jnp.sum(members.outcome.late),
        "rejected": jnp.sum(members.outcome.answers & ~accepted),
        "virtual_seconds": virtual_seconds(rates, members.outcome),
    }
    return sent, count, (count >= aggregator.least) & (weight > 0), columns


def _counted(weight: jax.Array, accepted: jax.Array | None) -> jax.Array:
    return weight if accepted is None else jnp.where(accepted, weight, 0)


def _set_row(tree: Tree, j: jax.Array, row: Tree) -> Tree:
    return jax.tree.map(lambda all_, new: all_.at[j].set(new), tree, row)
