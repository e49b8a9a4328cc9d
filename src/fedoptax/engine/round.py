"""The round: a cohort, its local training, the mean of the uploads, the server's update.

`engine.variants` has the rounds in which clients fail or work at their own pace, `engine.mesh` the cohort that several
devices share.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import BatchList, Cohort, FedAlgorithm, Tree, accumulate_result, decoded
from fedoptax.engine.aggregation import Mean, Sent, stacked
from fedoptax.engine.batches import client_batches, count_local_steps, task_grad_fn
from fedoptax.engine.data import DeviceData
from fedoptax.engine.faults import Rates
from fedoptax.engine.mesh import share_cohort
from fedoptax.engine.plan import Plan, assign_cohort, is_uneven, runs_sequentially
from fedoptax.engine.sampling import round_key, sample_cohort
from fedoptax.engine.schedule import ArrivalSchedule
from fedoptax.engine.xla import as_bits
from fedoptax.tasks.task import Task

OUT_OF_RANGE = 2**31 - 1  # as the number of a row: what is written there is dropped


class Member(NamedTuple):
    """A client of a round's cohort, or all of them stacked."""

    client: jax.Array  # its number in the federation
    place: jax.Array  # of its examples in the data
    row: jax.Array  # of its state among the states
    steps: jax.Array  # the number of its local steps
    weight: jax.Array  # of its upload; the cohort's sum to 1
    outcome: Any = None  # its `Outcome`, in a round that checks uploads
    slot: Any = None  # the place of the message that it received, in an asynchronous round


class RoundInput(NamedTuple):
    """The inputs of a round besides the states: the data, the run's key, its number from 0, and `Faults.rates`.

    In an asynchronous round `arrivals` is the round's row of the `ArrivalSchedule`.
    """

    data: DeviceData
    key: jax.Array
    round: jax.Array
    rates: Rates
    arrivals: ArrivalSchedule | None = None


class MemberResult(NamedTuple):
    """A member's state after the round, and whether its upload was accepted (None where uploads are not checked)."""

    state: Tree
    accepted: Any = None


class RoundResult(NamedTuple):
    """The states after a round, whether loss and server are finite, and the round's columns of the history as bits."""

    server: Tree
    clients: Tree
    finite: jax.Array
    columns: dict[str, jax.Array]


RunRound = Callable[[Tree, Tree, RoundInput], RoundResult]
"""`(server, clients, inputs) -> RoundResult`, to be compiled or, if eager, called.

`clients` are the stacked states of all N clients, or with `plan.client_states = "host"` of the cohort; those of the
members come back changed. If the loss or the server's new state is not finite, both states come back as they were.
"""


def plain_round(task: Task, algorithm: FedAlgorithm, plan: Plan, is_eager: bool = False) -> RunRound:
    """Make the round in which all members of the cohort send their uploads."""
    train_cohort = cohort_training(task, algorithm, plan, is_eager)

    def run(server: Tree, clients: Tree, inputs: RoundInput) -> RoundResult:
        members, message = members_of(task, plan, inputs), algorithm.broadcast(server)
        total, results, form = train_cohort(inputs, members, clients, lambda member: message)
        upload, loss = accumulate_result(total, form)
        new_server = algorithm.server_update(server, upload, Cohort(plan.cohort_size, task.num_clients))
        return finish(server, new_server, loss, clients, members.row, results.state)

    return run


def finish(
    server: Tree, new_server: Tree, loss: jax.Array, clients: Tree, rows: Any, states: Tree, is_enough: Any = True
) -> RoundResult:
    """Use the new states of the server and of the members if loss and server are finite and uploads are enough."""
    is_finite = jnp.isfinite(loss) & tree.all_finite(new_server)
    has_effect = is_finite & is_enough
    clients = tree.put(clients, jnp.where(has_effect, rows, OUT_OF_RANGE), states)
    new_server, columns = tree.select(has_effect, new_server, server), {"train_loss": as_bits(loss, is_enough)}
    return RoundResult(new_server, clients, is_finite | jnp.logical_not(is_enough), columns)


