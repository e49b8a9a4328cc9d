"""The compiled engine: many rounds of an algorithm on a task as one XLA program.

Sampling, batching, local training, the weighted mean, the server's update and evaluation all happen inside; data and
hyper-parameters are arguments, never constants (a captured data set takes XLA tens of seconds to compile). One call
advances any number of rounds up to `MAX_ROUNDS` without recompiling, and stops by itself at a non-finite state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax import threefry
from fedoptax._tree import on_device
from fedoptax.algorithm import Batches, Cohort, FedAlgorithm, Tree, decoded, nbytes
from fedoptax.distributed import several
from fedoptax.engine.batches import Minibatch, form_of_grad_fn, minibatch_form
from fedoptax.engine.data import DeviceData
from fedoptax.engine.evaluation import column_names, evaluate, evaluation_data
from fedoptax.engine.faults import COUNTS, Faults, Rates
from fedoptax.engine.guarded import guarded_round_function
from fedoptax.engine.mesh import everywhere, over_mesh
from fedoptax.engine.plan import Plan
from fedoptax.engine.round import round_function
from fedoptax.errors import UsageError
from fedoptax.tasks.task import Task

Result = TypeVar("Result")
MAX_ROUNDS = 256
MakeAlgorithm = Callable[..., FedAlgorithm]


class Advance(NamedTuple):
    """The result of some rounds: the states, the rounds done, whether all is finite, and a table of the rounds.

    `rows`, float32 (MAX_ROUNDS, columns), has the program's columns; NaN is what is not known.
    """

    server: Tree
    clients: Tree
    round: jax.Array
    finite: jax.Array
    rows: jax.Array


@dataclass(frozen=True)
class Program:
    """An algorithm on a task, ready to run; made by `program`, compiled at the first call.

    Attributes:
      start: `(hypers, key) -> (server, client)`, the server's state and every client's state before round 0.
      advance: `(hypers, server, clients, data, key, start, stop, eval_every, last, rates) -> Advance`, rounds
        start…stop−1; `clients` are the states of all N clients, stacked, or with `plan.client_states = "host"` those of
        the cohort of the one round that is run; `rates` are the `engine.faults.Rates` of a guarded plan, else None.
      params: `(hypers, server) -> params`.
      prepare: `(hypers, data, key) -> begin`: traces `advance` for these arguments, which its first call else does;
        `begin()` has it compiled while the caller goes on.
      columns: the names of the columns of an `Advance`'s rows.
      bytes_down, bytes_up: bytes of the message to, and the upload from, one client in one round.
      num_params: numbers in the model.
      timings: seconds spent on making `advance`, `"compile"`, and how many of them its calls waited, `"waited"`.
    """

    start: Callable[..., tuple[Tree, Tree]]
    advance: Callable[..., Advance]
    params: Callable[..., Tree]
    prepare: Callable[..., Callable[[], None]]
    columns: tuple[str, ...]
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


@dataclass(frozen=True)
class Point:
    """An algorithm as a point of a grid, `make(**values)`.

    The values are arguments of the program, so all points of the same `make` and the same names share a compilation.
    It can stand where `fedoptax.run` takes an algorithm.

    Attributes:
      make: the constructor, or a `functools.partial` of it.
      values: the hyper-parameters that are left free, as numbers.
    """

    make: MakeAlgorithm
    values: Mapping[str, float]

    @property
    def algorithm(self) -> FedAlgorithm:
        """The algorithm of this point, its values built in."""
        return self.make(**self.values)

    @property
    def arguments(self) -> dict[str, jax.Array]:
        """The values as the program takes them."""
        return on_device({name: np.asarray(value, jnp.result_type(float)) for name, value in self.values.items()})


def program(task: Task, make_algorithm: MakeAlgorithm, plan: Plan, names: tuple[str, ...] = ()) -> Program:
    """Builds the program of `make_algorithm(**hypers)` on `task`; `names` are the hyper-parameters left free.

    The same arguments give the same program, compiled once: seeds and points of a sweep share it.

    Raises:
      UsageError: the algorithm changes the structure, shape or dtype of a state between rounds.
    """
    return _program(task, make_algorithm, plan, names)


@lru_cache(maxsize=8)
def _program(task: Task, make_algorithm: MakeAlgorithm, plan: Plan, names: tuple[str, ...]) -> Program:
    @partial(jax.jit, compiler_options=_quickly())
    def start(hypers: Mapping[str, Any], key: jax.Array) -> tuple[Tree, Tree]:
        algorithm = make_algorithm(**hypers)
        params = task.init(jax.random.fold_in(key, 0))
        return algorithm.init(params), algorithm.init_client(params)

    shapes = {name: jax.ShapeDtypeStruct((), jnp.result_type(float)) for name in names}
    begin = _ahead(start, shapes, jax.eval_shape(lambda: threefry.key(0)))
    init_params = jax.eval_shape(task.init, threefry.key(0))
    tests = column_names(task, init_params, evaluation_data(task))
    columns = ("train_loss", *tests, *guarded_columns(plan))

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
        rates: Rates | None = None,
    ) -> Advance:
        algorithm = make_algorithm(**hypers)
        if plan.has_outcomes:
            assert rates is not None
            a_round = guarded_round_function(task, algorithm, plan, rates)
        else:
            a_round = round_function(task, algorithm, plan)

        def body(state: Advance) -> Advance:
            server, clients, loss, finite, *more = a_round(state.server, state.clients, data, key, state.round)
            number = state.round + 1
            row = [_row(["train_loss"], {"train_loss": loss})]
            test = data.test
            if test is not None:
                due = (jax.lax.rem(number, eval_every) == 0) | (number == last)
                row.append(
                    jax.lax.cond(
                        due & finite,
                        lambda: _row(tests, evaluate(task, algorithm.params(server), test, plan.mesh)),
                        lambda: jnp.full(len(tests), jnp.nan, jnp.float32),
                    )
                )
            row += [_row(guarded_columns(plan), counts) for counts in more]
            rows = state.rows.at[state.round - start].set(jnp.concatenate(row))
            return Advance(server, clients, number, finite, rows)

        empty = jnp.full((MAX_ROUNDS, len(columns)), jnp.nan, jnp.float32)
        first = Advance(server, clients, start, jnp.bool_(True), empty)
        return jax.lax.while_loop(lambda s: (s.round < stop) & s.finite, body, first)

    def params_of(hypers: Mapping[str, Any], server: Tree) -> Tree:
        return make_algorithm(**hypers).params(server)

    down, up = _message_bytes(task, make_algorithm, plan, shapes, init_params)
    size = sum(a.size for a in jax.tree.leaves(init_params))
    timings = {"compile": 0.0, "waited": 0.0}
    advance = _timed(run, plan, timings)

    def prepare(hypers: Mapping[str, Any], data: DeviceData, key: jax.Array) -> Callable[[], None]:
        server, client = jax.eval_shape(start, hypers, key)
        rows = task.num_clients if plan.client_states == "device" else plan.cohort_size
        clients = jax.tree.map(lambda a: jax.ShapeDtypeStruct((rows, *a.shape), a.dtype), client)
        rates = Faults().rates() if plan.has_outcomes else None
        return advance.prepare(hypers, server, clients, data, key, *[np.int32(0)] * 4, rates)

    return Program(begin, advance, params_of, prepare, columns, down, up, size, timings)


def _quickly() -> dict[str, int]:
    """Compiler options for a program that runs once: on a CPU a fifth of the time to compile, and the same numbers."""
    return {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else {}


def _ahead(jitted: Any, *shapes: Any) -> Callable[..., Any]:
    """`jitted`, which is compiled for arguments like `shapes` while the caller goes on; a call waits for that."""
    compiled = _meanwhile(lambda: jitted.lower(*shapes).compile())

    def call(*args: Any) -> Any:
        with suppress(Exception):  # the call meets it again
            compiled()
        return jitted(*args)

    return call


def _meanwhile(work: Callable[[], Result]) -> Callable[[], Result]:
    """Does `work` while the caller goes on; what is returned waits for it and gives, or raises, what came of it."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="fedoptax-compile")
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future.result


