"""Functions from algorithm to algorithm. Each changes the gradients that the clients see and keeps everything else.

Wrappers nest: the outer one meets the task's gradient first. `with_prox(with_clipping(a, 1.0), 0.1)` clips the
gradient of the proximal objective; `with_clipping(with_prox(a, 0.1), 1.0)` clips the task's gradient, then adds the
proximal term.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import FedAlgorithm, GradFn, Tree
from fedoptax.errors import UsageError
from fedoptax.hyper import LearningRate, check, check_positive


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

    return _with_gradient(algorithm, proximal)


def with_clipping(algorithm: FedAlgorithm, max_norm: Any) -> FedAlgorithm:
    """Clips every minibatch gradient to a global 2-norm: g ← g min(1, max_norm/‖g‖) (Pascanu et al. 2013).

    Args:
      algorithm: any algorithm.
      max_norm: > 0.

    Raises:
      UsageError: `max_norm` is not a number > 0.
    """
    check_positive(max_norm=max_norm)

    return _with_gradient(algorithm, lambda grad_fn, message: clipped(grad_fn, max_norm))


def clipped(grad_fn: GradFn, max_norm: Any) -> GradFn:
    """`grad_fn` with its gradients clipped to a global 2-norm; see `with_clipping`."""

    def gradient(y: Tree, batch: Any) -> tuple[jax.Array, Tree]:
        loss, grads = grad_fn(y, batch)
        norm = _global_norm(grads)
        limit = jnp.asarray(max_norm, norm.dtype)
        return loss, tree.scale(limit / jnp.maximum(norm, limit), grads)

    return gradient


def fedprox(client_lr: LearningRate, mu: Any, server_lr: LearningRate = 1.0) -> FedAlgorithm:
    """FedProx (Li et al. 2020, Algorithm 2): `fedavg` with the proximal term μ; arguments as in those two."""
    from fedoptax.algorithms.fedopt import fedavg  # here, because fedoptax.algorithms lists fedprox

    return with_prox(fedavg(client_lr, server_lr), mu)


def _with_gradient(algorithm: FedAlgorithm, change: Callable[[GradFn, Any], GradFn]) -> FedAlgorithm:
    def client_update(grad_fn: GradFn, message: Any, client: Tree, batches: Any) -> tuple[Tree, Tree, jax.Array]:
        return algorithm.client_update(change(grad_fn, message), message, client, batches)

    return algorithm._replace(client_update=client_update)


def _global_norm(grads: Tree) -> jax.Array:
    leaves = jax.tree.leaves(grads)
    wide = jnp.float64 if any(a.dtype == jnp.float64 for a in leaves) else jnp.float32
    return jnp.sqrt(sum((jnp.sum(jnp.square(a.astype(wide))) for a in leaves), jnp.zeros((), wide)))
