"""The eager round: plain Python, one client after another, for debugging."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedoptax.algorithm import BatchList, Cohort, FedAlgorithm, GradFn, check_algorithm, decoded, nbytes, weighted_mean
from fedoptax.engine.plan import Plan
from fedoptax.engine.program import Advance, Fixed, Program, empty_rows, program, round_step
from fedoptax.errors import UsageError, check_function, check_int, check_output, check_type
from fedoptax.tasks.task import Task
from fedoptax.tree import Tree, leaf_names


class RoundInfo(NamedTuple):
    """Facts about a round: the weighted mean training loss, the loss of each client, bytes of all messages."""

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
    key: jax.Array | None = None,
) -> tuple[Tree, list[Tree], RoundInfo]:
    """Run one round of `algorithm` over a cohort.

    Args:
      algorithm: the algorithm.
      grad_fn: `(params, batch) -> (loss, grads)`.
      server: the server's state.
      clients: the cohort's client states, |S| of them.
      batches: for each client of the cohort its list of minibatches, in the form `grad_fn` takes.
      weights: |S| non-negative numbers, not all zero; `None` means uniform.
      num_clients: N, the size of the federation; `None` means all take part (N = |S|).
      key: of the round, for clients that draw random numbers: client i of the cohort gets `fold_in(key, i)`, unless its
        minibatches are a `BatchList` or a `Batches` with a key of its own. `None` is `jax.random.key(0)`, the same in
        every round.

    Returns:
      The new server state, the cohort's new client states, and a `RoundInfo`.

    Raises:
      UsageError: an empty cohort, lists of unequal length, or fewer clients in the federation than in the cohort.
    """
    check_algorithm(algorithm)
    check_type("clients", clients, Sequence)
    check_type("batches", batches, Sequence)
    size = len(clients)
    if size == 0:
        raise UsageError("clients must have at least one client's state, got none")
    if len(batches) != size:
        raise UsageError(f"batches must hold {size} lists, one per client, got {len(batches)}")
    total = size if num_clients is None else check_int("num_clients", num_clients)
    if total < size:
        raise UsageError(f"num_clients must be >= {size}, the cohort's size, got {total}")
    try:
        message = algorithm.broadcast(server)
    except (AttributeError, TypeError) as error:
        raise UsageError(f"server must be a state that algorithm.init(params) returned: {error}") from error
    key, checked = jax.random.key(0) if key is None else key, partial(check_gradient, grad_fn)
    keys = (jax.random.fold_in(key, i) for i in range(size))
    keyed = [b if getattr(b, "key", None) is not None else BatchList(b, own) for b, own in zip(batches, keys)]
    results = [algorithm.client_update(checked, message, client, b) for client, b in zip(clients, keyed)]
    uploads, new_clients, losses = (list(part) for part in zip(*results))
    mean = weighted_mean([(decoded(algorithm, u), loss) for u, loss in zip(uploads, losses)], weights)
    server = algorithm.server_update(server, mean[0], Cohort(size, total))
    info = RoundInfo(mean[1], losses, size * nbytes(message), sum(nbytes(u) for u in uploads))
    return server, new_clients, info


def check_gradient(grad_fn: GradFn, params: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
    """Call a user's `grad_fn`, and check that it returns a loss and a gradient in the parameters' form."""
    check_function("grad_fn", grad_fn, "params, batch")
    result = grad_fn(params, batch)
    if not isinstance(result, tuple) or len(result) != 2:
        raise UsageError(f"grad_fn must return (loss, gradient), got a value of type {type(result).__name__}")
    loss, grads = result
    names, gradient_names = leaf_names(params), leaf_names(grads)
    if names != gradient_names:
        raise UsageError(f"grad_fn must return a gradient with the parameters' names {names}, got {gradient_names}")
    for name, p, g in zip(names, jax.tree.leaves(params), jax.tree.leaves(grads)):
        check_output(f"grad_fn, for parameter '{name}',", g, jnp.shape(p))
    return check_output("grad_fn", loss), grads


def eager_program(task: Task, algorithm: FedAlgorithm, plan: Plan) -> Program:
    """Make a program whose rounds run in plain Python; its cohorts, batches and keys are the compiled program's."""
    built = program(task, Fixed(algorithm), plan)
    step = round_step(task, algorithm, plan, built.columns, is_eager=True)

    def advance(
        hypers: Any, server: Tree, clients: Tree, data: Any, key: jax.Array, start: Any, stop: Any, *more: Any
    ) -> Advance:
        state = Advance(server, clients, jnp.int32(start), jnp.bool_(True), empty_rows(built.columns))
        while state.round < stop and state.finite:
            state = step(state, data, key, start, *more)
        return state

    return replace(built, advance=advance, compile_seconds=lambda: 0.0)
