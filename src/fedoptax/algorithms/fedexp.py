"""FedExP: FedAvg with an extrapolated server step.

Jhunjhunwala, Wang, Joshi 2023, *FedExP: Speeding Up Federated Averaging via Extrapolation*, Algorithm 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import ClientResult, Cohort, FedAlgorithm, GradFn, Minibatches, Tree
from fedoptax.algorithms.fedopt import FedOpt, FedOptMessage, FedOptState, fedavg
from fedoptax.errors import check_choice, check_positive
from fedoptax.schedules import LearningRate, Number


class FedExPUpload(NamedTuple):
    """Up: Δᵢ = y − x and ‖Δᵢ‖², one number."""

    delta: Tree
    square_norm: jax.Array


def fedexp(client_lr: LearningRate, eps: Number = 1e-3, variant: str = "paper") -> FedOpt[FedExPUpload]:
    """FedExP (Jhunjhunwala et al. 2023, Algorithm 1): x ← x + η_g Δ, η_g = max(1, mean ‖Δᵢ‖²/(2 (‖Δ‖² + ε))).

    Clients are FedAvg's; each sends one number more. Means are uniform, as in the paper.

    Args:
      client_lr: η_l > 0, a number or a schedule over rounds.
      eps: ε > 0, in units of ‖Δ‖².
      variant: `"paper"`, or `"released"`: the authors' code multiplies ε by the cohort's size and by 0.998² in each
        round (as it multiplies η_l by 0.998: give that as a schedule), and evaluates the mean of the last two x.
    """
    check_positive(eps=eps)
    check_choice("variant", variant, ("paper", "released"))
    clients, is_released = fedavg(client_lr), variant == "released"

    def init(params: Tree) -> FedOptState:  # in place of an optimizer's state the released code's x before this one
        return FedOptState(params, params if is_released else (), jnp.zeros((), jnp.int32), ())

    def client_update(
        grad_fn: GradFn, message: FedOptMessage, client: Tree, batches: Minibatches
    ) -> ClientResult[FedExPUpload, Tree]:
        upload, client, loss = clients.client_update(grad_fn, message, client, batches)
        return FedExPUpload(upload.delta, tree.square_norm(upload.delta)), client, loss

    def server_update(server: FedOptState, mean: FedExPUpload, cohort: Cohort) -> FedOptState:
        size, power = jnp.asarray(cohort.size, float), 2 * (server.round + 1).astype(float)
        added = eps * size * 0.998**power if is_released else eps
        eta = jnp.maximum(1, mean.square_norm / (2 * (tree.square_norm(mean.delta) + added)))
        x = tree.add_scaled(server.params, eta, mean.delta)
        return FedOptState(x, server.params if is_released else (), server.round + 1, ())

    def params(server: FedOptState) -> Tree:
        if not is_released:
            return server.params
        return tree.select(server.round < 2, server.params, tree.ema(0.5, server.opt_state, server.params))

    return FedAlgorithm(init, clients.init_client, clients.broadcast, client_update, server_update, params, "uniform")
