"""The proximal term of FedProx, on any algorithm."""

from __future__ import annotations

from typing import Any

import jax

from fedoptax import _tree as tree
from fedoptax.algorithm import FedAlgorithm, GradFn, Tree
from fedoptax.errors import UsageError
from fedoptax.hyper import LearningRate, check
from fedoptax.wrappers.gradients import with_gradient


def with_prox(algorithm: FedAlgorithm, mu: Any) -> FedAlgorithm:
    """FedProx's proximal term on any algorithm (Li et al. 2020, *Federated Optimization in Heterogeneous Networks*).

    The client minimises fᵢ(y) + (μ/2)‖y − x‖² (Algorithm 2, line 5): wherever the algorithm takes a gradient, g(y)
    becomes g(y) + μ (y − x), where x is what the client received. The reported loss stays the task's.

    Args:
      algorithm: any algorithm whose message has a field `params`, the received x (all of this package do).
      mu: μ ≥ 0.

    Raises:
      UsageError: μ is not a number ≥ 0, or (when a client runs) the message has no field `params`.
    """
    check("mu", mu, 0.0)

    def proximal(grad_fn: GradFn, message: Any) -> GradFn:
        if not hasattr(message, "params"):
            given = type(message).__name__
            raise UsageError(f"algorithm: its message, {given}, given, allowed is a message with a field 'params' (x)")

        def gradient(y: Tree, batch: Any) -> tuple[jax.Array, Tree]:
            loss, grads = grad_fn(y, batch)
            return loss, tree.add_scaled(grads, mu, tree.sub(y, message.params))

        return gradient

    return with_gradient(algorithm, proximal)


def fedprox(client_lr: LearningRate, mu: Any, server_lr: LearningRate = 1.0) -> FedAlgorithm:
    """FedProx (Li et al. 2020, Algorithm 2): `fedavg` with the proximal term μ; arguments as in those two."""
    from fedoptax.algorithms.fedopt import fedavg  # here, because fedoptax.algorithms lists fedprox

    return with_prox(fedavg(client_lr, server_lr), mu)