def members_of(task: Task, plan: Plan, inputs: RoundInput) -> Member:
    """Return the members of a round, stacked: whose uploads arrive if it is asynchronous, else a sampled cohort."""
    if inputs.arrivals is None:
        cohort = sample_cohort(inputs.key, inputs.round // plan.exchanges, task.num_clients, plan.cohort_size)
    else:
        cohort = jnp.asarray(inputs.arrivals.clients)
    first = jnp.arange(plan.cohort_size)
    places = cohort if plan.examples == "device" and task.devices is None else first
    rows = cohort if plan.client_states == "device" else first
    sizes = inputs.data.sizes[places]
    weights = jnp.ones(sizes.shape)
    if plan.weighting == "examples":
        weights = inputs.data.weights[places].astype(weights.dtype)
    return Member(cohort, places, rows, count_local_steps(sizes, plan.work), weights / jnp.sum(weights))


def train_member(member: Member, state: Tree, train: Callable, forms: Tree) -> tuple[Sent, MemberResult]:
    """Do a member's local work, see `cohort_training`."""
    sent, new_state = train()
    return sent, MemberResult(new_state)


def cohort_training(
    task: Task, algorithm: FedAlgorithm, plan: Plan, is_eager: bool, train_member: Callable = train_member
) -> Callable[..., tuple[Sent, MemberResult, Sent]]:
    """Make `(inputs, members, clients, message_of) -> (sent, results, form)`, the training of a round's members.

    One after another, all at once or in plain Python; on one device or several. A member receives `message_of(member)`.
    `train_member(member, state, train, forms) -> (sent, result)` calls `train() -> (sent, state)`, its local work,
    whose result has the shapes and dtypes `forms`. For a mean, `sent` is the weighted sum over the members, else what
    they send, stacked; `form` is that of what one sends.
    """
    is_sequential = runs_sequentially(plan, task) and not is_eager
    smallest, capacity = int(task.clients.sizes.min()), int(task.clients.sizes.max())
    grad_fn = jax.jit(task_grad_fn(task)) if is_eager else task_grad_fn(task)
    mean = plan.aggregate if isinstance(plan.aggregate, Mean) else None
    train_all: Any = partial(_train_sequentially, mean) if is_sequential else partial(_train_at_once, mean, is_eager)
    if plan.mesh > 1:
        train_all = share_cohort(train_all, partial(assign_cohort, plan, task), mean is not None, is_uneven(plan, task))

    def work(is_eager: bool, data: DeviceData, key: jax.Array, message: Tree, member: Member, state: Tree) -> Any:
        offset, size, key = data.offsets[member.place], data.sizes[member.place], jax.random.fold_in(key, member.client)
        batches = client_batches(data.examples, offset, size, key, plan.work, capacity, is_sequential, smallest)
        steps = BatchList(map(batches.get, range(int(batches.num_steps))), batches.key) if is_eager else batches
        upload, state, loss = algorithm.client_update(grad_fn, message, state, steps)
        return Sent(decoded(algorithm, upload), loss), state

    traced = jax.jit(partial(work, False), inline=True)  # so that it is traced once, for its form and for itself
    run_work = partial(work, True) if is_eager else traced

    def train_cohort(inputs: RoundInput, members: Member, clients: Tree, message_of: Callable[[Member], Tree]) -> Any:
        data = inputs.data
        if plan.examples == "stream":  # a row for each device
            data = data._replace(examples={name: array[0] for name, array in data.examples.items()})
        shared = data, round_key(inputs.key, inputs.round // plan.exchanges)
        first, first_state = tree.take((members, clients), 0)
        forms = jax.eval_shape(traced, *shared, message_of(first), first, first_state)

        def train_one(member: Member, state: Tree) -> tuple[Sent, MemberResult]:
            return train_member(member, state, partial(run_work, *shared, message_of(member), member, state), forms)

        return *train_all(train_one, members, clients, forms[0]), forms[0]

    return train_cohort


def _train_sequentially(
    mean: Mean | None, train: Callable, members: Member, clients: Tree, form: Sent, count: Any = None
) -> tuple[Sent, MemberResult]:
    states = tree.take(clients, members.row)  # were all N written in a loop, XLA would copy them all
    size = members.weight.shape[0]
    total = mean.zero(form) if mean else jax.tree.map(lambda a: jnp.zeros((size, *a.shape), a.dtype), form)

    def body(j: jax.Array, carry: tuple[Sent, MemberResult]) -> tuple[Sent, MemberResult]:
        total, results = carry
        member = tree.take(members, j)
        sent, result = train(member, tree.take(states, j))
        total = mean.add(total, counted_weight(member, result), sent) if mean else tree.put(total, j, sent)
        return total, tree.put(results, j, result)

    results = MemberResult(tree.zeros_like(states), None if members.outcome is None else jnp.zeros(size, bool))
    return jax.lax.fori_loop(0, size if count is None else count, body, (total, results))


def _train_at_once(
    mean: Mean | None, is_eager: bool, train: Callable, members: Member, clients: Tree, form: Sent, count: Any = None
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
