"""A client's round: from the server's message and the client's state to its upload, as one compiled call.

Minibatches, dropout keys and arithmetic are those of the simulation for the same client, round and seed.

What a client keeps between rounds is on its node's disk: its state after each round that the server may come back to.
The server says in every message after which round (`base`) it last used this client's reply, and to which it may go
back when it is restored (`checkpoints`). So a state whose upload was lost on the way is not built upon, and a round
that is repeated begins where it began before: the network computes what the simulation does.
"""

from __future__ import annotations

import io
import json
import re
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax._files import pack_arrays, read_arrays, write_atomically, writing
from fedoptax.algorithm import FedAlgorithm, Tree
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.server import forms
from fedoptax.deploy.wire import WireError, quote, unpack
from fedoptax.engine.batches import LocalWork, client_batches, task_grad_fn
from fedoptax.engine.sampling import round_key
from fedoptax.engine.xla import host_errors
from fedoptax.errors import check_int
from fedoptax.tasks.task import Task, jit

INITIAL = -1
"""The "round" after which a client has its initial state."""


class Order(NamedTuple):
    """The server's order to a client, apart from the message itself."""

    experiment: str  # the run's id, 32 hexadecimal digits
    round: int  # from 0
    base: int  # the round of this client's last reply that the server used; `INITIAL` if none
    checkpoints: tuple[int, ...] = ()  # what `base` may be after the server is restored from one of its checkpoints
    session: int = 0  # grows with each start of the server, also one from an earlier checkpoint
    number: int = 0  # grows with each message of a session

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Order:
        """Return the order in a message; a `UsageError` if `round` or `base` is missing, or a value out of range.

        If the experiment, which names a folder, is not an id, or `checkpoints` not a list, it is a `WireError`.
        """
        experiment, checkpoints = values.get("experiment"), values.get("checkpoints")
        if not isinstance(experiment, str) or not re.fullmatch("[0-9a-f]{32}", experiment):
            raise WireError(f"experiment: {quote(experiment)} instead of 32 hexadecimal digits")
        if not isinstance(checkpoints, list):
            raise WireError(f"checkpoints: {quote(checkpoints)} instead of a list")
        return cls(
            experiment,
            check_int("round", values.get("round"), 0),
            check_int("base", values.get("base"), INITIAL),
            tuple(check_int("checkpoints", round, INITIAL) for round in checkpoints),
            check_int("session", values.get("session", 0), 0, 2**62),
            check_int("number", values.get("number", 0), 0),
        )


class StateFolder:
    """One client's states in one experiment (`ROUND.npz`) and its last order (`order.json`), readable by its owner."""

    def __init__(self, root: Path, experiment: str, partition: int) -> None:
        self._private, self.folder = root / experiment, root / experiment / str(partition)

    def read(self, round: int, like: Tree) -> Tree | None:
        """Return the state after a round; None if it is missing, damaged or has another structure."""
        structs, structure = jax.tree.flatten(like)
        try:
            arrays = read_arrays(io.BytesIO((self.folder / f"{round}.npz").read_bytes()))  # a zip has checksums
            leaves = [arrays[f"{i:05d}"].view(s.dtype).reshape(s.shape) for i, s in enumerate(structs)]
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):
            return None
        return jax.tree.unflatten(structure, leaves)

    def write(self, round: int, state: Tree) -> None:
        """Write the state after a round; it is on the disk when this returns, or a `RunError` says why not."""
        leaves = [np.ascontiguousarray(leaf).reshape(-1).view(np.uint8) for leaf in jax.tree.leaves(state)]
        self._write(f"{round}.npz", pack_arrays({f"{i:05d}": leaf for i, leaf in enumerate(leaves)}))

    def accept(self, order: Order) -> None:
        """Record an order, and remove the states that the server cannot return to.

        An order older than the last is a `WireError`, a note that cannot be written a `RunError`. The last may come
        again, to the worker that follows a killed one: it begins at the same state.
        """
        this = [order.session, order.number]
        with suppress(OSError, ValueError, TypeError):  # none yet, or damaged: its signature is of this run of Flower's
            if this < (last := json.loads((self.folder / "order.json").read_bytes())):
                raise WireError(f"order: number {this} is below {last}, the last one")
        for path in self.folder.glob("[0-9]*.npz"):  # before anything is written: a disk may be full
            round = int(path.stem)
            if round < order.round and round not in (order.base, *order.checkpoints):
                path.unlink(missing_ok=True)
        self._write("order.json", json.dumps(this).encode())

    def _write(self, name: str, content: bytes) -> None:
        with writing(self._private):
            self._private.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self.folder / name, content)


