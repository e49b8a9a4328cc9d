"""SCAFFOLD: control variates correct the drift of the clients.

Karimireddy et al. 2020, *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*, Algorithm 1. Each client
keeps its control variate cᵢ between rounds; each round sends (x, c) down and (Δy, Δc) up: two vectors each way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import _tree as tree
from fedoptax.algorithm import Cohort, FedAlgorithm, GradFn, Tree, local_steps, num_steps
from fedoptax.algorithms.gradients import mean_gradient
from fedoptax.hyper import LearningRate, check_choice, check_lr, received, sent


class ScaffoldState(NamedTuple):
    """The server: parameters x, control variate c, the round."""

    params: Tree
    control: Tree
    round: jax.Array


class ScaffoldMessage(NamedTuple):
    """Down (line 4): x, c, and the client learning rate if it is scheduled."""

    params: Tree
    control: Tree
    lr: Any


class ScaffoldUpload(NamedTuple):
    """Up (line 13): Δy = y − x and Δc = cᵢ⁺ − cᵢ."""

    delta: Tree
    control_delta: Tree


def scaffold(client_lr: LearningRate, server_lr: LearningRate = 1.0, option: str = "II") -> FedAlgorithm:
    """SCAFFOLD (Karimireddy et al. 2020, Algorithm 1).

    Client: y ← x (line 6); K steps y ← y − η_l (g(y) − cᵢ + c) (lines 7–10); cᵢ⁺ by the option (line 12); upload
    Δy, Δc (line 13); cᵢ ← cᵢ⁺ (line 14). Server: x ← x + η Σ wᵢ Δyᵢ and c ← c + (|S|/N) Σ wᵢ Δcᵢ (lines 16–17). Both
    controls start at 0. K is the number of steps the client took; a client that took none keeps its control.

    Args:
      client_lr: η_l > 0, a number or a schedule over rounds.
      server_lr: η > 0, a number or a schedule over rounds.
      option: `"II"`: cᵢ⁺ = cᵢ − c + (x − y)/(K η_l), at no cost; `"I"`: cᵢ⁺ = ∇fᵢ(x), taken as the mean of the round's
        minibatch gradients at x, which doubles the gradients computed.

    Raises:
      UsageError: a learning rate is not a positive number or a schedule, or the option is unknown.
    """
    check_lr(client_lr=client_lr, server_lr=server_lr)
    check_choice("option", option, ("I", "II"))

    def init(params: Tree) -> ScaffoldState:
        return ScaffoldState(params, tree.zeros_like(params), jnp.zeros((), jnp.int32))

    def broadcast(server: ScaffoldState) -> ScaffoldMessage:
        return ScaffoldMessage(server.params, server.control, sent(client_lr, server.round))

    def client_update(
        grad_fn: GradFn, message: ScaffoldMessage, client: Tree, batches: Any
    ) -> tuple[ScaffoldUpload, Tree, jax.Array]:
        lr = received(client_lr, message.lr)
        x, correction = message.params, tree.sub(message.control, client)

        def step(y: Tree, batch: Any) -> tuple[Tree, jax.Array]:
            loss, grads = grad_fn(y, batch)
            return tree.add_scaled(y, -lr, tree.add_scaled(grads, 1, correction)), loss

        y, loss = local_steps(step, x, batches)
        delta = tree.sub(y, x)
        if option == "I":
            control_delta = tree.sub(mean_gradient(grad_fn, x, batches)[0], client)
        else:
            steps = jnp.maximum(num_steps(batches), 1).astype(jnp.result_type(float))
            distance = steps * jnp.asarray(lr, steps.dtype)
            control_delta = tree.add_scaled(tree.scale(-1, message.control), -1 / distance, delta)
        control_delta = tree.scale(jnp.asarray(num_steps(batches) > 0), control_delta)
        return ScaffoldUpload(delta, control_delta), tree.add_scaled(client, 1, control_delta), loss

    def server_update(server: ScaffoldState, mean: ScaffoldUpload, cohort: Cohort) -> ScaffoldState:
        lr = received(server_lr, sent(server_lr, server.round))
        params = tree.add_scaled(server.params, lr, mean.delta)
        control = tree.add_scaled(server.control, cohort.size / cohort.num_clients, mean.control_delta)
        return ScaffoldState(params, control, server.round + 1)

    return FedAlgorithm(init, tree.zeros_like, broadcast, client_update, server_update, lambda s: s.params, "uniform")
