"""FedNova: changes are averaged per step, so that clients with many steps do not pull the model to their optimum.

Wang, Liu, Liang, Joshi, Poor 2020, *Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization*, Section 4.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedoptax import tree
from fedoptax.algorithm import ClientResult, Cohort, FedAlgorithm, GradFn, Minibatches, Tree, num_steps
from fedoptax.algorithms import optimizers
from fedoptax.algorithms.fedopt import FedOpt, FedOptMessage, FedOptState, FedOptUpload, _fedopt, _sgd
from fedoptax.schedules import LearningRate, Number


class FedNovaUpload(NamedTuple):
    """Up: Δᵢ/‖aᵢ‖₁, and ‖aᵢ‖₁, one number: K without momentum."""

    delta: Tree
    length: jax.Array


def fednova(client_lr: LearningRate, server_lr: LearningRate = 1.0, momentum: Number = 0.0) -> FedOpt[FedNovaUpload]:
    """FedNova (Wang et al. 2020, Section 4): x ← x + η τ_eff Σ pᵢ Δᵢ/‖aᵢ‖₁ with τ_eff = Σ pᵢ ‖aᵢ‖₁.

    Client: K steps of SGD with momentum ρ (m ← ρ m + g, from 0 in each round; y ← y − η_l m), in which the gradient of
    step k counts aᵢₖ = (1 − ρ^{K−k})/(1 − ρ) times, k = 0 … K−1; ‖aᵢ‖₁ is their sum. As `fedopt`, whose server is fed
    τ_eff times the mean of the normalised changes. With equal K and ρ = 0 this is FedAvg. Weights are by examples.

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      momentum: ρ in [0, 1).
    """
    inner = optimizers.scale_by_momentum(momentum)
    fedopt = _fedopt(client_lr, optimizers.descend(server_lr), lambda lr: optax.chain(inner, _sgd(lr)))

    def client_update(
        grad_fn: GradFn, message: FedOptMessage, client: Tree, batches: Minibatches
    ) -> ClientResult[FedNovaUpload, Tree]:
        upload, client, loss = fedopt.client_update(grad_fn, message, client, batches)
        k = jnp.asarray(num_steps(batches), float)
        length = (k - momentum * (1 - momentum**k) / (1 - momentum)) / (1 - momentum)
        return FedNovaUpload(tree.scale(1 / jnp.maximum(length, 1), upload.delta), length), client, loss

    def server_update(server: FedOptState, mean: FedNovaUpload, cohort: Cohort) -> FedOptState:
        return fedopt.server_update(server, FedOptUpload(tree.scale(mean.length, mean.delta), ()), cohort)

    return FedAlgorithm(fedopt.init, fedopt.init_client, fedopt.broadcast, client_update, server_update, fedopt.params)
