"""Several processes that run one program together, each on its devices.

All take the same steps. Process 0 is the leader: it shows progress and alone reads and writes the run's folder,
but for client states on the host, of which each process has its own.
Whatever decides which step comes next must be the same in all, or one process would wait for ever for another.
"""

import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedoptax._files import to_plain
from fedoptax.errors import RunError, UsageError, check_int

T = TypeVar("T")
PER_PROCESS = ("command", "environment", "trackers")  # fields of a config that may differ
_PIECE = 2**26  # bytes that are sent at a time


def join(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Connect this process to the others, before JAX has touched a device.

    Pass all arguments, or none if JAX can detect them: from Slurm, Open MPI, Kubernetes or a cloud's TPUs. Process 0
    is reached at `coordinator`, `HOST:PORT`; `process` is the number of this one, from 0.
    """
    arguments = {"coordinator": coordinator, "processes": processes, "process": process}
    missing = [name for name, value in arguments.items() if value is None]
    if 0 < len(missing) < 3:
        raise UsageError(f"{missing[0]} is missing: coordinator, processes and process go together")
    if coordinator is not None and process is not None:
        host, _, port = coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UsageError(f"coordinator must be HOST:PORT, got '{coordinator}'")
        check_int("process", process, 0, check_int("processes", processes) - 1)
    method = None if missing else "deactivate"
    try:
        jax.distributed.initialize(coordinator, processes, process, cluster_detection_method=method)
    except ValueError as error:
        if not missing or "be defined" not in str(error):
            raise RunError(f"distributed: {error}") from error
        clusters = "Slurm, Open MPI, Kubernetes or TPU cluster"
        raise UsageError(f"coordinator, processes and process are needed: there is no {clusters}") from None
    except RuntimeError as error:  # as JAX's errors are
        where, reason = coordinator or "the coordinator", str(error).splitlines()[0]
        raise RunError(f"distributed: not all processes connected to {where} ({reason})") from error


def is_distributed() -> bool:
    """Return whether this is one of several processes; a single process does not initialise devices for it."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_leader() -> bool:
    """Return whether this process is the leader, or the only one."""
    return not is_distributed() or jax.process_index() == 0


def run_on_all_or_fail(action: Callable[..., T], *about: Any) -> T:
    """Return `action(*about)`; if it fails in one process, it fails in all, with their own error or the first's."""
    if not is_distributed():
        return action(*about)
    error: Exception | None = None
    try:
        value = action(*about)
    except Exception as caught:
        error = caught
    failed = np.flatnonzero(gather_from_all(np.int32(error is not None)))
    if len(failed):
        text, is_usage = broadcast((str(error) or type(error).__name__, isinstance(error, UsageError)), failed[0])
        raise error or (UsageError if is_usage else RunError)(f"process {failed[0]}: {text}")
    return value


def check_same(config: Mapping[str, Any]) -> None:
    """Check that all processes have the same experiment."""
    if not is_distributed():
        return
    text = json.dumps({name: value for name, value in to_plain(config).items() if name not in PER_PROCESS})
    for number in np.flatnonzero(gather_from_all(np.int32(text != broadcast(text)))):
        raise RunError(f"process {number} has another experiment than process 0: other options, data or code")


def gather_from_all(array: np.ndarray | np.generic) -> np.ndarray:
    """Return the arrays of all processes, equal in shape and dtype, stacked in the processes' order."""
    if not is_distributed():
        return np.asarray(array)[None]
    return np.asarray(multihost_utils.process_allgather(array)).reshape(jax.process_count(), *array.shape)


def broadcast(value: T, source: int = 0) -> T:
    """Return one process's value in every process; its arrays become NumPy's, bit for bit."""
    if not is_distributed():
        return value
    is_source = jax.process_index() == source
    data = pickle.dumps(jax.device_get(value)) if is_source else b""
    length = int.from_bytes(_broadcast_bytes(len(data).to_bytes(8), 8, is_source))
    return pickle.loads(_broadcast_bytes(data, length, is_source))


def _broadcast_bytes(data: bytes, length: int, is_source: bool) -> bytes:
    content: Any = np.frombuffer(data if is_source else bytes(length), np.uint8)
    pieces = [content[i : i + _PIECE] for i in range(0, length, _PIECE)]
    return b"".join(np.asarray(multihost_utils.broadcast_one_to_all(piece, is_source)).tobytes() for piece in pieces)
