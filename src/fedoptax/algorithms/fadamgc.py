"""FAdamGC: local AMSGrad on gradients that control variates correct before they enter the moments.

Chen, Wang, Zhang, Han, Liu, Brinton 2025, *Gradient Correction in Federated Learning with Adaptive Optimization*
(arXiv 2502.02727; FAdamGT in its earlier versions).
"""

from typing import NamedTuple

import jax

from fedoptax import tree
from fedoptax.algorithm import ClientResult, FedAlgorithm, GradFn, Minibatches, local_steps, num_steps, steps_or_one
from fedoptax.algorithms import optimizers
from fedoptax.algorithms.fedopt import FedOptMessage, FedOptState
from fedoptax.algorithms.scaffold import ScaffoldUpload, scaffold
from fedoptax.errors import check_choice
from fedoptax.schedules import LearningRate, Number, resolve_lr
from fedoptax.tree import Tree


class FAdamGCClient(NamedTuple):
    """A client: yᵢ, and m, v, v̂ if they persist."""

    control: Tree
    moments: Tree


def fadamgc(
    client_lr: LearningRate,
    server_lr: LearningRate = 1.0,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    moments: str = "persist",
) -> FedAlgorithm[FedOptState, FedOptMessage, FAdamGCClient, ScaffoldUpload]:
    """FAdamGC (Chen et al. 2025): K steps of AMSGrad on g + y − yᵢ; yᵢ is the client's mean gradient of its last round.

    Step: ĝ ← g + y − yᵢ; m ← β₁ m + (1−β₁) ĝ; v ← β₂ v + (1−β₂) ĝ²; v̂ ← max(v̂, v); x ← x − η_l m/(√v̂ + ε). Then
    yᵢ ← (1/K) Σ g. Server: x ← x + η mean Δx; y ← y + (|S|/N) mean Δyᵢ. All y start at 0, and means are uniform. A
    client without steps keeps its yᵢ.

    Our source does not define m, v and v̂ at a round's first step; `moments` sets them.

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      b1, b2: β₁ and β₂ in [0, 1).
      eps: ε > 0.
      moments: `"persist"`: the client keeps them between rounds, from 0; `"reset"`: 0 at the start of each round.
    """
    check_choice("moments", moments, ("persist", "reset"))
    persists = moments == "persist"
    adam = optimizers.scale_by_fedamsgrad(b1, b2, eps)
    server = scaffold(client_lr, server_lr)  # x and y go down, and the means of their changes are added, as there

    def init_client(params: Tree) -> FAdamGCClient:
        return FAdamGCClient(tree.zeros_like(params), adam.init(params) if persists else ())

    def client_update(
        grad_fn: GradFn, message: FedOptMessage, client: FAdamGCClient, batches: Minibatches
    ) -> ClientResult[ScaffoldUpload, FAdamGCClient]:
        lr, correction = resolve_lr(client_lr, message.lr), tree.sub(message.shared, client.control)

        def step(carry: tuple, batch: Tree) -> tuple[tuple, jax.Array]:
            x, state, total = carry
            loss, g = grad_fn(x, batch)
            direction, state = adam.update(tree.add(g, correction), state)  # ĝ before the moments
            return (tree.add_scaled(x, -lr, direction), state, tree.add(total, g)), loss

        state = client.moments if persists else adam.init(message.params)
        start = message.params, state, tree.zeros_like(message.params)
        (x, state, total), loss = local_steps(step, start, batches)
        y_i = tree.select(num_steps(batches) > 0, tree.scale(1 / steps_or_one(batches), total), client.control)
        upload = ScaffoldUpload(tree.sub(x, message.params), tree.sub(y_i, client.control))
        return upload, FAdamGCClient(y_i, state if persists else ()), loss

    return server._replace(init_client=init_client, client_update=client_update)
