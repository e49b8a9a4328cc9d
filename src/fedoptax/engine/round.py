"""The plain round, and what every round is made of: the members of the cohort and their local training.

`engine.checked` has the round in which clients fail and uploads are rejected, `engine.asynchronous` the one of clients
that each work at their own pace, `engine.mesh` the cohort that several devices share.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax import tree
from fedoptax.algorithm import Batches, BatchList, Cohort, FedAlgorithm, Tree, accumulate_result, decoded
from fedoptax.engine.aggregation import Mean, Sent, stacked
from fedoptax.engine.batches import client_batches, count_local_steps, task_grad_fn
from fedoptax.engine.data import DeviceData
from fedoptax.engine.faults import Rates
from fedoptax.engine.mesh import share_cohort
from fedoptax.engine.plan import Plan, runs_sequentially
from fedoptax.engine.sampling import round_key, sample_cohort
from fedoptax.engine.xla import as_bits
from fedoptax.tasks.task import Task

OUT_OF_RANGE = 2**31 - 1
"""As the number of a row: what is written there is dropped."""


class Member(NamedTuple):
    """A client of a round's cohort, or all of them stacked.

    Attributes:
      client: its number in the federation.
      place: where its examples are in the data.
      row: where its state is among the states.
      steps: the number of its local steps.
      weight: of its upload; the cohort's sum to 1.
      outcome: its `Outcome`, in a round that checks uploads; else None.
      slot: where the message is kept that it was sent, in an asynchronous round; else None.
    """

    client: jax.Array
    place: jax.Array
    row: jax.Array
    steps: jax.Array
    weight: jax.Array
    outcome: Any = None
    slot: Any = None


class MemberResult(NamedTuple):
    """A member's state after the round, and whether its upload was accepted (None where uploads are not checked)."""

    state: Tree
    accepted: Any = None


class RoundResult(NamedTuple):
    """The states after a round, whether loss and states are finite, and the round's columns of the history as bits."""

    server: Tree
    clients: Tree
    finite: jax.Array
    columns: dict[str, jax.Array]


TrainMember = Callable[[Member, Tree], tuple[Sent, MemberResult]]
TrainCohort = Callable[..., tuple[Sent, MemberResult]]
"""`(train_member, members, clients, form) -> (sent, results)`; `form` is that of what one member sends.

For a mean, `sent` is the weighted sum over the members, else what they send, stacked. A fifth argument is how many of
the members are trained, where they are trained one after another.
"""


def plain_round(task: Task, algorithm: FedAlgorithm, plan: Plan, is_eager: bool = False) -> Callable[..., RoundResult]:
    """Make `(server, clients, data, key, round, rates, arrivals) -> RoundResult`, to be compiled or, if eager, called.

    `clients` are the stacked states of all N clients, or with `plan.client_states = "host"` of the cohort; those of
    the members come back changed. If the loss or the server's new state is not finite, both states come back as they
    were. `rates` and `arrivals` are for the other rounds.
    """
    train_client, traced = local_training(task, algorithm, plan, is_eager)
    train_cohort = cohort_training(task, plan, is_eager)

    def run(
        server: Tree, clients: Tree, data: DeviceData, key: jax.Array, round: jax.Array, rates: Rates, arrivals: None
    ) -> RoundResult:
        members = members_of(task, plan, data, sample_cohort(key, round, task.num_clients, plan.cohort_size))
        shared = algorithm.broadcast(server), data, round_key(key, round)
        form, _ = jax.eval_shape(traced, *shared, *tree.take((members, clients), 0))

        def train_member(member: Member, state: Tree) -> tuple[Sent, MemberResult]:
            sent, state = train_client(*shared, member, state)
            return sent, MemberResult(state)

        total, results = train_cohort(train_member, members, clients, form)
        upload, loss = accumulate_result(total, form)
        new_server = algorithm.server_update(server, upload, Cohort(plan.cohort_size, task.num_clients))
        is_finite = jnp.isfinite(loss) & all_finite(new_server)
        rows = jnp.where(is_finite, members.row, OUT_OF_RANGE)
        new_clients = put_rows(clients, rows, results.state)
        columns = {"train_loss": as_bits(loss)}
        return RoundResult(tree.select(is_finite, new_server, server), new_clients, is_finite, columns)

    return run


def members_of(task: Task, plan: Plan, data: DeviceData, cohort: jax.Array) -> Member:
    """The members of a cohort, given by their numbers, stacked."""
    first = jnp.arange(plan.cohort_size)
    places = cohort if plan.examples == "device" and task.devices is None else first
    rows = cohort if plan.client_states == "device" else first
    sizes = data.sizes[places]
    weights = sizes.astype(jnp.result_type(float)) if plan.weighting == "examples" else jnp.ones(sizes.shape)
    return Member(cohort, places, rows, count_local_steps(sizes, plan.work), weights / jnp.sum(weights))


