"""The compiled engine: many rounds of an algorithm on a task as one XLA program.

Sampling, batching, local training, the weighted mean, the server's update and evaluation all happen inside; data and
hyper-parameters are arguments, never constants (a captured data set takes XLA tens of seconds to compile). One call
advances any number of rounds up to `MAX_ROUNDS` without recompiling, and stops by itself at a non-finite state.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax import tree
from fedoptax.algorithm import Batches, Cohort, FedAlgorithm, Tree, cond, decoded, nbytes
from fedoptax.engine.aggregation import SecureMean
from fedoptax.engine.batches import Minibatch, minibatch_form, smallest_batch, task_grad_fn
from fedoptax.engine.data import DeviceData
from fedoptax.engine.evaluation import column_names, evaluate, evaluation_data
from fedoptax.engine.faults import COUNTS, Rates
from fedoptax.engine.mesh import BY_DEVICE, EVERYWHERE, over_mesh, replicate
from fedoptax.engine.options import is_evaluated
from fedoptax.engine.plan import Plan, runs_sequentially
from fedoptax.engine.round import RoundInput, plain_round
from fedoptax.engine.sampling import random_settings
from fedoptax.engine.variants import asynchronous_round, checked_round
from fedoptax.engine.xla import Compiled, as_bits, describe_memory, quick_options
from fedoptax.errors import UsageError, check_output, shorten
from fedoptax.tasks.task import Task, jit

MAX_ROUNDS = 256
MakeAlgorithm = Callable[..., FedAlgorithm]


class Advance(NamedTuple):
    """The result of some rounds."""

    server: Tree
    clients: Tree
    round: jax.Array  # the number of rounds done
    finite: jax.Array  # whether loss and server are
    rows: jax.Array  # (MAX_ROUNDS, columns), bits of float32 (`as_bits`); NaN is what is not known


@dataclass(frozen=True)
class Program:
    """An algorithm on a task, ready to run; made by `program`, compiled at the first call.

    `start(hypers, key) -> (server, client)` are the server's state and every client's state before round 0.
    `advance(hypers, server, clients, data, key, start, stop, evaluations, last, rates, schedule)` does the rounds
    start…stop−1. `clients` are the states of all N clients, stacked, or with `plan.client_states = "host"` those of the
    cohort of the one round that is run; `rates` are `Faults.rates`. In asynchronous rounds `clients` are the messages
    in use, and `schedule` is the `ArrivalSchedule` from `start` on, of MAX_ROUNDS rows.
    """

    start: Callable[..., tuple[Tree, Tree]]
    advance: Callable[..., Advance]
    columns: tuple[str, ...]  # the names of the columns of an `Advance`'s rows
    bytes_down: int  # of the message to one client in one round
    bytes_up: int  # of its upload
    num_params: int  # numbers in the model
    compile_seconds: Callable[[], float]  # spent on tracing and compiling `advance`; 0 before its first call


@dataclass(frozen=True)
class Fixed:
    """A constructor of one algorithm, without free hyper-parameters; equal for equal algorithms."""

    algorithm: FedAlgorithm

    def __call__(self) -> FedAlgorithm:
        """Return the algorithm."""
        return self.algorithm


@dataclass(frozen=True)
class Point:
    """An algorithm as a point of a grid, `make(**values)`.

    The values are arguments of the program, so all points of the same `make` and the same names share a compilation.
    `fedoptax.run` takes it in place of an algorithm.

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
        """The values as the program's arguments."""
        return jax.device_put({name: np.asarray(value, jnp.result_type(float)) for name, value in self.values.items()})


def program(task: Task, make_algorithm: MakeAlgorithm, plan: Plan, names: tuple[str, ...] = ()) -> Program:
    """Build the program of `make_algorithm(**hypers)` on `task`; `names` are the free ones. Equal calls share it."""
    settings = *random_settings().values(), jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return _program(task, make_algorithm, plan, names, settings)


