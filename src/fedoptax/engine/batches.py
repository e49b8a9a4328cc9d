"""A client's local work: its minibatches of a round, and the gradient of the task's loss on one of them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Batches, GradFn, Tree
from fedoptax.engine.sampling import permutation
from fedoptax.tasks.task import Task, padded_loss
from fedoptax.wrappers import clipped


@dataclass(frozen=True)
class LocalWork:
    """A client's work in a round: `epochs` passes over its examples, or exactly `steps` minibatches if not None."""

    batch_size: int = 20
    epochs: int = 1
    steps: int | None = None


class Minibatch(NamedTuple):
    """Examples `{field: (batch, …), "mask": bool (batch,)}` and the key of the batch's randomness (dropout)."""

    examples: dict[str, jax.Array]
    key: jax.Array


def task_grad_fn(task: Task) -> GradFn:
    """Make `(params, minibatch) -> (loss, grads)` for `task`, clipped if the task asks for it.

    Two gradients on one batch share its randomness.
    """

    def loss(params: Tree, batch: Minibatch) -> jax.Array:
        return padded_loss(task.loss, params, batch.examples, batch.key, f"loss of task '{task.name}'")

    grad_fn = jax.value_and_grad(loss)
    return clipped(grad_fn, task.clip_norm) if task.clip_norm else grad_fn


def minibatch_form(task: Task, batch_size: int) -> Minibatch:
    """Shapes and dtypes of a minibatch."""
    form = {
        name: jax.ShapeDtypeStruct((batch_size, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype))
        for name, array in task.clients.examples.items()
    }
    form["mask"] = jax.ShapeDtypeStruct((batch_size,), np.dtype(bool))
    return jax.eval_shape(lambda examples: Minibatch(examples, jax.random.key(0)), form)


def client_batches(
    examples: dict[str, jax.Array],
    offset: jax.Array,
    size: jax.Array,
    key: jax.Array,
    work: LocalWork,
    capacity: int,
    exact: bool = True,
    smallest: int = 0,
) -> Batches:
    """Make the minibatches of one client in one round, each a `Minibatch` that is gathered when it is needed.

    Each epoch is a new permutation in ⌈n/b⌉ batches, the last one padded; a number of steps cycles through one
    permutation. `examples` are the federation's flat arrays, (total, …) each; `offset` and `size` are the client's
    first row and n, both traced; `capacity` is the largest n. For `exact` and `smallest` see `permutation`.
    """
    order_key, dropout_key = jax.random.split(key)
    lanes = jnp.arange(work.batch_size, dtype=jnp.int32)
    epochs = work.epochs if work.steps is None else 1

    def order(epoch: Any) -> jax.Array:
        return permutation(jax.random.fold_in(order_key, epoch), size, capacity, exact, smallest)

    # A loop, not a list: each permutation in the program would take as long to compile as the first.
    orders = order(0)[None] if epochs == 1 else jax.lax.map(order, jnp.arange(epochs))
    steps_per_epoch = _count_batches(size, work)

    def get(k: Any) -> Minibatch:
        if work.steps is None:
            epoch: Any = k // steps_per_epoch
            place = (k % steps_per_epoch) * work.batch_size + lanes
            mask = place < size
        else:
            epoch, place, mask = 0, (k * work.batch_size + lanes) % size, lanes < size
        return gather(orders[epoch, jnp.where(mask, place, 0)], mask, jax.random.fold_in(dropout_key, k))

    def gather(rows: jax.Array, mask: jax.Array, key: jax.Array) -> Minibatch:
        batch = {name: array.at[offset + rows].get(mode="clip") for name, array in examples.items()}
        return Minibatch({**batch, "mask": mask}, key)

    def everything() -> Minibatch:
        rows = jnp.arange(capacity, dtype=jnp.int32)
        return gather(rows, rows < size, dropout_key)

    steps = epochs * steps_per_epoch if work.steps is None else jnp.int32(work.steps)
    return Batches(steps, get, jax.random.fold_in(key, 2), everything)


def smallest_batch(sizes: np.ndarray, work: LocalWork) -> int:
    """Count the examples of the smallest minibatch of clients with these numbers of examples."""
    last = sizes if work.steps is not None else (sizes - 1) % work.batch_size + 1
    return min(work.batch_size, int(last.min()))


def count_local_steps(sizes: Any, work: LocalWork) -> jax.Array:
    """Count the local steps per round of clients with `sizes` examples, int32 in the shape of `sizes`."""
    if work.steps is not None:
        return jnp.full(sizes.shape, work.steps, jnp.int32)
    return (work.epochs * _count_batches(sizes, work)).astype(jnp.int32)


def _count_batches(size: Any, work: LocalWork) -> Any:
    return (size + work.batch_size - 1) // work.batch_size
