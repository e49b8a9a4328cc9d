"""FAFED, STEM, and the naive adaptive FedAvg that diverges.

Wu, Huang, Hu, Huang 2023, *Faster Adaptive Federated Learning*: Algorithm 1 (naive), Algorithm 2 (FAFED), Theorem 1,
equation (5). Khanduri et al. 2021, *STEM*: FAFED without the adaptive matrix. Lines are those of Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import _tree as tree
from fedoptax.algorithm import Batches, Cohort, FedAlgorithm, GradFn, Tree, local_steps, num_steps
from fedoptax.algorithms.gradients import mean_gradient
from fedoptax.errors import UsageError
from fedoptax.hyper import (
    LearningRate,
    check,
    check_choice,
    check_fraction,
    check_lr,
    check_positive,
    received,
    sent,
)
from fedoptax.waiting import after


class FAFEDState(NamedTuple):
    """The server: x, m, v (`()` for STEM), and t, the next iteration (0 before the first round).

    With a schedule t counts iterations; without one nothing depends on it but t = 0, and it counts rounds.
    """

    params: Tree
    m: Tree
    v: Tree
    t: jax.Array


FAFEDMessage = FAFEDState
"""Down: all of the server's state. t tells the first round and places a client's steps on the schedules."""


class FAFEDUpload(NamedTuple):
    """Up: the client's x, m, v, and K, its number of steps, if a schedule needs it (else `()`)."""

    params: Tree
    m: Tree
    v: Tree
    steps: Any


class NaiveState(NamedTuple):
    """The server: parameters x and the round."""

    params: Tree
    round: jax.Array


class NaiveMessage(NamedTuple):
    """Down: x, and the learning rate if it is scheduled."""

    params: Tree
    lr: Any


class NaiveUpload(NamedTuple):
    """Up: the client's parameters y."""

    params: Tree


def naive_adaptive(lr: LearningRate, b2: Any = 0.5) -> FedAlgorithm:
    """Naive adaptive FedAvg (Wu et al. 2023, Algorithm 1): each client has its own v; Theorem 1 shows it diverging.

    Step: v ← β v + (1−β) g² (line 6); y ← y − η g/√v (line 10; no step where v = 0). The server averages y (line 8, in
    which v_{t,i} under the sum over j can only mean v_{t,j}). v starts at 0 and is the client's, kept between rounds.

    Args:
      lr: η > 0, a number or a schedule over rounds.
      b2: β in [0, 1).

    Raises:
      UsageError: a number is outside its range.
    """
    check_lr(lr=lr)
    check_fraction(b2=b2)

    def client_update(
        grad_fn: GradFn, message: NaiveMessage, client: Tree, batches: Any
    ) -> tuple[NaiveUpload, Tree, jax.Array]:
        eta = received(lr, message.lr)

        def step(carry: tuple[Tree, Tree], batch: Any) -> tuple[tuple[Tree, Tree], jax.Array]:
            y, v = carry
            loss, grads = grad_fn(y, batch)
            v = tree.ema(b2, v, jax.tree.map(jnp.square, grads))
            return (tree.add_scaled(y, -eta, jax.tree.map(_over_root, grads, v)), v), loss

        (y, v), loss = local_steps(step, (message.params, client), batches)
        return NaiveUpload(y), v, loss

    return FedAlgorithm(
        lambda params: NaiveState(params, jnp.zeros((), jnp.int32)),
        tree.zeros_like,
        lambda server: NaiveMessage(server.params, sent(lr, server.round)),
        client_update,
        lambda server, mean, cohort: NaiveState(mean.params, server.round + 1),
        lambda server: server.params,
        "uniform",
    )


