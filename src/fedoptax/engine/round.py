"""One compiled round, to be traced: the cohort, its local work, the mean of the uploads, the server's update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import (
    Cohort,
    FedAlgorithm,
    Tree,
    accumulate,
    accumulate_result,
    accumulate_zero,
    decoded,
)
from fedoptax.engine.batches import client_batches, local_steps_of, task_grad_fn
from fedoptax.engine.data import DeviceData
from fedoptax.engine.mesh import LARGE, Runner, balanced_over, largest_first, summed_over
from fedoptax.engine.plan import Plan, runs_sequentially
from fedoptax.engine.sampling import cohort_of_round, round_key
from fedoptax.tasks.task import Task


def round_function(task: Task, algorithm: FedAlgorithm, plan: Plan) -> Callable[..., tuple[Tree, ...]]:
    """`(server, clients, data, key, round) -> (server, clients, train_loss, finite)`: one round, to be traced.

    `clients` are the states of all N clients, stacked, or (`plan.client_states = "host"`) of the cohort; the cohort's
    come back changed. `train_loss` is the mean of the cohort's losses, weighted like the uploads. If it or the server's
    new state is not finite, `finite` is False and both states come back as they were.
    """
    work = client_work(task, algorithm, plan)
    cohort_info = Cohort(plan.cohort_size, task.num_clients)
    uneven = plan.work.steps is None and bool(np.ptp(task.clients.sizes))

    def a_round(
        server: Tree, clients: Tree, data: DeviceData, key: jax.Array, round: jax.Array
    ) -> tuple[Tree, Tree, jax.Array, jax.Array]:
        cohort = cohort_of_round(key, round, task.num_clients, plan.cohort_size)
        places = cohort if holds_all(plan, task) else jnp.arange(plan.cohort_size)
        rows = cohort if plan.client_states == "device" else jnp.arange(plan.cohort_size)
        if plan.mesh > 1 and uneven:
            cohort, places, rows = largest_first(data.sizes[places], cohort, places, rows)
        weights = upload_weights(plan.weighting, data.sizes[places])
        message = algorithm.broadcast(server)
        client_keys = round_key(key, round)

        def one(client: tuple[jax.Array, jax.Array], state: Tree) -> tuple[Any, Tree]:
            upload, state, loss = work(message, data, client_keys, *client, state)
            return (decoded(algorithm, upload), loss), state

        # The cohort's states alone go through the round: were all N read and written in it, XLA would copy them all.
        def states(j: jax.Array) -> Tree:
            return row_of(clients, rows[j])

        like = jax.eval_shape(lambda: one(row_of((cohort, places), 0), row_of(clients, 0)))[0]
        steps = local_steps_of(data.sizes[places], plan.work) if uneven else None
        total, after, whose = _runner(plan.mesh, runs_sequentially(plan, task), steps)(
            one, (cohort, places), weights, states
        )
        upload, loss = accumulate_result(total, like)
        new_server = algorithm.server_update(server, upload, cohort_info)
        finite = jnp.isfinite(loss) & all_finite(new_server)
        server = jax.tree.map(lambda new, old: jnp.where(finite, new, old), new_server, server)
        counting = finite & (whose < plan.cohort_size)
        return server, changed(clients, rows[jnp.where(counting, whose, 0)], after, counting), loss, finite

    return a_round


def client_work(task: Task, algorithm: FedAlgorithm, plan: Plan) -> Callable[..., tuple[Tree, Tree, jax.Array]]:
    """`(message, data, keys, i, place, state) -> (upload, state, loss)`: one client's round, the upload as it is sent.

    `keys` is the round's key, `i` the client's number and `place` where its examples are in `data`.
    """
    exact = runs_sequentially(plan, task)
    smallest, capacity = int(task.clients.sizes.min()), int(task.clients.sizes.max())
    grad_fn = task_grad_fn(task)

    def work(
        message: Tree, data: DeviceData, keys: jax.Array, i: jax.Array, place: jax.Array, state: Tree
    ) -> tuple[Tree, Tree, jax.Array]:
        batches = client_batches(
            data.examples,
            data.offsets[place],
            data.sizes[place],
            jax.random.fold_in(keys, i),
            plan.work,
            capacity,
            exact=exact,
            smallest=smallest,
        )
        upload, state, loss = algorithm.client_update(grad_fn, message, state, batches)
        return upload, state, loss

    return jax.jit(work, inline=True)  # traced once, where a round asks for its form and then for itself


def holds_all(plan: Plan, task: Task) -> bool:
    """Whether a client's place in the program's data is its number; else it is its place in the cohort."""
    return plan.examples == "device" and task.devices is None


def all_finite(tree: Tree) -> jax.Array:
    """Whether every floating-point or complex number of `tree` is finite.

    Zero times a number is no number exactly if that is not finite, and so is a sum with it: sums compile in a fifth of
    the time that comparisons take. Leaves of one size are added up first, small ones as if they were of the largest's,
    since XLA makes a handful of kernels of every sum of many numbers.
    """
    zeros: dict[int, jax.Array] = {}
    for a in jax.tree.leaves(tree):
        if jnp.issubdtype(a.dtype, jnp.inexact) and a.size:
            a = jnp.real(a) * 0 + jnp.imag(a) * 0 if jnp.iscomplexobj(a) else a
            zeros[a.size] = zeros.get(a.size, jnp.float32(0)) + (jnp.ravel(a) * 0).astype(jnp.float32)
    small = [a for a in zeros.values() if a.nbytes < LARGE]
    parts = [a for a in zeros.values() if a.nbytes >= LARGE]
    if small:
        size = max(a.size for a in small)
        parts.append(sum((jnp.pad(a, (0, size - a.size)) for a in small), jnp.float32(0)))
    return jnp.isfinite(sum(map(jnp.sum, parts), jnp.float32(0)))


def upload_weights(weighting: str, sizes: jax.Array) -> jax.Array:
    """The weights of a cohort's uploads, of sum 1."""
    raw = sizes.astype(jnp.result_type(float)) if weighting == "examples" else jnp.ones(sizes.shape)
    return raw / jnp.sum(raw)


