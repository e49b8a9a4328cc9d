"""FedDyn: a regulariser that changes with what each client has learned aligns the clients' optima with the global one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama 2021, *Federated Learning Based on Dynamic Regularization*,
Algorithm 1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import ClientResult, Cohort, FedAlgorithm, GradFn, Minibatches, Tree, local_steps
from fedoptax.algorithms.fedopt import FedOptMessage, FedOptUpload
from fedoptax.errors import check_positive
from fedoptax.schedules import LearningRate, Number, check_lr, resolve_lr, value_to_send


class FedDynState(NamedTuple):
    """The server: θ, h, the round."""

    params: Tree
    h: Tree
    round: jax.Array


def feddyn(client_lr: LearningRate, alpha: Number = 0.01) -> FedAlgorithm:
    """FedDyn (Acar et al. 2021, Algorithm 1).

    Client: K steps of SGD from θ on fₖ(y) − ⟨ĝₖ, y⟩ + (α/2) ‖y − θ‖², in place of its minimum; ĝₖ ← ĝₖ − α (y − θ).
    Server: h ← h − α (1/N) Σ_S (yₖ − θ); θ ← mean yₖ − h/α. ĝₖ, which the client keeps, and h start at 0. Means are
    uniform.

    Args:
      client_lr: η_l > 0, a number or a schedule over rounds.
      alpha: α > 0, in units of the loss's curvature; 1/α scales the server's correction.
    """
    check_lr(client_lr=client_lr)
    check_positive(alpha=alpha)

    def init(params: Tree) -> FedDynState:
        return FedDynState(params, tree.zeros_like(params), jnp.zeros((), jnp.int32))

    def broadcast(server: FedDynState) -> FedOptMessage:
        return FedOptMessage(server.params, value_to_send(client_lr, server.round), ())

    def client_update(grad_fn: GradFn, message: FedOptMessage, g_k: Tree, batches: Minibatches) -> ClientResult:
        theta, lr = message.params, resolve_lr(client_lr, message.lr)

        def step(y: Tree, batch: Any) -> tuple[Tree, jax.Array]:
            loss, g = grad_fn(y, batch)
            gradient = tree.add_scaled(tree.sub(g, g_k), alpha, tree.sub(y, theta))  # of the regularised objective
            return tree.add_scaled(y, -lr, gradient), loss

        y, loss = local_steps(step, theta, batches)
        delta = tree.sub(y, theta)
        return FedOptUpload(delta, ()), tree.add_scaled(g_k, -alpha, delta), loss

    def server_update(server: FedDynState, mean: FedOptUpload, cohort: Cohort) -> FedDynState:
        h = tree.add_scaled(server.h, -alpha * (cohort.size / cohort.num_clients), mean.delta)
        theta = tree.add_scaled(tree.add(server.params, mean.delta), -1 / alpha, h)
        return FedDynState(theta, h, server.round + 1)

    return FedAlgorithm(init, tree.zeros_like, broadcast, client_update, server_update, lambda s: s.params, "uniform")
