"""The training examples: on the device, or if they do not fit, read cohort by cohort from where they are stored.

A federation larger than memory is in files that are mapped, not read (`FederatedData.open`). Before each round the rows
of its cohort are copied into a buffer of one fixed size; cohorts, minibatches and random numbers are the same, and so
are the results.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from fedoptax.engine.batches import count_local_steps
from fedoptax.engine.evaluation import EvaluationData, evaluation_data
from fedoptax.engine.mesh import put_by_device, replicate
from fedoptax.engine.plan import Plan, assign_cohort
from fedoptax.errors import UsageError
from fedoptax.tasks.task import Task


class DeviceData(NamedTuple):
    """The program's data: of all N clients, or with `plan.examples = "stream"` of the one round's cohort.

    The streamed examples have a row for each device of the mesh, with those of the clients that it trains.
    """

    examples: dict[str, jax.Array]  # flat training arrays
    offsets: jax.Array  # of the clients in them
    sizes: jax.Array
    weights: jax.Array  # of the clients, in a mean by examples
    held_out: dict[str, EvaluationData]
    frozen: Any = ()  # the arrays of `Task.frozen`


@lru_cache(maxsize=4)
def device_data(task: Task, devices: int = 1) -> DeviceData:
    """Put the task's arrays once on the device, or in full on each of several devices."""
    total = int(task.clients.offsets[-1])
    if total >= 2**31:
        raise UsageError(f"task '{task.name}' must have fewer than 2^31 examples, got {total}")

    def put(array: Any) -> jax.Array:  # not by `jnp.asarray`, which compiles a program for every new shape (15 ms)
        return jax.device_put(np.array(array)) if devices == 1 else replicate(array, devices)

    return DeviceData(
        {name: put(array) for name, array in task.clients.examples.items()},
        put(np.asarray(task.clients.offsets[:-1], np.int32)),
        put(np.asarray(task.clients.sizes, np.int32)),
        put(np.asarray(task.weights, np.float32)),
        jax.tree.map(put, evaluation_data(task)),
        jax.tree.map(jax.device_put if devices == 1 else put, task.frozen.arrays),
    )


def open_examples(task: Task, plan: Plan, cohort_of: Callable[[int], np.ndarray]) -> Callable[[int], DeviceData]:
    """Make `round -> DeviceData`, what the program reads in that round of a run.

    All examples serve later rounds too; streamed ones are those of the round's cohort, which `cohort_of` gives.
    """
    if plan.examples == "device":
        return lambda round: device_data(task, plan.mesh)
    clients, cohort_size = task.clients, plan.cohort_size
    room = int(np.sort(clients.sizes)[-cohort_size:].sum())  # of the largest cohort there can be
    fixed = evaluation_data(task), task.frozen.arrays
    fixed = replicate(fixed, plan.mesh) if plan.mesh > 1 else jax.device_put(fixed)
    assign = jax.jit(partial(assign_cohort, plan, task))

    def read(round: int) -> DeviceData:
        # with devices, the shares of the active ones
        cohort = cohort_of(round) if task.devices is None else np.arange(cohort_size)
        sizes = clients.sizes[cohort]
        offsets = np.cumsum(sizes) - sizes
        shares = np.asarray(assign(count_local_steps(sizes, plan.work)))

        def rows_of(array: np.ndarray, device: int) -> np.ndarray:
            rows = np.zeros((room, *array.shape[1:]), array.dtype)
            for i in shares[device][shares[device] < cohort_size]:
                first = clients.offsets[cohort[i]]
                rows[offsets[i] : offsets[i] + sizes[i]] = array[first : first + sizes[i]]
            return rows

        examples = {name: put_by_device(partial(rows_of, a), plan.mesh) for name, a in clients.examples.items()}
        numbers = offsets.astype(np.int32), sizes.astype(np.int32), task.weights[cohort].astype(np.float32)
        offsets, sizes, weights = jax.device_put(numbers)
        return DeviceData(examples, offsets, sizes, weights, *fixed)

    return read
