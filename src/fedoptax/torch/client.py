"""A client on a network whose rounds are eager: the deployment's own client, with PyTorch in its algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedoptax.deploy.client import Answer, Blobs, Client, Order
from fedoptax.deploy.memory import StateFolder
from fedoptax.deploy.wire import WireArray


@dataclass(frozen=True)
class ModuleClient(Client):
    """A `Client` whose algorithm is one of `with_module` or `native`.

    Its minibatches are those of the JAX client of the same partition, round and seed, and the server cannot tell the
    two apart. Of the task it needs the form of the parameters and the client's examples, not the loss.
    """

    def examples(self) -> dict[str, Any]:
        """Its examples; see `Client.examples`."""
        return {name: jnp.asarray(array) for name, array in super().examples().items()}

    def answer(self, arrays: Mapping[str, WireArray], order: Order, blobs: Blobs, folder: StateFolder | None) -> Answer:
        """Does a round's work; see `Client.answer`."""
        with jax.disable_jit():  # what a client compiles runs as it is written, since PyTorch cannot be compiled
            return super().answer(arrays, order, blobs, folder)
