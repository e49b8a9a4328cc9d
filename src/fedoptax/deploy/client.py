"""A client's round: from the server's message and what the client kept to its upload, as one compiled call.

Minibatches, dropout keys and arithmetic are those of the simulation for the same client, round and seed.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import FedAlgorithm, Tree
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.memory import INITIAL, StateFolder, blob_size, checked_experiment, from_blob, stale, to_blob
from fedoptax.deploy.server import Forms, forms
from fedoptax.deploy.wire import WireArray, WireError, pack, shown, unpack
from fedoptax.engine.batches import LocalWork, client_batches, task_grad_fn
from fedoptax.engine.sampling import round_key
from fedoptax.errors import UsageError
from fedoptax.tasks.task import Task

MOST_KEPT = 16  # rounds that a server may name

Blobs = MutableMapping[int, bytes]
"""The states that a client has in memory, by round."""


class Order(NamedTuple):
    """What the server asks of a client, apart from the message itself; see `memory` for `base`, `keep` and `kept`."""

    experiment: str
    round: int
    base: int
    keep: int
    kept: tuple[int, ...] | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Order:
        """The order in a message.

        Raises:
          WireError: a value is missing or out of range.
        """

        def whole(name: str, value: object, low: int) -> int:
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 2**31:
                raise WireError(f"{name}: {shown(value)} instead of a whole number from {low}")
            return value

        experiment = checked_experiment(given.get("experiment"))
        kept = given.get("kept")  # a server of an earlier version, or just resumed, does not tell
        if kept is not None and (not isinstance(kept, list) or len(kept) > MOST_KEPT):
            raise WireError(f"kept: {shown(kept)} instead of at most {MOST_KEPT} whole numbers")
        each = None if kept is None else tuple(whole("kept", round, INITIAL) for round in kept)
        lowest = {"round": 0, "base": INITIAL, "keep": INITIAL}
        numbers = {name: whole(name, given.get(name), low) for name, low in lowest.items()}
        return cls(experiment, **numbers, kept=each)


class Answer(NamedTuple):
    """A client's upload by name, its numbers, and the state it keeps, as bytes by round."""

    arrays: dict[str, WireArray]
    numbers: dict[str, int | float]
    kept: dict[int, bytes]


@dataclass(frozen=True)
class Client:
    """One client of a federation.

    Attributes:
      task: whole, or with this client's examples alone.
      algorithm: the algorithm.
      work: its local work of a round.
      partition: its number in the federation.
      seed: of the experiment.
    """

    task: Task
    algorithm: FedAlgorithm
    work: LocalWork
    partition: int
    seed: int

    def examples(self) -> dict[str, np.ndarray]:
        """Its examples.

        Raises:
          UsageError: the task has several clients, and not this one.
        """
        clients = self.task.clients
        if clients.num_clients == 1:
            return clients.client(0)
        if not 0 <= self.partition < clients.num_clients:
            raise UsageError(
                f"partition-id: {self.partition} given, allowed is 0 to {clients.num_clients - 1} for this task"
            )
        return clients.client(self.partition)

    def answer(self, arrays: Mapping[str, WireArray], order: Order, blobs: Blobs, folder: StateFolder | None) -> Answer:
        """Does a round's work.

        Args:
          arrays: the server's message.
          order: what to do.
          blobs: the states in memory.
          folder: where the states are on disk, or None; the new one is written there before this returns.

        Raises:
          WireError: the message is not what the algorithm sends.
          RunError: the state cannot be written.
        """
        form = forms(self.task, self.algorithm)
        message = unpack(arrays, form.message)
        state, lost = self._state(form, order, blobs, folder)
        upload, new_state, loss, size = self.train(message, state, order.round)
        kept = dict(blobs)
        if jax.tree.leaves(form.client):
            kept[order.round] = to_blob(new_state)
            if folder is not None:
                folder.write(order.round, kept[order.round])
                folder.drop(r for r in stale(folder.rounds(), *order[2:]) if r != order.round)
        for round in stale(kept, *order[2:]):
            if round != order.round:
                del kept[round]
        told = {"num-examples": size, "train-loss": loss, "state-lost": int(lost)}
        return Answer(pack(upload), told, kept)

    def train(self, message: Tree, state: Tree, round: int) -> tuple[Tree, Tree, float, int]:
        """Do the local work of a round; a subclass may do it in another way.

        Args:
          message: what the algorithm broadcast.
          state: what the client kept.
          round: the round's number.

        Returns:
          The upload, the state to keep, the mean training loss, and the number of examples.
        """
        examples = self.examples()
        size = len(next(iter(examples.values())))
        update = client_update(self.task, self.algorithm, self.work, size)
        numbers = (np.uint32(self.seed), np.int32(round), np.int32(self.partition))
        upload, new_state, loss = jax.device_get(update(message, state, examples, *numbers))
        return upload, new_state, float(loss), size

    def _state(self, form: Forms, order: Order, blobs: Blobs, folder: StateFolder | None) -> tuple[Tree, bool]:
        """The state after round `order.base`, and whether it should be there but is not: then it begins anew."""
        lost = False
        if order.base != INITIAL and jax.tree.leaves(form.client):
            on_disk = None if folder is None else folder.read(order.base, blob_size(form.client))
            for blob in (blobs.get(order.base), on_disk):
                try:
                    if blob is not None:
                        return from_blob(blob, form.client), False
                except WireError:
                    continue
            lost = True
        return initial_state(self.task, self.algorithm)(np.uint32(self.seed)), lost


def default_client(task: Task, deployment: Deployment, partition: int) -> Client:
    """Make the client whose rounds are compiled."""
    algorithm = deployment.build_algorithm()
    return Client(task, algorithm, deployment.options.work, partition, deployment.seed)


@lru_cache(maxsize=4)
def client_update(task: Task, algorithm: FedAlgorithm, work: LocalWork, size: int) -> Any:
    """`(message, state, examples, seed, round, partition) -> (upload, state, loss)`, compiled as one program.

    Args:
      task: the task.
      algorithm: the algorithm.
      work: the local work of a round.
      size: the client's number of examples.
    """
    grad_fn = task_grad_fn(task)

    @jax.jit
    def update(
        message: Tree, state: Tree, examples: Tree, seed: jax.Array, round: jax.Array, partition: jax.Array
    ) -> tuple[Tree, Tree, jax.Array]:
        key = jax.random.fold_in(round_key(jax.random.key(seed), round), partition)
        batches = client_batches(examples, jnp.int32(0), jnp.int32(size), key, work, size)
        return algorithm.client_update(grad_fn, message, state, batches)

    return update


@lru_cache(maxsize=4)
def initial_state(task: Task, algorithm: FedAlgorithm) -> Any:
    """`seed -> state`: a client's state before its first round, as in the simulation."""

    @jax.jit
    def start(seed: jax.Array) -> Tree:
        return algorithm.init_client(task.init(jax.random.fold_in(jax.random.key(seed), 0)))

    return start


def state_folder(root: str | None, order: Order, partition: int) -> StateFolder | None:
    """The node's folder for this client's states; None if the node names none."""
    return None if not root else StateFolder(Path(root).expanduser(), order.experiment, partition)
