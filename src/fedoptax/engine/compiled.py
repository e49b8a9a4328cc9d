"""The compiled engine: many rounds of an algorithm on a task as one XLA program.

Sampling, batching, local training, the weighted mean, the server's update and evaluation all happen inside; data and
hyper-parameters are arguments, never constants (a captured data set takes XLA tens of seconds to compile). One call
advances any number of rounds up to `MAX_ROUNDS` without recompiling, and stops by itself at a non-finite state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
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
    nbytes,
)
from fedoptax.engine.evaluation import EvaluationData, column_names, evaluate, evaluation_data
from fedoptax.engine.local import client_batches, task_grad_fn
from fedoptax.engine.plan import Plan
from fedoptax.engine.sampling import cohort_of_round, round_key
from fedoptax.errors import UsageError
from fedoptax.task import Task

MAX_ROUNDS = 256
MakeAlgorithm = Callable[..., FedAlgorithm]


class DeviceData(NamedTuple):
    """What the program reads: flat training arrays, offsets and sizes of the clients, batched test arrays.

    The clients are all N, or with `plan.examples = "cohort"` those of the one round's cohort.
    """

    examples: dict[str, jax.Array]
    offsets: jax.Array
    sizes: jax.Array
    test: EvaluationData | None


class Advance(NamedTuple):
    """The result of some rounds: the states, the rounds done, whether all is finite, a buffer of rows a column."""

    server: Tree
    clients: Tree
    round: jax.Array
    finite: jax.Array
    rows: dict[str, jax.Array]


@lru_cache(maxsize=4)
def device_data(task: Task) -> DeviceData:
    """The task's arrays on the device, put there once."""
    total = int(task.clients.offsets[-1])
    if total >= 2**31:
        raise UsageError(f"task '{task.name}': {total} examples given, allowed is fewer than 2^31")
    return DeviceData(
        {name: jnp.asarray(array) for name, array in task.clients.examples.items()},
        jnp.asarray(task.clients.offsets[:-1], jnp.int32),
        jnp.asarray(task.clients.sizes, jnp.int32),
        evaluation_data(task),
    )


@dataclass(frozen=True)
class Program:
    """An algorithm on a task, ready to run; made by `program`, compiled at the first call.

    Attributes:
      start: `(hypers, key) -> (server, client)`, the server's state and every client's state before round 0.
      advance: `(hypers, server, clients, data, key, start, stop, eval_every, last) -> Advance`, rounds start…stop−1;
        `clients` are the states of all N clients, stacked, or with `plan.states = "cohort"` those of the cohort of the
        one round that is run.
      params: `(hypers, server) -> params`.
      bytes_down, bytes_up: bytes of the message to, and the upload from, one client in one round.
      num_params: numbers in the model.
    """

    start: Callable[..., tuple[Tree, Tree]]
    advance: Callable[..., Advance]
    params: Callable[..., Tree]
    bytes_down: int
    bytes_up: int
    num_params: int
    timings: dict[str, float]


@dataclass(frozen=True)
class Fixed:
    """Makes always the same algorithm: a program without free hyper-parameters. Equal for equal algorithms."""

    algorithm: FedAlgorithm

    def __call__(self) -> FedAlgorithm:
        """The algorithm."""
        return self.algorithm


