"""Several points of a grid in one call: hyper-parameters and states are a batch dimension of the round.

Cohorts, minibatches and random numbers do not depend on the point, so they are made once for all; what an accelerator
does is then one wide operation where points one after another are many narrow ones. On a CPU it gains nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax import threefry
from fedoptax.algorithm import Tree
from fedoptax.engine.client_states import OnDevice
from fedoptax.engine.evaluation import column_names, evaluate, evaluation_data
from fedoptax.engine.plan import Plan
from fedoptax.engine.program import DeviceData, Point, Program, device_data, program
from fedoptax.engine.round import round_function
from fedoptax.storage.history import History, Row, finite_or_none
from fedoptax.tasks.task import Task

ROUNDS_PER_CALL = 16  # so that Ctrl-C and a bar are not kept waiting; a call costs little


class Points(NamedTuple):
    """The states of P points, stacked; `alive` (P,) is False for those that diverged, which stay as they are."""

    server: Tree
    clients: Tree
    alive: jax.Array


class Outcome(NamedTuple):
    """What a point leaves: its history, server and clients, and whether it stayed finite."""

    history: History
    server: Tree
    clients: OnDevice
    finite: bool


def run_together(
    task: Task, points: Sequence[Point], plan: Plan, rounds: int, seed: int, eval_every: int
) -> list[Outcome]:
    """Runs points that share constructor and names, all at once; each is the run that it would be alone, to rounding.

    Args:
      task: the task.
      points: at least one.
      plan: how rounds are run: on one device, with all states and examples on it, and no client failing.
      rounds: in total.
      seed: of all of them.
      eval_every: rounds between evaluations; the last round is always evaluated.
    """
    make, names = points[0].make, tuple(points[0].values)
    built = program(task, make, plan, names)  # for its bytes, and its checks
    advance = _advance(task, points[0], plan)
    hypers = {name: jnp.stack([point.arguments[name] for point in points]) for name in names}
    key = threefry.key(seed)
    server, client = jax.vmap(built.start, in_axes=(0, None))(hypers, key)
    clients = jax.tree.map(lambda a: jnp.repeat(a[:, None], task.num_clients, axis=1), client)
    state = Points(server, clients, jnp.ones(len(points), bool))
    histories: list[list[Row]] = [[] for _ in points]
    for start in range(0, rounds, ROUNDS_PER_CALL):
        stop = min(start + ROUNDS_PER_CALL, rounds)
        begun, numbers = time.perf_counter(), [jnp.int32(n) for n in (start, stop, eval_every, rounds)]
        state, columns = advance(hypers, state, device_data(task), key, *numbers)
        host = {name: np.asarray(values) for name, values in columns.items()}
        seconds = (time.perf_counter() - begun) / ((stop - start) * len(points))
        for point, rows in enumerate(histories):
            own = {name: values[: stop - start, point] for name, values in host.items()}
            rows += _rows(built, plan, own, start, seconds)
        if not bool(state.alive.any()):
            break
    return [_outcome(state, number, rows, task) for number, rows in enumerate(histories)]


def _advance(task: Task, point: Point, plan: Plan) -> Any:
    """`(hypers, state, data, key, start, stop, eval_every, last) -> (state, columns (rounds, P))`, to be compiled."""
    tests = column_names(task, jax.eval_shape(task.init, threefry.key(0)), evaluation_data(task))
    names = ["alive", "train_loss", *tests]

    def one(hypers: Any, state: Points, data: DeviceData, key: jax.Array, round: jax.Array, due: jax.Array) -> Any:
        algorithm = point.make(**hypers)
        server, clients, loss, finite = round_function(task, algorithm, plan)(
            state.server, state.clients, data, key, round
        )
        alive = state.alive & finite
        row = {"alive": alive.astype(jnp.float32), "train_loss": loss.astype(jnp.float32)}
        test = data.test
        if test is not None:
            row |= jax.lax.cond(
                due,
                lambda: {n: v.astype(jnp.float32) for n, v in evaluate(task, algorithm.params(server), test).items()},
                lambda: {name: jnp.float32(jnp.nan) for name in tests},
            )
        server, clients = _where(alive, (server, clients), (state.server, state.clients))
        return Points(server, clients, alive), row

    def run(
        hypers: Mapping[str, jax.Array],
        state: Points,
        data: DeviceData,
        key: jax.Array,
        start: jax.Array,
        stop: jax.Array,
        eval_every: jax.Array,
        last: jax.Array,
    ) -> tuple[Points, dict[str, jax.Array]]:
        count = state.alive.shape[0]

        def body(round: jax.Array, carry: tuple[Points, dict[str, jax.Array]]) -> tuple[Points, dict[str, jax.Array]]:
            state, columns = carry
            due = ((round + 1) % eval_every == 0) | (round + 1 == last)
            state, row = jax.vmap(one, in_axes=(0, 0, None, None, None, None))(hypers, state, data, key, round, due)
            return state, {name: columns[name].at[round - start].set(row[name]) for name in names}

        empty = {name: jnp.full((ROUNDS_PER_CALL, count), jnp.nan, jnp.float32) for name in names}
        return jax.lax.fori_loop(start, stop, body, (state, empty))

    return jax.jit(run, donate_argnums=1)


def _where(choice: jax.Array, yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(choice, a, b), yes, no)


def _rows(built: Program, plan: Plan, columns: Mapping[str, np.ndarray], start: int, seconds: float) -> list[Row]:
    """The rows of a point's finite rounds."""
    size = plan.cohort_size
    return [
        {"round": start + i + 1}
        | {name: finite_or_none(float(values[i])) for name, values in columns.items() if name != "alive"}
        | {"bytes_down": size * built.bytes_down, "bytes_up": size * built.bytes_up, "seconds": seconds}
        for i in range(len(columns["alive"]))
        if columns["alive"][i]
    ]


def _outcome(state: Points, number: int, rows: list[Row], task: Task) -> Outcome:
    server, states = jax.tree.map(lambda a: a[number], (state.server, state.clients))
    clients = OnDevice((), task.num_clients)
    clients.put(states)
    return Outcome(History(rows), server, clients, bool(state.alive[number]))
