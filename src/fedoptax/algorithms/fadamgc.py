"""FAdamGC: local AMSGrad, whose gradients are corrected by control variates before they enter the moments.

Chen, Wang, Zhang, Han, Liu, Brinton 2025, *Gradient Correction in Federated Learning with Adaptive Optimization*
(arXiv 2502.02727; FAdamGT in its earlier versions).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import (
    ClientResult,
    Cohort,
    FedAlgorithm,
    GradFn,
    Minibatches,
    Tree,
    local_steps,
    num_steps,
    steps_or_one,
)
from fedoptax.algorithms import optimizers
from fedoptax.errors import check_choice
from fedoptax.schedules import LearningRate, Number, check_lr, resolve_lr, value_at, value_to_send


class FAdamGCState(NamedTuple):
    """The server: x, y (the clients' mean gradient), the round."""

    params: Tree
    control: Tree
    round: jax.Array


class FAdamGCMessage(NamedTuple):
    """Down: x, y, and the client learning rate if it is scheduled."""

    params: Tree
    control: Tree
    lr: Tree


class FAdamGCUpload(NamedTuple):
    """Up: the changes of x and of yᵢ."""

    delta: Tree
    control_delta: Tree


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
) -> FedAlgorithm[FAdamGCState, FAdamGCMessage, FAdamGCClient, FAdamGCUpload]:
    """FAdamGC (Chen et al. 2025): K steps of AMSGrad on g + y − yᵢ; yᵢ is the client's mean gradient of its last round.

    Step: ĝ ← g + y − yᵢ; m ← β₁ m + (1−β₁) ĝ; v ← β₂ v + (1−β₂) ĝ²; v̂ ← max(v̂, v); x ← x − η_l m/(√v̂ + ε). Then
    yᵢ ← (1/K) Σ g. Server: x ← x + η mean Δx; y ← y + (|S|/N) mean Δyᵢ. All y start at 0, and means are uniform. A
    client without steps keeps its yᵢ.

    The text that was at hand does not say what m, v and v̂ are at a round's first step; `moments` decides.

    Args:
      client_lr, server_lr: η_l and η, as in `fedavg`.
      b1, b2: β₁ and β₂ in [0, 1).
      eps: ε > 0.
      moments: `"persist"`: the client keeps them between rounds, from 0; `"reset"`: 0 at the start of each round.
    """
    check_lr(client_lr=client_lr, server_lr=server_lr)
    check_choice("moments", moments, ("persist", "reset"))
    persists = moments == "persist"
    adam = optimizers.scale_by_fedamsgrad(b1, b2, eps)

    def init(params: Tree) -> FAdamGCState:
        return FAdamGCState(params, tree.zeros_like(params), jnp.zeros((), jnp.int32))

    def init_client(params: Tree) -> FAdamGCClient:
        return FAdamGCClient(tree.zeros_like(params), adam.init(params) if persists else ())

    def broadcast(server: FAdamGCState) -> FAdamGCMessage:
        return FAdamGCMessage(server.params, server.control, value_to_send(client_lr, server.round))

    def client_update(
        grad_fn: GradFn, message: FAdamGCMessage, client: FAdamGCClient, batches: Minibatches
    ) -> ClientResult[FAdamGCUpload, FAdamGCClient]:
        lr, correction = resolve_lr(client_lr, message.lr), tree.sub(message.control, client.control)

        def step(carry: tuple, batch: Any) -> tuple[tuple, jax.Array]:
            x, state, total = carry
            loss, g = grad_fn(x, batch)
            direction, state = adam.update(tree.add(g, correction), state)  # ĝ before the moments
            return (tree.add_scaled(x, -lr, direction), state, tree.add(total, g)), loss

        state = client.moments if persists else adam.init(message.params)
        start = message.params, state, tree.zeros_like(message.params)
        (x, state, total), loss = local_steps(step, start, batches)
        y_i = tree.select(num_steps(batches) > 0, tree.scale(1 / steps_or_one(batches), total), client.control)
        upload = FAdamGCUpload(tree.sub(x, message.params), tree.sub(y_i, client.control))
        return upload, FAdamGCClient(y_i, state if persists else ()), loss

    def server_update(server: FAdamGCState, mean: FAdamGCUpload, cohort: Cohort) -> FAdamGCState:
        x = tree.add_scaled(server.params, value_at(server_lr, server.round), mean.delta)
        y = tree.add_scaled(server.control, cohort.size / cohort.num_clients, mean.control_delta)
        return FAdamGCState(x, y, server.round + 1)

    return FedAlgorithm(init, init_client, broadcast, client_update, server_update, lambda s: s.params, "uniform")
