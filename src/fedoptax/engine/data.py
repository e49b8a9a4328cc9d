"""Where the training examples live: on the device, or, when they do not fit, where they are, read cohort by cohort.

A federation larger than memory lies in files that are mapped, not read (`FederatedData.open`). Before each round the
rows of its cohort are copied into a buffer of one fixed size, while the round before is still being computed; cohorts,
minibatches and random numbers are those of the other way, so the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from fedoptax._tree import on_device
from fedoptax.engine.client_states import device_bytes
from fedoptax.engine.evaluation import EvaluationData, evaluation_data
from fedoptax.engine.mesh import everywhere
from fedoptax.engine.sampling import cohort_of_round
from fedoptax.errors import UsageError, check_choice
from fedoptax.tasks.task import Task

CHOICES = ("auto", "device", "stream")
DEVICE_SHARE = 0.25  # of the device's memory, at most, for training examples


class DeviceData(NamedTuple):
    """What the program reads: flat training arrays, offsets and sizes of the clients, batched test arrays.

    The clients are all N, or with `plan.examples = "stream"` those of the one round's cohort.
    """

    examples: dict[str, jax.Array]
    offsets: jax.Array
    sizes: jax.Array
    test: EvaluationData | None


@lru_cache(maxsize=4)
def device_data(task: Task) -> DeviceData:
    """The task's arrays on the device, put there once."""
    return _data(task, lambda array: on_device(np.array(array)))


@lru_cache(maxsize=4)
def mesh_data(task: Task, devices: int) -> DeviceData:
    """The same, whole on each of so many devices."""
    return _data(task, lambda array: everywhere(array, devices))


def _data(task: Task, put: Callable[[Any], jax.Array]) -> DeviceData:
    total = int(task.clients.offsets[-1])
    if total >= 2**31:
        raise UsageError(f"task '{task.name}': {total} examples given, allowed is fewer than 2^31")
    return DeviceData(
        {name: put(array) for name, array in task.clients.examples.items()},
        put(np.asarray(task.clients.offsets[:-1], np.int32)),
        put(np.asarray(task.clients.sizes, np.int32)),
        jax.tree.map(put, evaluation_data(task)),
    )


class Resident:
    """All examples on the device, or on each of so many; a call may advance many rounds."""

    many_rounds = True

    def __init__(self, task: Task, devices: int = 1) -> None:
        self._task, self._devices = task, devices

    def of(self, round: int) -> DeviceData:
        """What the program reads in the rounds from `round` on."""
        return device_data(self._task) if self._devices == 1 else mesh_data(self._task, self._devices)

    def close(self) -> None:
        """Nothing is held."""


class Streamed:
    """The cohort's examples of one round at a time; a call advances one round.

    Args:
      task: the task.
      key: of the experiment.
      cohort_size: clients a round.
      rounds: rounds in total; nothing is read for later ones.
    """

    many_rounds = False

    def __init__(self, task: Task, key: jax.Array, cohort_size: int, rounds: int) -> None:
        self._task, self._key, self._cohort_size, self._rounds = task, key, cohort_size, rounds
        self._room = int(np.sort(task.clients.sizes)[-cohort_size:].sum())  # of the largest cohort there can be
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="fedoptax-examples")
        self._ahead: tuple[int, Future[DeviceData]] | None = None

    def of(self, round: int) -> DeviceData:
        """What the program reads in `round`; the next round's is read meanwhile."""
        if self._ahead is None or self._ahead[0] != round:
            self._ahead = (round, self._read_ahead(round))
        data = self._ahead[1].result()
        self._ahead = (round + 1, self._read_ahead(round + 1)) if round + 1 < self._rounds else None
        return data

    def close(self) -> None:
        """Stops reading ahead."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _read_ahead(self, round: int) -> Future[DeviceData]:
        cohort = cohort_of_round(self._key, round, self._task.num_clients, self._cohort_size)
        return self._reader.submit(self._read, np.asarray(cohort))

    def _read(self, cohort: np.ndarray) -> DeviceData:
        clients = self._task.clients
        if self._task.devices is not None:
            cohort = np.arange(self._cohort_size)  # the shares of the active devices
        sizes = clients.sizes[cohort]
        offsets = np.cumsum(sizes) - sizes
        examples = {}
        for name, array in clients.examples.items():
            rows = np.zeros((self._room, *array.shape[1:]), array.dtype)
            for client, start, size in zip(cohort, offsets, sizes):
                first = clients.offsets[client]
                rows[start : start + size] = array[first : first + size]
            examples[name] = on_device(rows)
        return DeviceData(
            examples,
            on_device(offsets.astype(np.int32)),
            on_device(sizes.astype(np.int32)),
            evaluation_data(self._task),
        )


Examples = Resident | Streamed


def choose_examples(choice: str, task: Task, devices: int = 1) -> str:
    """`"device"` or `"stream"`; for `"auto"` the device if the examples take at most a quarter of its memory.

    Each of the devices of a mesh has all examples.

    Raises:
      UsageError: an unknown choice.
    """
    check_choice("examples", choice, CHOICES)
    if choice != "auto":
        return choice
    wanted = sum(array.nbytes for array in task.clients.examples.values())
    return "device" if wanted <= DEVICE_SHARE * device_bytes(devices) else "stream"


def open_examples(
    task: Task, examples: str, key: jax.Array, cohort_size: int, rounds: int, devices: int = 1
) -> Examples:
    """The task's examples for a run: `examples` is `"device"` or `"stream"`, as in `Plan`."""
    return Resident(task, devices) if examples == "device" else Streamed(task, key, cohort_size, rounds)
