"""MuLoCo: DiLoCo with Muon as the inner optimizer.

Thérien, Huang, Defazio, Rish, Belilovsky 2025, *MuLoCo: Muon is a practical inner optimizer for DiLoCo*, Algorithm 1.
"""

import optax

from fedoptax.algorithms import optimizers
from fedoptax.algorithms.fedopt import FedOpt, FedOptUpload, _fedopt, _sgd
from fedoptax.schedules import LearningRate, Number


def muloco(
    client_lr: LearningRate,
    server_lr: LearningRate = 0.7,
    momentum: Number = 0.6,
    weight_decay: Number = 0.0,
    beta: Number = 0.95,
    adamw: str = "embed|position|head|dense([2-9]|/[1-9]|/kernel)",
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
) -> FedOpt[FedOptUpload]:
    """MuLoCo (Thérien et al. 2025, Algorithm 1): `diloco`, with Muon for the matrices of hidden layers.

    Client: for these m ← β m + g; y ← y − η_l (√max(1, n/k) NS(g + β m) + λ y), for other parameters AdamW, as in
    `diloco`; both states stay with the client. NS makes a matrix of k inputs and n outputs about orthogonal by five
    Newton–Schulz steps. Server: as `diloco`. Means are uniform; every client should take part in every round.

    Args:
      client_lr: η_l > 0 of Muon and AdamW, a number or a schedule over rounds.
      server_lr, momentum: η > 0 and μ in [0, 1) of the outer optimizer.
      weight_decay: λ ≥ 0, decoupled.
      beta: β of Muon, in [0, 1).
      adamw: a regular expression of what AdamW takes though it is a matrix, found in paths such as `dense1/kernel`:
        embeddings and the output layer, without which it trains badly. The default suits this package's models
        but `logistic`, `so_logistic`, `autoencoder` and Llama.
      b1, b2, eps: β₁ and β₂ in [0, 1), ε > 0 of AdamW.
    """
    inner = optimizers.scale_by_muon(beta, adamw, b1, b2, eps, weight_decay)
    outer = optax.chain(optimizers.scale_by_momentum(momentum, nesterov=True), optimizers.descend(server_lr))
    return _fedopt(client_lr, outer, lambda lr: optax.chain(inner, _sgd(lr)), "persist")._replace(weighting="uniform")