def _over_root(g: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.where(v > 0, g / jnp.sqrt(jnp.where(v > 0, v, jnp.ones_like(v))), jnp.zeros_like(g))


def fafed(
    lr: LearningRate,
    alpha: LearningRate = 0.1,
    beta: Any = 0.9,
    rho: Any = 0.01,
    variant: str = "paper",
) -> FedAlgorithm:
    """FAFED (Wu et al. 2023, Algorithm 2): variance-reduced momentum at the clients, one adaptive matrix for all.

    Round 0 (lines 2–3): mᵢ is the mean of client i's K minibatch gradients at x₀ (a batch of B = bq, Remark 1) and
    vᵢ = mᵢ²; the server sets m, v to the means and x ← x₀ − η₀ m, without A. It costs K gradients, not 2K. Every later
    round is q = K iterations with A = √v + ρ of the last synchronisation (line 14), each on one batch ξ:
    g = g(x; ξ), g₋ = g(x_prev; ξ) (line 6); m ← g + (1−α_t)(m − g₋) (line 7); v ← β v + (1−β) g² (line 8);
    x ← x − η_t m/A (line 15). The last iteration uploads x, m, v instead of stepping; the server averages v, m and x,
    refreshes A and steps x ← x − η_t m/A (lines 10–12). The paper outputs a random iterate; `params` is the last
    synchronised x.

    `x_prev` is the client's own iterate before the synchronisation (line 6 indexes it by i), kept between rounds. Full
    participation is the algorithm. With a smaller cohort x_prev may be rounds old, and for a client first sampled after
    round 0 it is x₀: its first m is g(x) + (1−α)(m − g(x_prev)), where m belongs to a later point than x_prev, so the
    estimate is biased by (1−α)(∇f at that point − ∇fᵢ(x_prev)) until its momentum forgets it.

    A round of unequal K advances t by the clients' mean K, rounded; client i's steps are at t, t+1, …, t+Kᵢ−1 and the
    server's at t + mean K − 1. For that, K is one more number in the upload, but only when `lr` or `alpha` is a
    schedule. Down: three vectors and t; up: three vectors. Two gradients a step.

    Args:
      lr: η > 0, a number or a schedule over the iterations t.
      alpha: α in (0, 1], a number or a schedule over the iterations t (`fafed_schedule` gives equation (5)'s pair).
      beta: β in [0, 1).
      rho: ρ > 0.
      variant: `"paper"`, or `"released"`: released code lets the last iteration, too, step with the old A at the
        client, averages x after it, then refreshes A.

    Raises:
      UsageError: a number is outside its range or the variant is unknown.
    """
    check_fraction(beta=beta)
    check_positive(rho=rho)
    check_choice("variant", variant, ("paper", "released"))
    return _recursive_momentum(lr, alpha, beta, rho, last_step_at_server=variant == "paper")


def stem(lr: LearningRate, alpha: LearningRate = 0.1) -> FedAlgorithm:
    """STEM (Khanduri et al. 2021): FAFED with A = 1 and without v; two vectors each way. Arguments as `fafed`."""
    return _recursive_momentum(lr, alpha, None, None, last_step_at_server=True)


def fafed_schedule(rho: Any, h: Any, w: Any, c: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Equation (5): η_t = ρ h/(w + t)^{1/3}, and α_{t+1} = c η_t² cut off at 1.

    α₀ is not defined by the paper and not used (round 0 has no momentum); here it is α₁. The paper's language model
    has ρ h = 1 and w = 1; theory gives c = O(L²/(bNρ²)), which may exceed 1 in the first iterations, outside the (0, 1)
    that line 7 asks for: hence the cut.

    Args:
      rho: ρ > 0, that of `fafed`.
      h: h̄ > 0.
      w: w > 0, taken constant.
      c: c > 0.

    Returns:
      The pair (lr, alpha) of schedules over the iterations t = 0, 1, 2, …, arguments of `fafed` or `stem`.
    """
    check_positive(rho=rho, h=h, w=w, c=c)

    def lr(t: Any) -> jax.Array:
        real = jnp.result_type(float)
        return jnp.asarray(rho * h, real) / jnp.cbrt(jnp.asarray(w, real) + jnp.asarray(t).astype(real))

    def alpha(t: Any) -> jax.Array:
        eta = lr(jnp.maximum(jnp.asarray(t) - 1, 0))
        return jnp.minimum(jnp.asarray(c, eta.dtype) * eta * eta, 1.0)

    return lr, alpha


def _recursive_momentum(
    lr: LearningRate, alpha: LearningRate, beta: Any, rho: Any, last_step_at_server: bool
) -> FedAlgorithm:
    """Algorithm 2; `beta=None` leaves out v and A."""
    check_lr(lr=lr)
    _check_alpha(alpha)
    scheduled = callable(lr) or callable(alpha)

    def second(v: Tree, grads: Tree) -> Tree:
        return () if beta is None else tree.ema(beta, v, jax.tree.map(jnp.square, grads))

    def matrix(v: Tree) -> Tree:
        return jax.tree.map(lambda v: jnp.sqrt(v) + jnp.asarray(rho, v.dtype), v)

    def divide(m: Tree, matrix: Tree) -> Tree:
        return m if beta is None else jax.tree.map(jnp.divide, m, matrix)

    def init(params: Tree) -> FAFEDState:
        v = () if beta is None else tree.zeros_like(params)
        return FAFEDState(params, tree.zeros_like(params), v, jnp.zeros((), jnp.int32))

    def client_update(
        grad_fn: GradFn, message: FAFEDMessage, client: Tree, batches: Any
    ) -> tuple[FAFEDUpload, Tree, jax.Array]:
        x, m, v, t = message
        last = jnp.asarray(num_steps(batches) - 1, jnp.int32)
        steps = last + 1 if scheduled else ()

        def first_round(batches: Any) -> tuple[FAFEDUpload, Tree, jax.Array]:
            mean, loss = mean_gradient(grad_fn, x, batches)
            square = () if beta is None else jax.tree.map(jnp.square, mean)
            return FAFEDUpload(x, mean, square, steps), x, loss

        def later_round(batches: Any) -> tuple[FAFEDUpload, Tree, jax.Array]:
            inverse = () if beta is None else jax.tree.map(jnp.reciprocal, matrix(v))

            def moved(y: Tree, eta: Any, m_i: Tree) -> Tree:
                direction = m_i if beta is None else jax.tree.map(jnp.multiply, m_i, inverse)
                return tree.add_scaled(y, -eta, direction)

            # Line 15 opens the next iteration here instead of closing its own: x_prev then need not go from one to the
            # next beside x, a swap for which XLA would copy three vectors a step. And y takes the memory of y_prev, as
            # it waits until the loss there is known, and all gradients with it; else XLA would copy one.
            def step(carry: tuple, batch: Any) -> tuple[tuple, jax.Array]:
                k, y_prev, m_i, v_i = carry
                loss_prev, grads_prev = grad_fn(y_prev, batch)
                eta = after(loss_prev, _at(lr, t + k - 1))
                y = jax.tree.map(lambda x, y: jnp.where(k == 0, x, y), x, moved(y_prev, eta, m_i))
                loss, grads = grad_fn(y, batch)
                m_i = tree.add_scaled(grads, 1 - _at(alpha, t + k), tree.sub(m_i, grads_prev))
                return (k + 1, y, m_i, second(v_i, grads)), loss

            (_, y_prev, m_i, v_i), loss = local_steps(step, (jnp.zeros((), jnp.int32), client, m, v), batches)
            y = y_prev if last_step_at_server else moved(y_prev, _at(lr, t + last), m_i)
            y = jax.tree.map(lambda y, x: jnp.where(last < 0, x, y), y, x)  # without a batch y_prev is of an old round
            return FAFEDUpload(y, m_i, v_i, steps), y_prev, loss

        return _if_first(t == 0, first_round, later_round, batches)

    def server_update(server: FAFEDState, mean: FAFEDUpload, cohort: Cohort) -> FAFEDState:
        del cohort
        first = server.t == 0
        t = jnp.where(first, 1, server.t + (mean.steps if scheduled else 1))
        eta = _at(lr, t - 1)
        eta = eta if last_step_at_server else jnp.where(first, eta, 0.0)
        direction = jax.tree.map(lambda m, d: jnp.where(first, m, d), mean.m, divide(mean.m, matrix(mean.v)))
        return FAFEDState(tree.add_scaled(mean.params, -eta, direction), mean.m, mean.v, t)

    return FedAlgorithm(
        init, lambda params: params, lambda s: s, client_update, server_update, lambda s: s.params, "uniform"
    )


Branch = Callable[[Any], tuple[FAFEDUpload, Tree, jax.Array]]


def _if_first(first: jax.Array, yes: Branch, no: Branch, batches: Any) -> tuple[FAFEDUpload, Tree, jax.Array]:
    """`yes(batches)` or `no(batches)`: a Python choice in an eager round, one branch executed in a compiled one.

    Under a vmap over servers (a sweep) `cond` computes both branches; the one not taken then has no steps to run.
    """
    if not isinstance(first, jax.core.Tracer):
        return yes(batches) if first else no(batches)

    def steps_if(taken: jax.Array) -> Any:
        if not isinstance(batches, Batches):
            return batches
        return Batches(jnp.where(taken, batches.num_steps, 0), batches.get)

    return jax.lax.cond(first, lambda: yes(steps_if(first)), lambda: no(steps_if(~first)))


def _at(value: LearningRate, t: Any) -> Any:
    return received(value, sent(value, t))


def _check_alpha(alpha: LearningRate) -> None:
    if callable(alpha) or isinstance(alpha, jax.core.Tracer):
        return
    check("alpha", alpha, 0.0, open_low=True)
    if alpha > 1:
        raise UsageError(f"alpha: {alpha!r} given, allowed is a number > 0 and <= 1")