@lru_cache(maxsize=8)
def program(task: Task, make_algorithm: MakeAlgorithm, plan: Plan, names: tuple[str, ...] = ()) -> Program:
    """Builds the program of `make_algorithm(**hypers)` on `task`; `names` are the hyper-parameters left free.

    The same arguments give the same program, compiled once: seeds and points of a sweep share it.

    Raises:
      UsageError: the algorithm changes the structure, shape or dtype of a state between rounds.
    """
    init_params = jax.eval_shape(task.init, jax.random.key(0))
    columns = ["train_loss", *column_names(task, init_params, evaluation_data(task))]

    @jax.jit
    def start(hypers: Mapping[str, Any], key: jax.Array) -> tuple[Tree, Tree]:
        algorithm = make_algorithm(**hypers)
        params = task.init(jax.random.fold_in(key, 0))
        return algorithm.init(params), algorithm.init_client(params)

    def run(
        hypers: Mapping[str, Any],
        server: Tree,
        clients: Tree,
        data: DeviceData,
        key: jax.Array,
        start: jax.Array,
        stop: jax.Array,
        eval_every: jax.Array,
        last: jax.Array,
    ) -> Advance:
        algorithm = make_algorithm(**hypers)
        a_round = round_function(task, algorithm, plan)

        def body(state: Advance) -> Advance:
            server, clients, loss, finite = a_round(state.server, state.clients, data, key, state.round)
            number = state.round + 1
            row = {name: jnp.float32(jnp.nan) for name in columns} | {"train_loss": loss.astype(jnp.float32)}
            test = data.test
            if test is not None:
                due = (number % eval_every == 0) | (number == last)
                row |= jax.lax.cond(
                    due & finite,
                    lambda: _floats(evaluate(task, algorithm.params(server), test)),
                    lambda: {name: jnp.float32(jnp.nan) for name in columns[1:]},
                )
            rows = {name: state.rows[name].at[state.round - start].set(row[name]) for name in columns}
            return Advance(server, clients, number, finite, rows)

        empty = {name: jnp.full((MAX_ROUNDS,), jnp.nan, jnp.float32) for name in columns}
        begin = Advance(server, clients, start, jnp.bool_(True), empty)
        return jax.lax.while_loop(lambda s: (s.round < stop) & s.finite, body, begin)

    def params_of(hypers: Mapping[str, Any], server: Tree) -> Tree:
        return make_algorithm(**hypers).params(server)

    shapes = {name: jax.ShapeDtypeStruct((), jnp.result_type(float)) for name in names}
    down, up = _message_bytes(task, make_algorithm, plan, shapes)
    size = sum(a.size for a in jax.tree.leaves(init_params))
    timings = {"compile": 0.0}
    advance = _Timed(jax.jit(run, donate_argnums=(1, 2)), timings)
    return Program(start, advance, params_of, down, up, size, timings)


def round_function(task: Task, algorithm: FedAlgorithm, plan: Plan) -> Callable[..., tuple[Tree, ...]]:
    """`(server, clients, data, key, round) -> (server, clients, train_loss, finite)`: one round, to be traced.

    `clients` are the states of all N clients, stacked, or (`plan.states = "cohort"`) of the cohort; those of the cohort
    come back changed. `train_loss` is the mean of the cohort's losses, weighted like the uploads. If it or the server's
    new state is not finite, `finite` is False and both states come back as they were.
    """
    loop = plan.client_loop == "loop" or (plan.client_loop == "auto" and jax.default_backend() == "cpu")
    capacity = int(task.clients.sizes.max())
    grad_fn = task_grad_fn(task)
    cohort_info = Cohort(plan.cohort_size, task.num_clients)

    def a_round(
        server: Tree, clients: Tree, data: DeviceData, key: jax.Array, round: jax.Array
    ) -> tuple[Tree, Tree, jax.Array, jax.Array]:
        cohort = cohort_of_round(key, round, task.num_clients, plan.cohort_size)
        places = cohort if holds_all(plan, task) else jnp.arange(plan.cohort_size)
        weights = _weights(plan.weighting, data.sizes[places])
        message = algorithm.broadcast(server)
        client_keys = round_key(key, round)

        def one(client: tuple[jax.Array, jax.Array], state: Tree) -> tuple[Any, Tree]:
            i, place = client
            batches = client_batches(
                data.examples,
                data.offsets[place],
                data.sizes[place],
                jax.random.fold_in(client_keys, i),
                plan.work,
                capacity,
                exact=loop,
            )
            upload, state, loss = algorithm.client_update(grad_fn, message, state, batches)
            return (decoded(algorithm, upload), loss), state

        run = _one_after_another if loop else _all_at_once
        rows = cohort if plan.states == "all" else jnp.arange(plan.cohort_size)
        before = _row(clients, rows)
        (upload, loss), clients = run(one, (cohort, places), rows, weights, clients)
        new_server = algorithm.server_update(server, upload, cohort_info)
        finite = jnp.isfinite(loss) & all_finite(new_server)
        server = jax.tree.map(lambda new, old: jnp.where(finite, new, old), new_server, server)
        clients = jax.tree.map(lambda all_, old: all_.at[rows].set(jnp.where(finite, all_[rows], old)), clients, before)
        return server, clients, loss, finite

    return a_round


def holds_all(plan: Plan, task: Task) -> bool:
    """Whether a client's place in the program's data is its number; else it is its place in the cohort."""
    return plan.examples == "all" and task.devices is None


