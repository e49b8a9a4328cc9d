"""Changing the gradients that an algorithm's clients see, and clipping them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import ClientResult, FedAlgorithm, GradFn, Minibatches, Tree, check_algorithm
from fedoptax.errors import check_positive
from fedoptax.schedules import Number


def with_gradient(algorithm: FedAlgorithm, change: Callable[[GradFn, Tree], GradFn]) -> FedAlgorithm:
    """`algorithm` with `change(grad_fn, message)` in place of the clients' `grad_fn`."""
    check_algorithm(algorithm)

    def client_update(grad_fn: GradFn, message: Tree, client: Tree, batches: Minibatches) -> ClientResult[Tree, Tree]:
        return algorithm.client_update(change(grad_fn, message), message, client, batches)

    return algorithm._replace(client_update=client_update)


def with_clipping(algorithm: FedAlgorithm, max_norm: Number) -> FedAlgorithm:
    """Clip every minibatch gradient to a global 2-norm: g ← g min(1, max_norm/‖g‖) (Pascanu et al. 2013).

    Args:
      algorithm: any algorithm.
      max_norm: > 0.
    """
    check_positive(max_norm=max_norm)
    return with_gradient(algorithm, lambda grad_fn, message: clipped(grad_fn, max_norm))


def clipped(grad_fn: GradFn, max_norm: Number) -> GradFn:
    """`grad_fn` with its gradients clipped to a global 2-norm; see `with_clipping`."""

    def gradient(y: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        loss, grads = grad_fn(y, batch)
        norm = tree.norm(grads)
        limit = jnp.asarray(max_norm, norm.dtype)
        return loss, tree.scale(limit / jnp.maximum(norm, limit), grads)

    return gradient
