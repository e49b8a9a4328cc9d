"""Several processes that run one program together, each on its own devices: who leads, and what they agree on.

All go through the same steps. The first one, process 0, leads: it alone reads and writes the run's folder and shows
progress. Whatever decides which step comes next is agreed, or one process would wait for ever for another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Tree
from fedoptax.errors import LONGEST, RunError, UsageError, brief
from fedoptax.storage.folder import read_back

T = TypeVar("T")
_TEXT = 4 * LONGEST  # bytes of an error's message, at most
_PIECE = 2**26  # bytes that are sent at a time


def several() -> bool:
    """Whether this is one of several processes; one that is alone touches no device for the answer."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def leads() -> bool:
    """Whether this process leads, as one that is alone does."""
    return not several() or jax.process_index() == 0


def agreed(action: Callable[[], T]) -> T:
    """What `action` gives; where it fails in one process it fails in all, with the error of the first that failed.

    Raises:
      UsageError, RunError: what `action` raised, here or elsewhere.
    """
    if not several():
        return action()
    error: Exception | None = None
    try:
        value = action()
    except Exception as caught:
        error = caught
    status = 0 if error is None else 2 if isinstance(error, UsageError) else 1
    told = [(int(row[0]), row[1:].tobytes().rstrip(b"\0").decode()) for row in _everyones(_packed(status, error))]
    if error is not None:
        raise error
    for number, (status, text) in enumerate(told):
        if status:
            raise (UsageError if status == 2 else RunError)(f"process {number}: {text}")
    return value


def agree(signal: int, seconds: float) -> tuple[int, float]:
    """The signal that came to any process, 0 for none, and the seconds that the leader measured."""
    if not several():
        return signal, seconds
    everyone = _everyones(np.array([signal, seconds], np.float32))
    return int(everyone[:, 0].max()), float(everyone[0, 1])


def check_same(config: Mapping[str, Any]) -> None:
    """Checks that all processes were given the same experiment.

    Raises:
      RunError: a process has another config than the leader.
    """
    if not several():
        return
    known = {name: value for name, value in config.items() if name not in ("environment", "trackers")}
    digest = hashlib.sha256(json.dumps(read_back(known), sort_keys=True).encode()).digest()
    everyone = _everyones(np.frombuffer(digest, np.uint8))
    for number, row in enumerate(everyone):
        if not np.array_equal(row, everyone[0]):
            raise RunError(f"process {number} was given another experiment than process 0: other options, data or code")


def shared(tree: Tree) -> Tree:
    """The leader's arrays in every process, bit for bit; shapes and types are the same everywhere."""
    if not several():
        return tree
    leaves, structure = jax.tree.flatten(tree)
    done = []
    for leaf in map(np.asarray, leaves):
        sent = _shared_bytes(leaf.tobytes(), leaf.nbytes)
        done.append(jnp.asarray(np.frombuffer(sent, leaf.dtype).reshape(leaf.shape)))
    return jax.tree.unflatten(structure, done)


def shared_value(value: Any) -> Any:
    """The leader's value, of what JSON can hold, in every process."""
    if not several():
        return value
    data = json.dumps(value).encode()
    length = np.frombuffer(_shared_bytes(np.int64(len(data)).tobytes(), 8), np.int64)[0]
    return json.loads(_shared_bytes(data, int(length)))


def _packed(status: int, error: Exception | None) -> np.ndarray:
    row = np.zeros(1 + _TEXT, np.uint8)
    text = "" if error is None else brief(error if str(error) else type(error).__name__, LONGEST)
    data = text.encode()[:_TEXT]
    row[0] = status
    row[1 : 1 + len(data)] = np.frombuffer(data, np.uint8)
    return row


def _everyones(row: np.ndarray) -> np.ndarray:
    """The rows of all processes, stacked in their order."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(row)).reshape(jax.process_count(), *row.shape)


def _shared_bytes(data: bytes, length: int) -> bytes:
    from jax.experimental import multihost_utils

    own = np.frombuffer(data if leads() else bytes(length), np.uint8)
    pieces = [own[i : i + _PIECE] for i in range(0, length, _PIECE)]
    return b"".join(np.asarray(multihost_utils.broadcast_one_to_all(piece)).tobytes() for piece in pieces)
