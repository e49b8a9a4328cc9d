"""DiLoCo: many steps of AdamW with its state at the client, and Nesterov momentum at the server.

Douillard, Feng, Rusu, Chhaparia, Donchev, Kuncoro, Ranzato, Szlam, Shen 2023, *DiLoCo: Distributed Low-Communication
Training of Language Models*, Algorithm 1: FedOpt as users of language models know it.
"""

import optax

from fedoptax.algorithms import optimizers
from fedoptax.algorithms.fedopt import FedOpt, FedOptUpload, _fedopt, _sgd
from fedoptax.schedules import LearningRate, Number


def diloco(
    client_lr: LearningRate,
    server_lr: LearningRate = 0.7,
    momentum: Number = 0.9,
    weight_decay: Number = 0.1,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
) -> FedOpt[FedOptUpload]:
    """DiLoCo (Douillard et al. 2023, Algorithm 1): `fedopt` of AdamW, kept by the client, and Nesterov momentum.

    Client: K steps y ← y − η_l (m̂/(√v̂ + ε) + λ y). Server, with d = −Δ: b ← μ b + d; x ← x − η (d + μ b). Means are
    uniform; every client should take part in every round, as its optimizer's state is otherwise several rounds old.

    Args:
      client_lr: η_l > 0 of the inner optimizer, a number or a schedule over rounds.
      server_lr, momentum: η > 0 and μ in [0, 1) of the outer optimizer.
      weight_decay: λ ≥ 0, decoupled.
      b1, b2: β₁ and β₂ in [0, 1).
      eps: ε > 0.
    """
    inner = optimizers.scale_by_adamw(b1, b2, eps, weight_decay)
    outer = optax.chain(optimizers.scale_by_momentum(momentum, nesterov=True), optimizers.descend(server_lr))
    return _fedopt(client_lr, outer, lambda lr: optax.chain(inner, _sgd(lr)), "persist")._replace(weighting="uniform")