@dataclass(frozen=True)
class NodeClient:
    """One client of a federation: number `partition`, with its local work per round and the experiment's seed.

    `task` is the whole federation's, or has this client's examples alone.
    """

    task: Task
    algorithm: FedAlgorithm
    work: LocalWork
    partition: int
    seed: int

    def examples(self) -> dict[str, np.ndarray]:
        """Return its examples; a `UsageError` if the task has several clients, and not this one."""
        return self.task.clients.client(self.place)

    @property
    def place(self) -> int:
        """Its place among the task's clients; a `UsageError` if there are several, and not this one."""
        count = self.task.clients.num_clients
        return 0 if count == 1 else check_int("partition-id", self.partition, 0, count - 1)

    def compute(self, arrays: bytes, order: Order, root: Path) -> tuple[Tree, dict[str, Any]]:
        """Do the work of a round and return the upload and the numbers that go with it.

        When this returns, the new state is in `root`, the node's folder for states; if it cannot be written, that is a
        `RunError`. A message that does not fit the algorithm is a `WireError`.
        """
        client_form, message_form = forms(self.task, self.algorithm)
        message, (state, is_lost) = unpack(arrays, message_form), self.read_state(order, root)
        begun = time.perf_counter()
        upload, new_state, loss, size = self.train(message, state, order.round)
        numbers = {"num-examples": size, "train-loss": loss, "train-seconds": time.perf_counter() - begun}
        if jax.tree.leaves(client_form):
            StateFolder(root, order.experiment, self.partition).write(order.round, new_state)
        return upload, {**numbers, "state-lost": int(is_lost)}

    def read_state(self, order: Order, root: Path) -> tuple[Tree, bool]:
        """Return the state after the round `order.base`, and whether it was lost; the initial one takes its place."""
        form = forms(self.task, self.algorithm)[0]
        is_kept = bool(jax.tree.leaves(form)) and order.base != INITIAL
        state = StateFolder(root, order.experiment, self.partition).read(order.base, form) if is_kept else None
        if state is None:
            return initial_state(self.task, self.algorithm)(np.uint32(self.seed)), is_kept
        return state, False

    def train(self, message: Tree, state: Tree, round: int) -> tuple[Tree, Tree, float, int]:
        """Do the local work of a round on the algorithm's broadcast; a subclass may do it in another way.

        Return the upload, the state to keep, the mean training loss, and the weight in a mean by examples.
        """
        examples = self.examples()
        update = client_update(self.task, self.algorithm, self.work, len(next(iter(examples.values()))))
        place = np.uint32(self.seed), np.int32(round), np.int32(self.partition)
        with host_errors():
            upload, new_state, loss = jax.device_get(update(message, state, examples, place))
        return upload, new_state, float(loss), int(self.task.weights[self.place])


def default_client(task: Task, deployment: Deployment, partition: int) -> NodeClient:
    """Make the client with compiled rounds."""
    return NodeClient(task, deployment.build_algorithm(), deployment.work, partition, deployment.seed)


@lru_cache(maxsize=4)
def client_update(task: Task, algorithm: FedAlgorithm, work: LocalWork, size: int) -> Any:
    """Return `(message, state, examples, (seed, round, partition)) -> (upload, state, loss)`, compiled as one program.

    `size` is the client's number of examples.
    """
    grad_fn = task_grad_fn(task)

    def update(message: Tree, state: Tree, examples: Tree, place: Tree) -> tuple[Tree, Tree, jax.Array]:
        seed, round, partition = place
        key = jax.random.fold_in(round_key(jax.random.key(seed), round // algorithm.exchanges), partition)
        batches = client_batches(examples, jnp.int32(0), jnp.int32(size), key, work, size)
        return algorithm.client_update(grad_fn, message, state, batches)

    return jit(task, update)


@lru_cache(maxsize=4)
def initial_state(task: Task, algorithm: FedAlgorithm) -> Any:
    """Return `seed -> state`: a client's state before its first round, as in the simulation."""

    @jax.jit
    def start(seed: jax.Array) -> Tree:
        params = task.init(jax.random.fold_in(jax.random.key(seed), 0))
        return algorithm.init_client(jax.tree.map(jnp.asarray, params))

    return start
