"""FedCM: clients mix their gradients with the federation's last direction; they keep nothing.

Xu, Wang, Wang, Yao 2021, *FedCM: Federated Learning with Client-level Momentum*; Cheng, Huang, Wu, Yuan
2024, *Momentum Benefits Non-IID Federated Learning Simply and Provably*, call it FedAvg-M.
"""

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import Cohort, GradFn, Minibatches, Tree, steps_or_one
from fedoptax.algorithms.fedopt import FedOpt, FedOptMessage, FedOptResult, FedOptState, FedOptUpload, fedavg
from fedoptax.errors import check_number
from fedoptax.schedules import LearningRate, Number, value_at


def fedcm(client_lr: LearningRate, alpha: Number = 0.1, server_lr: LearningRate = 1.0) -> FedOpt[FedOptUpload]:
    """FedCM (Xu et al. 2021): K steps y ← y − η_l (α g(y) + (1−α) Δ_t), Δ_{t+1} = −Δ/(η_l K), x ← x + η Δ.

    Δ is the uniform mean of the clients' changes y − x. Δ_t is the mean direction of the last round's steps, 0 in the
    first. K is a client's own number of steps, so that Δ_t moves each client by (1−α) times the last mean change: what
    is shared, as the client optimizer's state, is K Δ_t = −Δ/η_l.

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      alpha: α in (0, 1]; 1 is FedAvg.
    """
    fedopt = fedavg(client_lr, server_lr)
    check_number("alpha", alpha, 0, 1, open_low=True, open_high=False)

    def init(params: Tree) -> FedOptState:
        return FedOptState(params, (), jnp.zeros((), jnp.int32), tree.zeros_like(params))

    def client_update(grad_fn: GradFn, message: FedOptMessage, client: Tree, batches: Minibatches) -> FedOptResult:
        delta_t = tree.scale(1 / steps_or_one(batches), message.shared)

        def direction(y: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
            loss, g = grad_fn(y, batch)
            return loss, tree.ema(alpha, g, delta_t)

        return fedopt.client_update(direction, message, client, batches)

    def server_update(server: FedOptState, mean: FedOptUpload, cohort: Cohort) -> FedOptState:
        momentum = tree.scale(-1 / value_at(client_lr, server.round), mean.delta)
        x = tree.add_scaled(server.params, value_at(server_lr, server.round), mean.delta)
        return FedOptState(x, (), server.round + 1, momentum)

    return fedopt._replace(init=init, client_update=client_update, server_update=server_update, weighting="uniform")
