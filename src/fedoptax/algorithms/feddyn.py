"""FedDyn: a dynamic regulariser aligns the clients' optima with the global one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama 2021, *Federated Learning Based on Dynamic Regularization*,
Algorithm 1.
"""

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import Cohort, FedAlgorithm, GradFn, Minibatches, Tree
from fedoptax.algorithms.fedopt import FedOpt, FedOptMessage, FedOptResult, FedOptState, FedOptUpload, fedavg
from fedoptax.errors import check_positive
from fedoptax.schedules import LearningRate, Number


def feddyn(client_lr: LearningRate, alpha: Number = 0.01) -> FedOpt[FedOptUpload]:
    """FedDyn (Acar et al. 2021, Algorithm 1).

    Client: K steps of SGD from θ on fₖ(y) − ⟨ĝₖ, y⟩ + (α/2) ‖y − θ‖², in place of its minimum; ĝₖ ← ĝₖ − α (y − θ).
    Server: h ← h − α (1/N) Σ_S (yₖ − θ); θ ← mean yₖ − h/α. A client keeps ĝₖ; it and h start at 0. Means are uniform.

    Args:
      client_lr: η_l > 0, a number or a schedule over rounds.
      alpha: α > 0, in units of the loss's curvature; 1/α scales the server's correction.
    """
    fedopt = fedavg(client_lr)
    check_positive(alpha=alpha)

    def init(params: Tree) -> FedOptState:  # h is the server optimizer's state
        return FedOptState(params, tree.zeros_like(params), jnp.zeros((), jnp.int32), ())

    def client_update(grad_fn: GradFn, message: FedOptMessage, g_k: Tree, batches: Minibatches) -> FedOptResult:
        def regularised(y: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
            loss, g = grad_fn(y, batch)
            return loss, tree.add_scaled(tree.sub(g, g_k), alpha, tree.sub(y, message.params))

        upload, _, loss = fedopt.client_update(regularised, message, (), batches)
        return upload, tree.add_scaled(g_k, -alpha, upload.delta), loss

    def server_update(server: FedOptState, mean: FedOptUpload, cohort: Cohort) -> FedOptState:
        h = tree.add_scaled(server.opt_state, -alpha * (cohort.size / cohort.num_clients), mean.delta)
        theta = tree.add_scaled(tree.add(server.params, mean.delta), -1 / alpha, h)
        return FedOptState(theta, h, server.round + 1, ())

    return FedAlgorithm(init, tree.zeros_like, fedopt.broadcast, client_update, server_update, fedopt.params, "uniform")
