"""FedCM: clients mix their gradients with the federation's last direction; they keep nothing.

Xu, Wang, Wang, Yao 2021, *FedCM: Federated Learning with Client-level Momentum*; Cheng, Huang, Wu, Yuan
2024, *Momentum Benefits Non-IID Federated Learning Simply and Provably*, call it FedAvg-M.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import ClientResult, Cohort, FedAlgorithm, GradFn, Minibatches, Tree, local_steps, steps_or_one
from fedoptax.algorithms.fedopt import FedOptUpload
from fedoptax.schedules import LearningRate, Number, check_lr, resolve_lr, value_at, value_to_send


class FedCMState(NamedTuple):
    """The server: x, −Δ/η_l of the last round, which is K times the paper's Δ_t, and the round."""

    params: Tree
    momentum: Tree
    round: jax.Array


class FedCMMessage(NamedTuple):
    """Down: x, the momentum, and the client learning rate if it is scheduled."""

    params: Tree
    momentum: Tree
    lr: Tree


def fedcm(client_lr: LearningRate, alpha: Number = 0.1, server_lr: LearningRate = 1.0) -> FedAlgorithm:
    """FedCM (Xu et al. 2021): K steps y ← y − η_l (α g(y) + (1−α) Δ_t), Δ_{t+1} = −Δ/(η_l K), x ← x + η Δ.

    Δ is the uniform mean of the clients' changes y − x. Δ_t is the mean direction of the last round's steps, 0 in the
    first. K is a client's own number of steps, so that Δ_t moves each client by (1−α) times the last mean change.

    Args:
      client_lr, server_lr: η_l and η, as in `fedavg`.
      alpha: α in (0, 1]; 1 is FedAvg.
    """
    check_lr(client_lr=client_lr, server_lr=server_lr)
    check_lr(alpha=alpha, most=1)

    def init(params: Tree) -> FedCMState:
        return FedCMState(params, tree.zeros_like(params), jnp.zeros((), jnp.int32))

    def broadcast(server: FedCMState) -> FedCMMessage:
        return FedCMMessage(server.params, server.momentum, value_to_send(client_lr, server.round))

    def client_update(grad_fn: GradFn, message: FedCMMessage, client: Tree, batches: Minibatches) -> ClientResult:
        x, lr = message.params, resolve_lr(client_lr, message.lr)
        delta_t = tree.scale(1 / steps_or_one(batches), message.momentum)

        def step(y: Tree, batch: Any) -> tuple[Tree, jax.Array]:
            loss, g = grad_fn(y, batch)
            return tree.add_scaled(y, -lr, tree.ema(alpha, g, delta_t)), loss

        y, loss = local_steps(step, x, batches)
        return FedOptUpload(tree.sub(y, x), ()), client, loss

    def server_update(server: FedCMState, mean: FedOptUpload, cohort: Cohort) -> FedCMState:
        momentum = tree.scale(-1 / value_at(client_lr, server.round), mean.delta)
        x = tree.add_scaled(server.params, value_at(server_lr, server.round), mean.delta)
        return FedCMState(x, momentum, server.round + 1)

    return FedAlgorithm(init, lambda params: (), broadcast, client_update, server_update, lambda s: s.params, "uniform")
