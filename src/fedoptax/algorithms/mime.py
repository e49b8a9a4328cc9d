"""Mime and MimeLite: a centralised optimizer's statistics, applied at the clients, unchanged during a round.

Karimireddy et al. 2020a, *Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning*, Algorithm 1 and
its table of base optimizers (a step U and a tracking rule V).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import _tree as tree
from fedoptax.algorithm import (
    Cohort,
    FedAlgorithm,
    GradFn,
    Tree,
    accumulate,
    accumulate_result,
    accumulate_zero,
    local_steps,
    steps_or_one,
)
from fedoptax.errors import check_choice, check_number, check_positive
from fedoptax.schedules import LearningRate, check_lr, resolve_lr, value_to_send


class Base(NamedTuple):
    """A base optimizer B = (U, V): `init(params) -> s`, direction U(g, s) = `step(s, g)`, V(g, s) = `track(s, g)`."""

    init: Callable[[Tree], Tree]
    step: Callable[[Tree, Tree], Tree]
    track: Callable[[Tree, Tree], Tree]


class MimeState(NamedTuple):
    """The server: parameters x, statistics s, control c (`()` for MimeLite), the round."""

    params: Tree
    stats: Tree
    control: Tree
    round: jax.Array


class MimeMessage(NamedTuple):
    """Down: x, s, c (Mime only), and the learning rate if it is scheduled."""

    params: Tree
    stats: Tree
    control: Tree
    lr: Any


class MimeUpload(NamedTuple):
    """Up: y − x, and ∇fᵢ(x), the mean of the round's minibatch gradients at x."""

    delta: Tree
    gradient: Tree


def mime(client_lr: LearningRate, base: str = "sgd", b1: Any = 0.9, b2: Any = 0.99, eps: Any = 1e-3) -> FedAlgorithm:
    """Mime (Karimireddy et al. 2020a, Algorithm 1).

    Client: y ← x; K steps y ← y − η U(g(y; ξ) − g(x; ξ) + c, s); upload y and ∇fᵢ(x). Server: s ← V(mean ∇fᵢ(x), s);
    x ← mean y. With `base="sgd"` s = m, U = V = β₁ m + (1−β₁) g; with `"adam"` s = (m, v),
    U = (β₁ m + (1−β₁) g)/(√v + ε), V = (β₁ m + (1−β₁) g, β₂ v + (1−β₂) g²). Statistics start at 0, without bias
    correction.

    ∇fᵢ(x) is the mean of the round's minibatch gradients at x: all of the client's data when the round is whole epochs.
    Two gradients a step. Deviation: Algorithm 1 exchanges c = mean ∇fᵢ(x) before the local steps, an extra exchange in
    each round. Here a round has one exchange, so c is the mean that the previous round brought (0 in the first round,
    which therefore moves nothing and only measures).

    Args:
      client_lr: η > 0, a number or a schedule over rounds.
      base: `"sgd"` (with momentum b1; 0 is plain SGD) or `"adam"`.
      b1: β₁ in [0, 1).
      b2: β₂ in [0, 1); Adam only.
      eps: ε > 0; Adam only.

    Raises:
      UsageError: a number is outside its range or the base optimizer is unknown.
    """
    return _mime(client_lr, _base(base, b1, b2, eps), corrected=True)


def mimelite(
    client_lr: LearningRate, base: str = "sgd", b1: Any = 0.9, b2: Any = 0.99, eps: Any = 1e-3
) -> FedAlgorithm:
    """MimeLite (Karimireddy et al. 2020a, Algorithm 1): `mime` without control variate, y ← y − η U(g(y; ξ), s)."""
    return _mime(client_lr, _base(base, b1, b2, eps), corrected=False)


def _mime(client_lr: LearningRate, base: Base, corrected: bool) -> FedAlgorithm:
    check_lr(client_lr=client_lr)

    def init(params: Tree) -> MimeState:
        control = tree.zeros_like(params) if corrected else ()
        return MimeState(params, base.init(params), control, jnp.zeros((), jnp.int32))

    def broadcast(server: MimeState) -> MimeMessage:
        return MimeMessage(server.params, server.stats, server.control, value_to_send(client_lr, server.round))

    def client_update(
        grad_fn: GradFn, message: MimeMessage, client: Tree, batches: Any
    ) -> tuple[MimeUpload, Tree, jax.Array]:
        x, lr = message.params, resolve_lr(client_lr, message.lr)

        def step(carry: tuple[Tree, Tree], batch: Any) -> tuple[tuple[Tree, Tree], jax.Array]:
            y, gradient = carry
            loss, g = grad_fn(y, batch)
            _, g_x = grad_fn(x, batch)
            if corrected:
                g = tree.add(tree.sub(g, g_x), message.control)
            y = tree.add_scaled(y, -lr, base.step(message.stats, g))
            return (y, accumulate(gradient, 1 / steps_or_one(batches), g_x)), loss

        (y, gradient), loss = local_steps(step, (x, accumulate_zero(x)), batches)
        return MimeUpload(tree.sub(y, x), accumulate_result(gradient, x)), client, loss

    def server_update(server: MimeState, mean: MimeUpload, cohort: Cohort) -> MimeState:
        del cohort
        stats = base.track(server.stats, mean.gradient)
        control = mean.gradient if corrected else ()
        return MimeState(tree.add(server.params, mean.delta), stats, control, server.round + 1)

    return FedAlgorithm(init, lambda params: (), broadcast, client_update, server_update, lambda s: s.params, "uniform")


def _base(name: str, b1: Any, b2: Any, eps: Any) -> Base:
    check_choice("base", name, ("sgd", "adam"))
    check_number("b1", b1, 0, 1)
    check_number("b2", b2, 0, 1)
    check_positive(eps=eps)

    def momentum(m: Tree, g: Tree) -> Tree:
        return tree.ema(b1, m, g)

    def adam_step(stats: tuple[Tree, Tree], g: Tree) -> Tree:
        m, v = stats
        return tree.divide(momentum(m, g), tree.root_plus(v, eps))

    def adam_track(stats: tuple[Tree, Tree], g: Tree) -> tuple[Tree, Tree]:
        m, v = stats
        return momentum(m, g), tree.ema(b2, v, tree.square(g))

    if name == "sgd":
        return Base(tree.zeros_like, momentum, momentum)
    return Base(lambda params: (tree.zeros_like(params), tree.zeros_like(params)), adam_step, adam_track)
