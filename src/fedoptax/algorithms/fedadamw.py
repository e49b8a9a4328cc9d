"""FedAdamW: local AdamW from a second moment that all share, corrected by the federation's last direction.

Liu, Shang et al. 2025, *FedAdamW: A Communication-Efficient Optimizer with Convergence and Generalization
Guarantees for Federated Large Models*.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import ClientResult, Cohort, GradFn, Minibatches, Tree, local_steps, steps_or_one
from fedoptax.algorithms.fedopt import FedOpt, FedOptMessage, FedOptState, replace_updates
from fedoptax.errors import check_choice, check_decay, check_number, check_positive
from fedoptax.schedules import LearningRate, Number, resolve_lr, value_at


class FedAdamWShared(NamedTuple):
    """Down besides x: −Δ/η of the last round (K Δ_G), v̄ (one number per tensor), and t, the local steps made so far."""

    direction: Tree
    v: Tree
    t: jax.Array


class FedAdamWUpload(NamedTuple):
    """Up: Δᵢ = y − x, the means of v over each tensor, and K."""

    delta: Tree
    v: Tree
    steps: jax.Array


def fedadamw(
    client_lr: LearningRate,
    alpha: Number = 0.5,
    weight_decay: Number = 0.01,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    second_moment: str = "mean",
) -> FedOpt[FedAdamWUpload]:
    """FedAdamW (Liu et al. 2025): K steps of AdamW from m = 0 and the shared v̄, each with α Δ_G added.

    Step k: m ← β₁ m + (1−β₁) g; v ← β₂ v + (1−β₂) g²; y ← y − η (m̂/(√v̂ + ε) + α Δ_G + λ y) with m̂ = m/(1−β₁ᵏ) and
    v̂ = v/(1−β₂ᵗ), where k counts the round's steps and t those of all rounds. The client sends y − x and the mean of
    v over each tensor. Server: x ← x + Δ; Δ_G ← −Δ/(K η); v̄ ← mean vᵢ; means are uniform. Δ_G and v̄ start at 0. K in
    Δ_G is a client's own number of steps, as in `fedcm`; t advances by the clients' mean K, rounded.

    Args:
      client_lr: η > 0, a number or a schedule over rounds.
      alpha: α ≥ 0; 0 corrects nothing.
      weight_decay: λ ≥ 0, decoupled.
      b1, b2: β₁ and β₂ in [0, 1).
      eps: ε > 0.
      second_moment: `"mean"` is the paper; `"whole"`: v travels whole both ways, as in the authors' code.
    """
    check_number("alpha", alpha, 0)
    check_number("weight_decay", weight_decay, 0)
    check_decay(b1=b1, b2=b2)
    check_positive(eps=eps)
    check_choice("second_moment", second_moment, ("mean", "whole"))

    def to_send(v: Tree) -> Tree:
        return jax.tree.map(jnp.mean, v) if second_moment == "mean" else v

    def init(params: Tree) -> FedOptState:
        zeros, zero = tree.zeros_like(params), jnp.zeros((), jnp.int32)
        return FedOptState(params, (), zero, FedAdamWShared(zeros, to_send(zeros), zero))

    def client_update(
        grad_fn: GradFn, message: FedOptMessage, client: Tree, batches: Minibatches
    ) -> ClientResult[FedAdamWUpload, Tree]:
        x, lr, shared = message.params, resolve_lr(client_lr, message.lr), message.shared
        delta_g = tree.scale(1 / steps_or_one(batches), shared.direction)

        def step(carry: tuple, batch: Tree) -> tuple[tuple, jax.Array]:
            y, m, v, k = carry
            loss, g = grad_fn(y, batch)
            k, t = k + 1, shared.t + k + 1
            m = tree.ema(b1, m, g)
            v = tree.ema(b2, v, tree.square(g))
            m_hat = tree.scale(1 / (1 - b1 ** k.astype(float)), m)
            v_hat = tree.scale(1 / (1 - b2 ** t.astype(float)), v)
            u = tree.add_scaled(tree.divide(m_hat, tree.root_plus(v_hat, eps)), alpha, delta_g)
            return (tree.add_scaled(y, -lr, tree.add_scaled(u, weight_decay, y)), m, v, k), loss

        v = jax.tree.map(lambda mean, a: jnp.broadcast_to(mean, a.shape), shared.v, x)
        (y, _, v, k), loss = local_steps(step, (x, tree.zeros_like(x), v, jnp.zeros((), jnp.int32)), batches)
        return FedAdamWUpload(tree.sub(y, x), to_send(v), k), client, loss

    def server_update(server: FedOptState, mean: FedAdamWUpload, cohort: Cohort) -> FedOptState:
        direction = tree.scale(-1 / value_at(client_lr, server.round), mean.delta)
        x, shared = tree.add(server.params, mean.delta), server.shared
        return FedOptState(x, (), server.round + 1, FedAdamWShared(direction, mean.v, shared.t + mean.steps))

    return replace_updates(client_lr, init, client_update, server_update)
