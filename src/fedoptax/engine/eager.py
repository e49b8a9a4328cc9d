"""The eager round: plain Python, one client after another. The definition that the other engines must equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedoptax.algorithm import Cohort, FedAlgorithm, GradFn, Tree, decoded, nbytes, weighted_mean
from fedoptax.engine.aggregation import Aggregator, stacked
from fedoptax.engine.batches import client_batches, local_steps_of, task_grad_fn
from fedoptax.engine.data import DeviceData
from fedoptax.engine.evaluation import evaluate
from fedoptax.engine.faults import Fate, Rates, fate_of_round, spoil, virtual_seconds
from fedoptax.engine.plan import Plan
from fedoptax.engine.program import (
    MAX_ROUNDS,
    Advance,
    Fixed,
    Program,
    program,
)
from fedoptax.engine.round import all_finite, holds_all, upload_weights
from fedoptax.engine.sampling import cohort_of_round, round_key
from fedoptax.errors import UsageError
from fedoptax.tasks.task import Task


class RoundInfo(NamedTuple):
    """What a round tells of itself: the weighted mean training loss, the loss of each client, bytes of all messages."""

    train_loss: jax.Array
    client_losses: list[jax.Array]
    bytes_down: int
    bytes_up: int


def run_round(
    algorithm: FedAlgorithm,
    grad_fn: GradFn,
    server: Tree,
    clients: Sequence[Tree],
    batches: Sequence[Any],
    weights: Sequence[Any] | jax.Array | None = None,
    num_clients: int | None = None,
) -> tuple[Tree, list[Tree], RoundInfo]:
    """One round of `algorithm` over a cohort.

    Args:
      algorithm: the algorithm.
      grad_fn: `(params, batch) -> (loss, grads)`.
      server: the server's state.
      clients: the cohort's client states, |S| of them.
      batches: for each client of the cohort its list of minibatches, in the form `grad_fn` takes.
      weights: |S| non-negative numbers, not all zero; `None` means uniform.
      num_clients: N, the size of the federation; `None` means everyone takes part (N = |S|).

    Returns:
      The new server state, the cohort's new client states, and a `RoundInfo`.

    Raises:
      UsageError: an empty cohort, lists of unequal length, or fewer clients in the federation than in the cohort.
    """
    size = len(clients)
    if size == 0:
        raise UsageError("clients: an empty cohort given, allowed is at least one client")
    if len(batches) != size:
        raise UsageError(f"batches: {len(batches)} lists given, allowed is one for each of the {size} clients")
    total = size if num_clients is None else num_clients
    if total < size:
        raise UsageError(f"num_clients: {total} given, allowed is at least the cohort's size, {size}")
    message = algorithm.broadcast(server)
    results = [algorithm.client_update(grad_fn, message, client, own) for client, own in zip(clients, batches)]
    uploads, new_clients, losses = (list(part) for part in zip(*results))
    mean = weighted_mean([(decoded(algorithm, u), loss) for u, loss in zip(uploads, losses)], weights)
    server = algorithm.server_update(server, mean[0], Cohort(size, total))
    info = RoundInfo(mean[1], losses, size * nbytes(message), sum(nbytes(u) for u in uploads))
    return server, new_clients, info


def eager_program(task: Task, algorithm: FedAlgorithm, plan: Plan) -> Program:
    """`algorithm` on `task` in plain Python, with the interface, keys, cohorts and batches of the compiled program."""
    grad_fn = jax.jit(task_grad_fn(task))
    capacity = int(task.clients.sizes.max())

    def advance(
        hypers: Any,
        server: Tree,
        clients: Tree,
        data: DeviceData,
        key: jax.Array,
        start: Any,
        stop: Any,
        every: Any,
        last: Any,
        rates: Rates | None = None,
    ) -> Advance:
        rows = jnp.full((MAX_ROUNDS, len(built.columns)), jnp.nan, jnp.float32)
        for r in range(int(start), int(stop)):
            cohort = [int(i) for i in cohort_of_round(key, r, task.num_clients, plan.cohort_size)]
            places = cohort if holds_all(plan, task) else range(plan.cohort_size)
            batches = [
                _list_of_batches(data, place, jax.random.fold_in(round_key(key, r), i), plan, capacity)
                for i, place in zip(cohort, places)
            ]
            sizes = data.sizes[jnp.asarray(places)]
            weights = sizes if plan.weighting == "examples" else None
            rows_of = cohort if plan.client_states == "device" else range(plan.cohort_size)
            states = [jax.tree.map(lambda a, i=i: a[i], clients) for i in rows_of]
            if rates is None:
                new_server, states, info = run_round(
                    algorithm, grad_fn, server, states, batches, weights, task.num_clients
                )
                row = {"train_loss": info.train_loss}
                finite = bool(jnp.isfinite(info.train_loss) & all_finite(new_server))
            else:
                fate = fate_of_round(rates, key, r, jnp.asarray(cohort), local_steps_of(sizes, plan.work))
                raw = upload_weights(plan.weighting, sizes)
                new_server, states, row, finite = _guarded_round(
                    algorithm, grad_fn, server, states, batches, raw, task.num_clients, plan.aggregate, rates, fate
                )
            rows = written(rows, r - int(start), row)
            if not finite:
                return Advance(server, clients, jnp.int32(r + 1), jnp.bool_(False), rows)
            for i, state in zip(rows_of, states):
                clients = jax.tree.map(lambda a, s, i=i: a.at[i].set(s), clients, state)
            server = new_server
            if data.test is not None and ((r + 1) % int(every) == 0 or r + 1 == int(last)):
                rows = written(rows, r - int(start), evaluate(task, algorithm.params(server), data.test))
        return Advance(server, clients, jnp.int32(stop), jnp.bool_(True), rows)

    def written(rows: jax.Array, number: int, values: Mapping[str, Any]) -> jax.Array:
        for name, value in values.items():
            rows = rows.at[number, built.columns.index(name)].set(value)
        return rows

    built = program(task, Fixed(algorithm), plan)
    nothing = {"compile": 0.0, "waited": 0.0}
    return dataclasses.replace(built, advance=advance, prepare=lambda *_: lambda: None, timings=nothing)


def _guarded_round(
    algorithm: FedAlgorithm,
    grad_fn: GradFn,
    server: Tree,
    clients: Sequence[Tree],
    batches: Sequence[Any],
    weights: jax.Array,
    num_clients: int,
    aggregator: Aggregator,
    rates: Rates,
    fate: Fate,
) -> tuple[Tree, list[Tree], dict[str, Any], bool]:
    """A round in which clients may fail, as `engine.guarded` defines it; the last result is whether all is finite."""
    message = algorithm.broadcast(server)
    states, arrived = list(clients), dict[int, tuple[Tree, jax.Array, Tree]]()
    for j, (client, own) in enumerate(zip(clients, batches)):
        if not fate.answers[j]:
            continue
        upload, state, loss = algorithm.client_update(grad_fn, message, client, own)
        upload, loss = spoil(upload, loss, fate.nonfinite[j], fate.scaled[j], rates.scale)
        upload = decoded(algorithm, upload)
        if bool(jnp.isfinite(loss) & all_finite(upload)):
            arrived[j] = upload, loss, state
    row = {
        "train_loss": jnp.float32(jnp.nan),
        "participants": len(arrived),
        "dropped": jnp.sum(fate.dropped),
        "late": jnp.sum(fate.late),
        "rejected": jnp.sum(fate.answers) - len(arrived),
        "virtual_seconds": virtual_seconds(rates, fate),
    }
    if len(arrived) < aggregator.least:
        return server, states, row, True
    uploads, losses, news = (list(part) for part in zip(*arrived.values()))
    own_weights, everyone = weights[jnp.asarray(list(arrived))], jnp.ones(len(arrived), bool)
    upload = aggregator.combine(stacked(uploads), own_weights, everyone)
    row["train_loss"] = weighted_mean(losses, own_weights)
    new_server = algorithm.server_update(server, upload, Cohort(len(arrived), num_clients))
    for j, state in zip(arrived, news):
        states[j] = state
    return new_server, states, row, bool(jnp.isfinite(row["train_loss"]) & all_finite(new_server))


def _list_of_batches(data: DeviceData, place: int, key: jax.Array, plan: Plan, capacity: int) -> list[Any]:
    batches = client_batches(data.examples, data.offsets[place], data.sizes[place], key, plan.work, capacity)
    return [batches.get(k) for k in range(int(batches.num_steps))]
