"""STEM: variance-reduced momentum at the clients and at the server.

Khanduri et al. 2021, *STEM: A Stochastic Two-Sided Momentum Algorithm Achieving Near-Optimal Sample and Communication
Complexities for Federated Learning*.
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
    cond,
    local_steps,
    mean_gradient,
    num_steps,
)
from fedoptax.schedules import LearningRate, check_lr, value_at


class STEMState(NamedTuple):
    """The server, and its message: x, m, and t, the next iteration, as in `FAFEDState`."""

    params: Tree
    m: Tree
    t: jax.Array


class STEMUpload(NamedTuple):
    """Up: the client's x and m, and K, its number of steps, if a schedule needs it (else `()`)."""

    params: Tree
    m: Tree
    steps: Tree


def stem(lr: LearningRate, alpha: LearningRate = 0.1) -> FedAlgorithm[STEMState, STEMState, Tree, STEMUpload]:
    """STEM (Khanduri et al. 2021): FAFED without v and A; two vectors each way, two gradients per step.

    Round 0: mᵢ is the mean of client i's minibatch gradients at x₀; the server sets m to their mean and x ← x₀ − η₀ m.
    Every later round is q = K iterations, each on one batch ξ: m ← g(x; ξ) + (1−α_t)(m − g(x_prev; ξ)), then
    x ← x − η_t m. The last one uploads x and m instead of stepping; the server averages both and steps
    x ← x − η_t m. Cohorts, unequal K, x_prev and schedules are as in `fafed`.

    Args:
      lr, alpha: η and α, as in `fafed`; α = 1 is no momentum.
    """
    check_lr(lr=lr)
    check_lr(alpha=alpha, most=1)
    has_schedule = callable(lr) or callable(alpha)

    def init(params: Tree) -> STEMState:
        return STEMState(params, tree.zeros_like(params), jnp.zeros((), jnp.int32))

    def client_update(
        grad_fn: GradFn, message: STEMState, x_prev: Tree, batches: Minibatches
    ) -> ClientResult[STEMUpload, Tree]:
        steps = jnp.asarray(num_steps(batches), jnp.int32)
        last = message.t + steps - 1  # it synchronises instead of stepping

        def first_round() -> ClientResult[STEMUpload, Tree]:
            m, loss = mean_gradient(grad_fn, message.params, batches)
            return STEMUpload(message.params, m, steps if has_schedule else ()), message.params, loss

        def step(carry: tuple, batch: Any) -> tuple[tuple, jax.Array]:
            t, x_prev, x, m = carry
            loss, g = grad_fn(x, batch)
            _, g_prev = grad_fn(x_prev, batch)
            m = tree.add_scaled(g, 1 - value_at(alpha, t), tree.sub(m, g_prev))
            x_next = tree.select(t < last, tree.add_scaled(x, -value_at(lr, t), m), x)
            return (t + 1, x, x_next, m), loss

        def later_round() -> ClientResult[STEMUpload, Tree]:
            start = (message.t, x_prev, message.params, message.m)
            (_, before_last, x, m), loss = local_steps(step, start, batches)
            return STEMUpload(x, m, steps if has_schedule else ()), before_last, loss

        return cond(message.t == 0, first_round, later_round)

    def server_update(server: STEMState, mean: STEMUpload, cohort: Cohort) -> STEMState:
        t = jnp.where(server.t == 0, 1, server.t + (mean.steps if has_schedule else 1))
        return STEMState(tree.add_scaled(mean.params, -value_at(lr, t - 1), mean.m), mean.m, t)

    return FedAlgorithm(
        init, lambda params: params, lambda server: server, client_update, server_update, lambda s: s.params, "uniform"
    )._replace(gradients_per_step=2)
