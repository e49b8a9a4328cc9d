"""The training examples: on the device, or if they do not fit, read cohort by cohort from where they are stored.

A federation larger than memory is in files that are mapped, not read (`FederatedData.open`). Before each round the rows
of its cohort are copied into a buffer of one fixed size; cohorts, minibatches and random numbers are the same, and so
are the results.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from fedoptax.engine.evaluation import EvaluationData, evaluation_data
from fedoptax.engine.mesh import replicate
from fedoptax.errors import UsageError
from fedoptax.tasks.task import Task


class DeviceData(NamedTuple):
    """The program's data: flat training arrays, offsets and sizes of the clients, batched held-out arrays.

    The clients are all N, or with `plan.examples = "stream"` those of the one round's cohort. `frozen` are the arrays
    of `Task.frozen`.
    """

    examples: dict[str, jax.Array]
    offsets: jax.Array
    sizes: jax.Array
    held_out: dict[str, EvaluationData]
    frozen: Any = ()


@lru_cache(maxsize=4)
def device_data(task: Task, devices: int = 1) -> DeviceData:
    """Put the task's arrays on the device, or whole on each of so many devices, once."""
    total = int(task.clients.offsets[-1])
    if total >= 2**31:
        raise UsageError(f"task '{task.name}' must have fewer than 2^31 examples, got {total}")

    def put(array: Any) -> jax.Array:  # not by `jnp.asarray`, which compiles a program for every new shape (15 ms)
        return jax.device_put(np.array(array)) if devices == 1 else replicate(array, devices)

    return DeviceData(
        {name: put(array) for name, array in task.clients.examples.items()},
        put(np.asarray(task.clients.offsets[:-1], np.int32)),
        put(np.asarray(task.clients.sizes, np.int32)),
        jax.tree.map(put, evaluation_data(task)),
        jax.tree.map(jax.device_put if devices == 1 else put, task.frozen.arrays),
    )


def open_examples(
    task: Task, examples: str, cohort_of: Callable[[int], np.ndarray], cohort_size: int, devices: int = 1
) -> Callable[[int], DeviceData]:
    """Make `round -> DeviceData`, what the program reads in that round of a run.

    `examples` is `"device"`, all of them, which serve later rounds too, or `"stream"`, those of the round's cohort,
    which `cohort_of` gives.
    """
    if examples == "device":
        return lambda round: device_data(task, devices)
    clients = task.clients
    room = int(np.sort(clients.sizes)[-cohort_size:].sum())  # of the largest cohort there can be

    def read(round: int) -> DeviceData:
        # with devices, the shares of the active ones
        cohort = cohort_of(round) if task.devices is None else np.arange(cohort_size)
        sizes = clients.sizes[cohort]
        offsets = np.cumsum(sizes) - sizes
        cohort_examples = {}
        for name, array in clients.examples.items():
            rows = np.zeros((room, *array.shape[1:]), array.dtype)
            for client, start, size in zip(cohort, offsets, sizes):
                first = clients.offsets[client]
                rows[start : start + size] = array[first : first + size]
            cohort_examples[name] = jax.device_put(rows)
        offsets, sizes = jax.device_put((offsets.astype(np.int32), sizes.astype(np.int32)))
        return DeviceData(cohort_examples, offsets, sizes, evaluation_data(task), task.frozen.arrays)

    return read