def guarded_columns(plan: Plan) -> list[str]:
    """The columns of a round in which clients may fail."""
    return [*COUNTS, "virtual_seconds"] if plan.has_outcomes else []


def _row(names: Sequence[str], columns: Mapping[str, jax.Array]) -> jax.Array:
    """One array for all columns: XLA makes kernels of each array that is written."""
    return jnp.stack([columns[name].astype(jnp.float32) for name in names])


def _message_bytes(
    task: Task, make_algorithm: MakeAlgorithm, plan: Plan, shapes: Mapping[str, Any], params: Tree
) -> tuple[int, int]:
    """Bytes of the real message and upload, by abstract evaluation; checks that states keep their form on the way."""

    def messages(hypers: Mapping[str, Any], params: Tree, batch: Minibatch, steps: jax.Array) -> tuple[Tree, ...]:
        algorithm = make_algorithm(**hypers)
        server = algorithm.init(params)
        client = algorithm.init_client(algorithm.params(server))
        message = algorithm.broadcast(server)
        batches = Batches(steps, lambda k: batch)
        upload, new_client, _ = algorithm.client_update(grad_fn, message, client, batches)
        mean = decoded(algorithm, upload)
        new_server = algorithm.server_update(server, mean, Cohort(plan.cohort_size, task.num_clients))
        return message, upload, (server, client), (new_server, new_client)

    batch = minibatch_form(task, plan.work.batch_size)
    grad_fn = form_of_grad_fn(task, params, batch)
    message, upload, before, after = jax.eval_shape(messages, shapes, params, batch, np.int32(1))
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