def _log_memory(task: Task, plan: Plan, compiled: Any) -> None:
    """Log what a round of a pretrained model takes, before it is taken."""
    if task.is_pretrained:
        clients = 1 if runs_sequentially(plan, task) else -(-plan.cohort_size // plan.mesh)  # at a time
        logging.getLogger("fedoptax").info(describe_memory(compiled, clients))


@lru_cache(maxsize=8)
def _program(
    task: Task, make_algorithm: MakeAlgorithm, plan: Plan, names: tuple[str, ...], settings: tuple[Any, ...]
) -> Program:
    del settings  # with which it is compiled

    def start(hypers: Mapping[str, Any], key: jax.Array) -> tuple[Tree, Tree]:
        algorithm = make_algorithm(**hypers)
        params = jax.tree.map(jnp.asarray, task.init(jax.random.fold_in(key, 0)))  # of NumPy, perhaps
        return algorithm.init(params), algorithm.init_client(params)

    def advance(
        hypers: Any, server: Tree, clients: Tree, data: DeviceData, key: jax.Array, start: Any, stop: Any, *more: Any
    ) -> Advance:
        step = round_step(task, make_algorithm(**hypers), plan, columns)
        with task.frozen.bound(data.frozen):
            return jax.lax.while_loop(
                lambda state: (state.round < stop) & state.finite,
                lambda state: step(state, data, key, start, *more),
                Advance(server, clients, start, jnp.bool_(True), empty_rows(columns)),
            )

    shapes = {name: jax.ShapeDtypeStruct((), jnp.result_type(float)) for name in names}
    all_: Any = EVERYWHERE
    examples: Any = all_ if plan.examples == "device" else BY_DEVICE
    specs = all_, all_, all_, DeviceData(examples, all_, all_, all_, all_, all_), *[all_] * 7
    on_devices = advance if plan.mesh == 1 else over_mesh(advance, plan.mesh, specs)
    compiled = Compiled(jax.jit(on_devices, donate_argnums=(1, 2)), partial(_log_memory, task, plan))
    params = jax.eval_shape(task.init, jax.eval_shape(lambda: jax.random.key(0)))
    counts = (*COUNTS, "virtual_seconds") if plan.has_outcomes else ()
    columns = ("train_loss", *column_names(task, params, evaluation_data(task)), *counts)
    down, up = _count_message_bytes(task, make_algorithm, plan, shapes, params)
    return Program(
        jit(task, start, compiler_options=quick_options()),
        lambda *args: compiled(*(args if plan.mesh == 1 else replicate(args, plan.mesh))),
        columns,
        down,
        up,
        sum(a.size for a in jax.tree.leaves(params)),
        lambda: compiled.seconds,
    )


def round_step(
    task: Task, algorithm: FedAlgorithm, plan: Plan, columns: Sequence[str], is_eager: bool = False
) -> Callable[..., Advance]:
    """Make `(state, data, key, start, evaluations, last, rates, schedule) -> state`: a round, its evaluation, a row."""
    make = asynchronous_round if plan.concurrency is not None else checked_round if plan.has_outcomes else plain_round
    run_round = make(task, algorithm, plan, is_eager)

    @jax.jit
    def test(server: Tree, data: Any) -> dict[str, jax.Array]:
        return jax.tree.map(as_bits, evaluate(task, algorithm.params(server), data, plan.mesh))

    def step(
        state: Advance, data: Any, key: jax.Array, start: Any, evaluations: Any, last: Any, rates: Rates, schedule: Any
    ) -> Advance:
        inputs = RoundInput(data, key, state.round, rates, tree.take(schedule, state.round - start))
        result = run_round(state.server, state.clients, inputs)
        number, row = state.round + 1, result.columns
        if data.held_out:
            is_due = is_evaluated(number, last, evaluations)
            unknown = {name: as_bits(0, False) for name in columns if name not in row}
            row = row | cond(is_due & result.finite, lambda: test(result.server, data.held_out), lambda: unknown)
        rows = state.rows.at[state.round - start].set(jnp.stack([row[name] for name in columns]))
        return Advance(result.server, result.clients, number, result.finite, rows)

    return step


def empty_rows(columns: Sequence[str]) -> jax.Array:
    """The table of an `Advance` before its first round."""
    return jnp.full((MAX_ROUNDS, len(columns)), as_bits(0, False))


def _count_message_bytes(
    task: Task, make_algorithm: MakeAlgorithm, plan: Plan, shapes: Mapping[str, Any], params: Tree
) -> tuple[int, int]:
    """Count the bytes of message and upload by abstract evaluation, and check that states keep their form."""

    def messages(hypers: Mapping[str, Any], params: Tree, batch: Minibatch, steps: jax.Array) -> tuple[Tree, ...]:
        algorithm = make_algorithm(**hypers)
        server, client = algorithm.init(params), algorithm.init_client(params)
        message = algorithm.broadcast(server)
        batches = Batches(steps, lambda k: batch, jax.random.key(0), lambda: batch)
        result = algorithm.client_update(grad_fn, message, client, batches)
        if not isinstance(result, tuple) or len(result) != 3:
            raise UsageError(f"client_update must return (upload, client, loss), got {shorten(result)}")
        upload, new_client, loss = result
        check_output("client_update's loss", loss, verb="be")
        mean = decoded(algorithm, upload)
        if any(isinstance(a, str) or jnp.iscomplexobj(a) for a in jax.tree.leaves(mean)):
            raise UsageError("client_update's upload must be of real numbers, got complex ones or text")
        if isinstance(plan.aggregate, SecureMean):
            upload = plan.aggregate.zero(mean)
        new_server = algorithm.server_update(server, mean, Cohort(plan.cohort_size, task.num_clients))
        return message, upload, (server, client, params), (new_server, new_client, algorithm.params(server))

    batch, grad_fn = minibatch_form(task, plan.work.batch_size), task_grad_fn(task)
    message, upload, before, after = jax.eval_shape(messages, shapes, params, batch, np.int32(1))
    if smallest_batch(task.clients.sizes, plan.work) == 1:  # which a loss may refuse, before the first round
        jax.eval_shape(messages, shapes, params, minibatch_form(task, 1), np.int32(1))
    for name, old, new in zip(("server_update", "client_update", "params"), before, after):
        structure, new_structure = str(jax.tree.structure(old)), str(jax.tree.structure(new))
        if structure != new_structure:
            raise UsageError(f"{name} must keep the structure {structure}, got {new_structure}")
        for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new)):
            if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):  # which checkpoints cannot hold
                raise UsageError(f"{name}: {jax.tree_util.keystr(path)} must be jax.random.key_data of a key")
            form, new_form = f"{a.dtype}{list(a.shape)}", f"{b.dtype}{list(b.shape)}"
            if form != new_form:
                raise UsageError(f"{name} must keep {jax.tree_util.keystr(path)} {form}, got {new_form}")
    return nbytes(message), nbytes(upload)
