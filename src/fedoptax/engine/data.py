"""Where the training examples live: on the device, or, when they do not fit, where they are, read cohort by cohort.

A federation larger than memory lies in files that are mapped, not read (`FederatedData.open`). Before each round the
rows of its cohort are copied into a buffer of one fixed size, while the round before is still being computed; cohorts,
minibatches and random numbers are those of the other way, so the results are the same.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np

from fedoptax._tree import on_device
from fedoptax.engine.evaluation import evaluation_data
from fedoptax.engine.memory import device_bytes
from fedoptax.engine.program import DeviceData, device_data, mesh_data
from fedoptax.engine.sampling import cohort_of_round
from fedoptax.errors import UsageError
from fedoptax.tasks.task import Task

CHOICES = ("auto", "device", "stream")
DEVICE_SHARE = 0.25  # of the device's memory, at most, for training examples


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
    if choice not in CHOICES:
        raise UsageError(f"examples: {choice!r} given, allowed is one of {', '.join(CHOICES)}")
    if choice != "auto":
        return choice
    wanted = sum(array.nbytes for array in task.clients.examples.values())
    return "device" if wanted <= DEVICE_SHARE * device_bytes(devices) else "stream"


def open_examples(
    task: Task, examples: str, key: jax.Array, cohort_size: int, rounds: int, devices: int = 1
) -> Examples:
    """The task's examples for a run: `examples` is `"all"` (on the devices) or `"cohort"`, as in `Plan`."""
    return Resident(task, devices) if examples == "all" else Streamed(task, key, cohort_size, rounds)