def _timed(run: Callable[..., Advance], plan: Plan, timings: dict[str, float]) -> _Timed:
    """`run`, jitted; it is given the key's words, whatever its type. On a mesh all lies whole on each device."""

    def of_words(hypers: Any, server: Tree, clients: Tree, data: DeviceData, words: jax.Array, *more: Any) -> Advance:
        return run(hypers, server, clients, data, threefry.wrapped(words), *more)

    def placed(hypers: Any, server: Tree, clients: Tree, data: DeviceData, key: jax.Array, *more: Any) -> Any:
        given = (hypers, server, clients, data, jax.random.key_data(key), *more)
        return given if plan.mesh == 1 else everywhere(given, plan.mesh)

    program = of_words if plan.mesh == 1 else over_mesh(of_words, plan.mesh)
    return _Timed(jax.jit(program, donate_argnums=(1, 2)), timings, placed)


_ARGUMENTS = 10  # of `run` in `program`


class _Timed:
    """A jitted function, compiled once, at the first call or ahead; notes how long that took, apart from the calls."""

    def __init__(self, jitted: Any, timings: dict[str, float], placed: Callable[..., Any]) -> None:
        self.jitted = jitted
        self._lowered: Any = None
        self._compiled: Callable[[], Any] | None = None
        self._timings, self._placed = timings, placed

    def __call__(self, *given: Any) -> Advance:
        args = self._arguments(given)
        begun = time.perf_counter()
        self._lower(args)
        if self._compiled is None:
            made = self._compile()
            self._compiled = lambda: made
        compiled = self._compiled()
        self._timings["waited"] += time.perf_counter() - begun
        return compiled(*args)

    def prepare(self, *given: Any) -> Callable[[], None]:
        """Traces it for arguments, or their forms; what is returned begins to compile, once, while the caller goes on.

        Of several processes each compiles when it is called: all of them have to meet for that.
        """
        self._lower(self._arguments(given))

        def begin() -> None:
            if self._compiled is None and not several():
                self._compiled = _meanwhile(self._compile)

        return begin

    @property
    def compiled(self) -> Any:
        """The compiled program, waited for; None before it was asked for."""
        return None if self._compiled is None else self._compiled()

    def _arguments(self, given: tuple[Any, ...]) -> Any:
        return self._placed(*given, *[None] * (_ARGUMENTS - len(given)))  # one form for all: rates may be left out

    def _lower(self, args: Any) -> None:
        if self._lowered is None and self._compiled is None:
            begun = time.perf_counter()
            self._lowered = self.jitted.lower(*args)
            self._timings["compile"] += time.perf_counter() - begun

    def _compile(self) -> Any:
        begun = time.perf_counter()
        lowered, self._lowered = self._lowered, None
        compiled = lowered.compile()
        self._timings["compile"] += time.perf_counter() - begun
        return compiled
