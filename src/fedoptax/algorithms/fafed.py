"""FAFED, and the naive adaptive FedAvg that diverges.

Wu, Huang, Hu, Huang 2023, *Faster Adaptive Federated Learning*: Algorithm 1 (naive), Algorithm 2 (FAFED), Theorem 1,
equation (5).
"""

from collections.abc import Callable
from typing import NamedTuple

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
    first_batches,
    local_steps,
    mean_gradient,
    num_steps,
)
from fedoptax.algorithms.fedopt import FedOpt, FedOptMessage, FedOptState, replace_updates
from fedoptax.errors import check_choice, check_decay, check_int, check_positive
from fedoptax.schedules import LearningRate, Number, Schedule, check_lr, cube_root, resolve_lr, value_at


class NaiveUpload(NamedTuple):
    """Up: the client's parameters y."""

    params: Tree


class FAFEDState(NamedTuple):
    """The server, and its message: x, m, v, and t, the next iteration (0 before the first round).

    v is `()` for STEM, and one number with `adaptive` "global" or "adagrad_norm". With a schedule t counts iterations;
    without one nothing depends on it but t = 0, and it counts rounds.
    """

    params: Tree
    m: Tree
    v: Tree
    t: jax.Array


class FAFEDUpload(NamedTuple):
    """Up: the client's x, m, v (`()` for STEM), and K, its number of steps, if a schedule needs it (else `()`)."""

    params: Tree
    m: Tree
    v: Tree
    steps: Tree