def row_of(tree: Tree, i: Any) -> Tree:
    """Row i, or the rows i, of stacked states."""
    return jax.tree.map(lambda a: a[i], tree)


def changed(clients: Tree, rows: jax.Array, after: Tree, counts: jax.Array) -> Tree:
    """Stacked states with those of `rows` as after the round, where it counts."""
    return jax.tree.map(
        lambda all_, new: all_.at[jnp.where(counts, rows, all_.shape[0])].set(new, mode="drop"), clients, after
    )


def _runner(devices: int, in_turn: bool, steps: jax.Array | None) -> Runner:
    """What runs the clients; `steps` are their local steps if they differ."""
    own = _one_after_another if in_turn else _all_at_once
    if devices == 1:
        return own
    return balanced_over(devices, own, steps) if in_turn and steps is not None else summed_over(devices, own, in_turn)


def _one_after_another(
    one: Callable, cohort: Tree, weights: jax.Array, states: Callable[[Any], Tree], count: jax.Array | None = None
) -> tuple[Tree, Tree, jax.Array]:
    numbers = jnp.arange(weights.shape[0])
    like = jax.eval_shape(lambda: one(row_of(cohort, 0), states(numbers[0])))[0]

    def body(j: jax.Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        total, own = carry
        upload, state = one(row_of(cohort, j), row_of(own, j))
        own = jax.tree.map(lambda all_, new: all_.at[j].set(new), own, state)
        return accumulate(total, weights[j], upload), own

    begin = (accumulate_zero(like), states(numbers))
    total, own = jax.lax.fori_loop(0, weights.shape[0] if count is None else count, body, begin)
    return total, own, numbers


def _all_at_once(
    one: Callable, cohort: Tree, weights: jax.Array, states: Callable[[Any], Tree]
) -> tuple[Tree, Tree, jax.Array]:
    numbers = jnp.arange(weights.shape[0])
    uploads, own = jax.vmap(one)(cohort, states(numbers))
    weighted = jax.vmap(accumulate)(accumulate_zero(uploads), weights, uploads)
    return jax.tree.map(lambda a: jnp.sum(a, axis=0), weighted), own, numbers