def all_finite(tree: Tree) -> jax.Array:
    """Whether every floating-point number of `tree` is finite."""
    floats = [a for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in floats])) if floats else jnp.bool_(True)


def _one_after_another(
    one: Callable, cohort: Tree, rows: jax.Array, weights: jax.Array, clients: Tree
) -> tuple[Tree, Tree]:
    like = jax.eval_shape(one, _row(cohort, 0), _row(clients, 0))[0]

    def body(j: jax.Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        total, clients = carry
        upload, state = one(_row(cohort, j), _row(clients, rows[j]))
        clients = jax.tree.map(lambda all_, new: all_.at[rows[j]].set(new), clients, state)
        return accumulate(total, weights[j], upload), clients

    total, clients = jax.lax.fori_loop(0, rows.shape[0], body, (accumulate_zero(like), clients))
    return accumulate_result(total, like), clients


def _all_at_once(one: Callable, cohort: Tree, rows: jax.Array, weights: jax.Array, clients: Tree) -> tuple[Tree, Tree]:
    uploads, states = jax.vmap(one)(cohort, _row(clients, rows))
    clients = jax.tree.map(lambda all_, new: all_.at[rows].set(new), clients, states)
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), uploads)
    zero = accumulate_zero(uploads)
    weighted = jax.vmap(accumulate)(zero, weights, uploads)
    return accumulate_result(jax.tree.map(lambda a: jnp.sum(a, axis=0), weighted), like), clients


def _row(tree: Tree, i: Any) -> Tree:
    return jax.tree.map(lambda a: a[i], tree)


def _weights(weighting: str, sizes: jax.Array) -> jax.Array:
    raw = sizes.astype(jnp.result_type(float)) if weighting == "examples" else jnp.ones(sizes.shape)
    return raw / jnp.sum(raw)


def _floats(columns: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: value.astype(jnp.float32) for name, value in columns.items()}


def _message_bytes(task: Task, make_algorithm: MakeAlgorithm, plan: Plan, shapes: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes of the real message and upload, by abstract evaluation; checks that states keep their form on the way."""

    def messages(hypers: Mapping[str, Any], key: jax.Array, examples: Tree, n: jax.Array) -> tuple[Tree, ...]:
        algorithm = make_algorithm(**hypers)
        server = algorithm.init(task.init(key))
        client = algorithm.init_client(algorithm.params(server))
        message = algorithm.broadcast(server)
        batches = client_batches(examples, n, n, key, plan.work, int(task.clients.sizes.max()))
        upload, new_client, _ = algorithm.client_update(task_grad_fn(task), message, client, batches)
        mean = decoded(algorithm, upload)
        new_server = algorithm.server_update(server, mean, Cohort(plan.cohort_size, task.num_clients))
        return message, upload, (server, client), (new_server, new_client)

    one = {  # the arrays of one example, in the types that they have on the device
        name: jax.ShapeDtypeStruct((1, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype))
        for name, array in task.clients.examples.items()
    }
    message, upload, before, after = jax.eval_shape(messages, shapes, jax.random.key(0), one, jnp.int32(1))
    for what, old, new in zip(
        ("server_update: the server's state", "client_update: the client's state"), before, after
    ):
        _check_same_form(what, old, new)
    return nbytes(message), nbytes(upload)


def _check_same_form(what: str, old: Tree, new: Tree) -> None:
    before, after = str(jax.tree.structure(old)), str(jax.tree.structure(new))
    if before != after:
        raise UsageError(f"{what} changes structure: {before} before, {after} after; allowed is no change")
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise UsageError(
                f"{what} changes at {jax.tree_util.keystr(path)}: {a.dtype}{list(a.shape)} before, "
                f"{b.dtype}{list(b.shape)} after; allowed is no change"
            )


class _Timed:
    """A jitted function, compiled at the first call; notes how long that took, apart from the calls themselves."""

    def __init__(self, jitted: Any, timings: dict[str, float]) -> None:
        self.jitted = jitted
        self._compiled: Any = None
        self._timings = timings

    def __call__(self, *args: Any) -> Advance:
        if self._compiled is None:
            begun = time.perf_counter()
            self._compiled = self.jitted.lower(*args).compile()
            self._timings["compile"] = time.perf_counter() - begun
        return self._compiled(*args)
