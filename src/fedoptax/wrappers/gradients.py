"""What the wrappers of gradients share: another gradient for the same algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fedoptax.algorithm import FedAlgorithm, GradFn, Tree


def with_gradient(algorithm: FedAlgorithm, change: Callable[[GradFn, Any], GradFn]) -> FedAlgorithm:
    """`algorithm` with `change(grad_fn, message)` in place of the gradient that its clients are given."""

    def client_update(grad_fn: GradFn, message: Any, client: Tree, batches: Any) -> tuple[Tree, Tree, jax.Array]:
        return algorithm.client_update(change(grad_fn, message), message, client, batches)

    return algorithm._replace(client_update=client_update)