def naive_adaptive(lr: LearningRate, b2: Number = 0.5) -> FedOpt[NaiveUpload]:
    """Naive adaptive FedAvg (Wu et al. 2023, Algorithm 1): each client has its own v; Theorem 1 shows it diverging.

    Step: v ← β v + (1−β) g² (line 6); y ← y − η g/√v (line 10; no step where v = 0). The server averages y (line 8, in
    which v_{t,i} under the sum over j can only mean v_{t,j}). v starts at 0 and is the client's, kept between rounds.

    Args:
      lr: η > 0, a number or a schedule over rounds.
      b2: β in [0, 1).
    """
    check_lr(lr=lr)
    check_decay(b2=b2)

    def init(params: Tree) -> FedOptState:
        return FedOptState(params, (), jnp.zeros((), jnp.int32), ())

    def ratio(g: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.where(v > 0, g / jnp.sqrt(v), jnp.zeros_like(g))

    def client_update(
        grad_fn: GradFn, message: FedOptMessage, v: Tree, batches: Minibatches
    ) -> ClientResult[NaiveUpload, Tree]:
        eta = resolve_lr(lr, message.lr)

        def step(carry: tuple[Tree, Tree], batch: Tree) -> tuple[tuple[Tree, Tree], jax.Array]:
            y, v = carry
            loss, g = grad_fn(y, batch)  # line 5
            v = tree.ema(b2, v, tree.square(g))  # line 6
            y = tree.add_scaled(y, -eta, jax.tree.map(ratio, g, v))  # line 10
            return (y, v), loss

        (y, v), loss = local_steps(step, (message.params, v), batches)
        return NaiveUpload(y), v, loss

    def server_update(server: FedOptState, mean: NaiveUpload, cohort: Cohort) -> FedOptState:
        return server._replace(params=mean.params, round=server.round + 1)  # line 8

    return replace_updates(lr, init, client_update, server_update)._replace(init_client=tree.zeros_like)


def fafed(
    lr: LearningRate,
    alpha: LearningRate = 0.1,
    beta: Number = 0.9,
    rho: Number = 0.01,
    variant: str = "paper",
    adaptive: str = "adam",
    initial_batches: int | None = None,
) -> FedAlgorithm[FAFEDState, FAFEDState, Tree, FAFEDUpload]:
    """FAFED (Wu et al. 2023, Algorithm 2): variance-reduced momentum at the clients, one adaptive matrix for all.

    Round 0 (lines 2–3): mᵢ is the mean of client i's K minibatch gradients at x₀ (a batch of B = bq, Remark 1) and
    vᵢ = mᵢ²; the server sets m, v to the means and x ← x₀ − η₀ m, without A. Every later round is q = K iterations with
    the A of the last synchronisation (line 14), each on one batch ξ: g = g(x; ξ), g₋ = g(x_prev; ξ) (line 6);
    m ← g + (1−α_t)(m − g₋) (line 7); v ← β v + (1−β) g² (line 8); x ← x − η_t m/A (line 15). The last iteration uploads
    x, m, v instead of stepping; the server averages v and m, sets A = √v + ρ and x ← mean x − η_t m/A (lines 10–12).
    Round 0 costs K gradients, later ones 2K. Down: three vectors and t; up: three vectors.

    The paper outputs a random iterate; `params` is the last synchronised x. `x_prev` is the client's own iterate before
    the synchronisation (line 6 indexes it by i), kept between rounds. The algorithm has everyone take part: with a
    smaller cohort x_prev may be rounds old (x₀ at first), and biases m until the momentum forgets it.

    A round of unequal K advances t by the clients' mean K, rounded; client i's steps are at t, …, t+Kᵢ−1 and the
    server's at t + mean K − 1. Uploads hold K only when `lr` or `alpha` is a schedule.

    Args:
      lr: η > 0, a number or a schedule over the iterations t.
      alpha: α in (0, 1], a number or a schedule over the iterations t (`fafed_schedule` gives equation (5)'s pair).
      beta: β in [0, 1).
      rho: ρ > 0.
      variant: `"paper"`, or `"released"`: released code lets the last iteration, too, step with the old A at the
        client, averages x after it, then refreshes A.
      adaptive: what v is (the text after equation (2)): `"adam"`, line 8; `"global"`, one number for all parameters,
        v ← β v + (1−β) ‖g‖²; `"adagrad_norm"`, one number, v ← v + ‖g‖² (Ward, Wu, Bottou 2019). Such a number starts
        at ‖m̂‖² and is averaged as the vector is.
      initial_batches: B/b, the minibatches of line 2; None is all of the round, B = bq (Remark 1), and so is a number
        above K.
    """
    check_lr(lr=lr)
    check_lr(alpha=alpha, most=1)
    check_decay(beta=beta)
    check_positive(rho=rho)
    check_choice("variant", variant, ("paper", "released"))
    check_choice("adaptive", adaptive, ("adam", "global", "adagrad_norm"))
    if initial_batches is not None:
        check_int("initial_batches", initial_batches)

    def power(g: Tree) -> Tree:
        if adaptive == "adam":
            return tree.square(g)
        return tree.square_norm(g).astype(jax.tree.leaves(g)[0].dtype)  # in the dtype of the parameters

    def track(v: Tree, g: Tree) -> Tree:  # line 8
        return v + power(g) if adaptive == "adagrad_norm" else tree.ema(beta, v, power(g))

    return variance_reduced(lr, alpha, Preconditioner(power, track, rho), variant == "released", initial_batches)


class Preconditioner(NamedTuple):
    """How A comes from gradients: `power(m̂)` is the first v, `track(v, g)` the next, and A = √v + ρ."""

    power: Callable[[Tree], Tree]
    track: Callable[[Tree, Tree], Tree]
    rho: Number


def _divide(m: Tree, a: Tree) -> Tree:
    """m/A, coordinate by coordinate, also where A is one number."""
    if isinstance(a, jax.Array) and a.ndim == 0:
        return jax.tree.map(lambda m: m / a.astype(m.dtype), m)
    return tree.divide(m, a)


def variance_reduced(
    lr: LearningRate,
    alpha: LearningRate,
    precondition: Preconditioner | None,
    is_released: bool = False,
    initial_batches: int | None = None,
) -> FedAlgorithm[FAFEDState, FAFEDState, Tree, FAFEDUpload]:
    """Algorithm 2; without `precondition` it is STEM, without v (which is `()`) and A."""
    has_schedule = callable(lr) or callable(alpha)

    def init(params: Tree) -> FAFEDState:
        zeros = tree.zeros_like(params)
        v = () if precondition is None else precondition.power(zeros)
        return FAFEDState(params, zeros, v, jnp.zeros((), jnp.int32))

    def client_update(
        grad_fn: GradFn, message: FAFEDState, x_prev: Tree, batches: Minibatches
    ) -> ClientResult[FAFEDUpload, Tree]:
        steps = jnp.asarray(num_steps(batches), jnp.int32)
        end = message.t + steps - (0 if is_released else 1)  # line 9: the last iteration synchronises instead
        a = () if precondition is None else tree.root_plus(message.v, precondition.rho)  # line 14
        sent_steps = steps if has_schedule else ()

        def first_round() -> ClientResult[FAFEDUpload, Tree]:
            start = batches if initial_batches is None else first_batches(batches, initial_batches)
            m, loss = mean_gradient(grad_fn, message.params, start)  # line 2
            v = () if precondition is None else precondition.power(m)
            return FAFEDUpload(message.params, m, v, sent_steps), message.params, loss

        def step(carry: tuple, batch: Tree) -> tuple[tuple, jax.Array]:
            t, x_prev, x, m, v = carry
            loss, g = grad_fn(x, batch)  # line 6
            _, g_prev = grad_fn(x_prev, batch)  # line 6
            m = direction = tree.add_scaled(g, 1 - value_at(alpha, t), tree.sub(m, g_prev))  # line 7
            if precondition is not None:
                v, direction = precondition.track(v, g), _divide(m, a)  # line 8
            x_next = tree.add_scaled(x, -value_at(lr, t), direction)  # line 15
            return (t + 1, x, tree.select(t < end, x_next, x), m, v), loss

        def later_round() -> ClientResult[FAFEDUpload, Tree]:
            start = (message.t, x_prev, message.params, message.m, message.v)
            (_, before_last, x, m, v), loss = local_steps(step, start, batches)
            return FAFEDUpload(x, m, v, sent_steps), before_last, loss

        return cond(message.t == 0, first_round, later_round)

    def server_update(server: FAFEDState, mean: FAFEDUpload, cohort: Cohort) -> FAFEDState:
        is_first, direction = server.t == 0, mean.m
        t = jnp.where(is_first, 1, server.t + (mean.steps if has_schedule else 1))
        if precondition is not None:
            a = tree.root_plus(mean.v, precondition.rho)  # line 10
            direction = tree.select(is_first, mean.m, _divide(mean.m, a))  # line 3 has no A
        eta = jnp.where(is_first, value_at(lr, t - 1), 0.0) if is_released else value_at(lr, t - 1)
        return FAFEDState(tree.add_scaled(mean.params, -eta, direction), mean.m, mean.v, t)  # lines 3 and 12

    return FedAlgorithm(
        init, lambda params: params, lambda server: server, client_update, server_update, lambda s: s.params, "uniform"
    )._replace(gradients_per_step=2)


def fafed_schedule(rho: Number, h: Number, w: Number, c: Number) -> tuple[Schedule, Schedule]:
    """Equation (5): η_t = ρ h/(w + t)^{1/3}, and α_{t+1} = c η_t² cut off at 1 (Theorem 2).

    α₀ is not defined by the paper and not used (round 0 has no momentum); here it is α₁. The paper's language model
    has ρ h = 1 and w = 1; theory gives c = O(L²/(bNρ²)), which may exceed 1 in the first iterations, outside the (0, 1)
    that the text asks for: hence the cut.

    Args:
      rho: ρ > 0, that of `fafed`.
      h: h̄ > 0.
      w: w > 0, taken constant.
      c: c > 0.

    Returns:
      The pair (lr, alpha) of schedules over the iterations t = 0, 1, 2, …, arguments of `fafed` or `stem`.
    """
    check_positive(rho=rho, h=h, w=w, c=c)
    lr = cube_root(rho * h, w)
    return lr, _momentum(lr, c)


def fafed_theory(
    smoothness: float, num_clients: int, steps: int, rounds: int, batch: int = 1, rho: float = 1.0
) -> tuple[Schedule, Schedule, int]:
    """Theorem 2: η_t = ρ h̄/(w_t + t)^{1/3} with h̄ = N^{2/3}/L and w_t = max(3/2, 1728 L³ q³ h̄³ − t); α_{t+1} = c η_t².

    c = 1/(12 L q h̄³ ρ²) + 60 L²/(b N ρ²), and α is cut off at 1. The text prints T in place of q in w and c; but its
    bound has 12 L q/(ρ T), which is w^{1/3}/(ρ h̄ T) with q alone. It bounds c by 120 L²/(b N ρ), too, which need not
    hold where ρ < 1: c is the first expression.

    Args:
      smoothness: L > 0 of Assumption 2.
      num_clients: N.
      steps: q, the local steps of a round.
      rounds: T/q, for the advice q = (T/N²)^{1/3} (Remark 1).
      batch: b.
      rho: ρ > 0, that of `fafed`.

    Returns:
      The schedules (lr, alpha), arguments of `fafed`, and q as advised.
    """
    check_positive(smoothness=smoothness, rho=rho)
    for name, value in (("num_clients", num_clients), ("steps", steps), ("rounds", rounds), ("batch", batch)):
        check_int(name, value)
    h = num_clients ** (2 / 3) / smoothness
    c = 1 / (12 * smoothness * steps * h**3 * rho**2) + 60 * smoothness**2 / (batch * num_clients * rho**2)
    q = max(1, round((steps * rounds / num_clients**2) ** (1 / 3)))

    def lr(t: Number) -> jax.Array:
        return rho * h / jnp.cbrt(jnp.maximum(1.5 + jnp.asarray(t, float), 1728.0 * (smoothness * steps * h) ** 3))

    return lr, _momentum(lr, c), q


def _momentum(lr: Schedule, c: Number) -> Schedule:
    """α_{t+1} = c η_t², cut off at 1; α₀ is α₁."""

    def alpha(t: Number) -> jax.Array:
        eta = lr(jnp.maximum(jnp.asarray(t) - 1, 0))
        return jnp.minimum(jnp.asarray(c, eta.dtype) * eta * eta, 1.0)

    return alpha