def local_training(task: Task, algorithm: FedAlgorithm, plan: Plan, is_eager: bool) -> tuple[Callable, Callable]:
    """Make `(message, data, round_key, member, state) -> (sent, state)`, a client's round.

    The first of the two runs it; the second is for its form, and always compiles.
    """
    is_sequential = runs_sequentially(plan, task) and not is_eager
    smallest, capacity = int(task.clients.sizes.min()), int(task.clients.sizes.max())
    grad_fn = jax.jit(task_grad_fn(task)) if is_eager else task_grad_fn(task)

    def batches_of(data: DeviceData, round_key: jax.Array, member: Member) -> Batches:
        offset, size = data.offsets[member.place], data.sizes[member.place]
        key = jax.random.fold_in(round_key, member.client)
        return client_batches(data.examples, offset, size, key, plan.work, capacity, is_sequential, smallest)

    def train(message: Tree, state: Tree, batches: Batches | BatchList) -> tuple[Sent, Tree]:
        upload, state, loss = algorithm.client_update(grad_fn, message, state, batches)
        return Sent(decoded(algorithm, upload), loss), state

    @partial(jax.jit, inline=True)  # so that it is traced once, for its form and for itself
    def traced(message: Tree, data: DeviceData, round_key: jax.Array, member: Member, state: Tree) -> Any:
        return train(message, state, batches_of(data, round_key, member))

    def eager(message: Tree, data: DeviceData, round_key: jax.Array, member: Member, state: Tree) -> Any:
        batches = batches_of(data, round_key, member)
        return train(message, state, BatchList(map(batches.get, range(int(batches.num_steps))), batches.key))

    return eager if is_eager else traced, traced


def cohort_training(task: Task, plan: Plan, is_eager: bool) -> TrainCohort:
    """Choose how members are trained: one after another, all at once or in plain Python; on one device or several."""
    mean = plan.aggregate if isinstance(plan.aggregate, Mean) else None
    is_sequential = runs_sequentially(plan, task) and not is_eager
    train = partial(_train_sequentially, mean) if is_sequential else partial(_train_at_once, mean, is_eager)
    if plan.mesh == 1:
        return train
    is_uneven = plan.work.steps is None and bool(np.ptp(task.clients.sizes))
    return share_cohort(train, plan.mesh, mean is not None, is_uneven, is_sequential)


def _train_sequentially(
    mean: Mean | None, train: TrainMember, members: Member, clients: Tree, form: Sent, count: Any = None
) -> tuple[Sent, MemberResult]:
    states = tree.take(clients, members.row)  # were all N written in a loop, XLA would copy them all
    size = members.weight.shape[0]
    total = mean.zero(form) if mean else jax.tree.map(lambda a: jnp.zeros((size, *a.shape), a.dtype), form)

    def body(j: jax.Array, carry: tuple[Sent, MemberResult]) -> tuple[Sent, MemberResult]:
        total, results = carry
        member = tree.take(members, j)
        sent, result = train(member, tree.take(states, j))
        total = mean.add(total, counted_weight(member, result), sent) if mean else put_row(total, j, sent)
        return total, put_row(results, j, result)

    results = MemberResult(tree.zeros_like(states), None if members.outcome is None else jnp.zeros(size, bool))
    return jax.lax.fori_loop(0, size if count is None else count, body, (total, results))


def _train_at_once(
    mean: Mean | None, is_eager: bool, train: TrainMember, members: Member, clients: Tree, form: Sent, count: Any = None
) -> tuple[Sent, MemberResult]:
    states = tree.take(clients, members.row)
    if is_eager:
        sent, results = stacked([train(*tree.take((members, states), j)) for j in range(members.weight.shape[0])])
    else:
        sent, results = jax.vmap(train)(members, states)
    return sent if mean is None else mean.sum(counted_weight(members, results), sent), results


def counted_weight(member: Member, result: MemberResult) -> jax.Array:
    """The weight of an upload, 0 if it was not accepted."""
    return member.weight if result.accepted is None else jnp.where(result.accepted, member.weight, 0)


def put_row(stack: Tree, j: jax.Array, row: Tree) -> Tree:
    """Stacked trees with another row j."""
    return jax.tree.map(lambda all_, new: all_.at[j].set(new), stack, row)


def put_rows(stack: Tree, places: jax.Array, rows: Tree) -> Tree:
    """Stacked trees with other rows at some places; what goes to `OUT_OF_RANGE` is dropped."""
    return jax.tree.map(lambda all_, new: all_.at[places].set(new, mode="drop"), stack, rows)


def all_finite(x: Tree) -> jax.Array:
    """Whether every floating-point or complex number of `x` is finite: 0 times another number is not 0."""
    sums = [jnp.sum(0 * jnp.asarray(a)) for a in jax.tree.leaves(x) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.isfinite(s) for s in sums], bool))
