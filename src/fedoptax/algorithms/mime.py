"""Mime and MimeLite: a centralised optimizer's statistics, applied at the clients, unchanged during a round.

Karimireddy et al. 2020a, *Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning*, Algorithm 1 and
its table of base optimizers (a step U and a tracking rule V).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import ClientResult, Cohort, GradFn, Minibatches, cond, local_steps, mean_gradient, steps_or_one
from fedoptax.algorithms.fedopt import FedOpt, FedOptMessage, FedOptState, replace_updates
from fedoptax.errors import check_choice, check_decay, check_positive
from fedoptax.schedules import LearningRate, Number, resolve_lr, value_to_send
from fedoptax.tree import Tree


class Statistics(NamedTuple):
    """The base optimizer's statistics s: m, and v (`()` for SGD)."""

    m: Tree
    v: Tree


class Shared(NamedTuple):
    """What clients share besides x: s, c (`()` for MimeLite), and in a message of two exchanges which of them it is."""

    stats: Statistics
    control: Tree
    exchange: Tree = ()


class MimeUpload(NamedTuple):
    """Up: y − x, and ∇fᵢ(x), the mean of the round's minibatch gradients at x."""

    delta: Tree
    gradient: Tree


def mime(
    client_lr: LearningRate,
    base: str = "sgd",
    b1: Number = 0.9,
    b2: Number = 0.99,
    eps: Number = 1e-3,
    control: str = "current",
) -> FedOpt[Tree]:
    """Mime (Karimireddy et al. 2020a, Algorithm 1).

    Client: y ← x; K steps y ← y − η U(g(y; ξ) − g(x; ξ) + c, s); upload y and ∇fᵢ(x). Server: s ← V(mean ∇fᵢ(x), s);
    x ← mean y. With `base="sgd"` s = m, U = V = β₁ m + (1−β₁) g; with `"adam"` s = (m, v),
    U = (β₁ m + (1−β₁) g)/(√v + ε), V = (β₁ m + (1−β₁) g, β₂ v + (1−β₂) g²). Statistics start at 0, without bias
    correction.

    ∇fᵢ(x) is the mean of the round's minibatch gradients at x: all of the client's data when the round is whole epochs.
    Algorithm 1 exchanges c = mean ∇fᵢ(x) before the local steps: two rounds in a row have the same cohort and
    minibatches, the first measures c, the second trains. K gradients, then 2K.

    Args:
      client_lr: η > 0, a number or a schedule over the algorithm's rounds, each of which takes two exchanges.
      base: `"sgd"` (with momentum b1; 0 is plain SGD) or `"adam"`.
      b1: β₁ in [0, 1).
      b2: β₂ in [0, 1); Adam only.
      eps: ε > 0; Adam only.
      control: `"current"` is the paper. `"previous"` spares the extra exchange: c is the mean that the previous round
        brought, from another cohort at another x (0 in the first round, which only measures): another algorithm.
    """
    check_choice("control", control, ("current", "previous"))
    if control == "previous":
        return _mime(client_lr, base, b1, b2, eps, corrects_drift=True)
    return _mime_of_two_exchanges(client_lr, base, b1, b2, eps)


def mimelite(
    client_lr: LearningRate, base: str = "sgd", b1: Number = 0.9, b2: Number = 0.99, eps: Number = 1e-3
) -> FedOpt[MimeUpload]:
    """MimeLite (Karimireddy et al. 2020a, Algorithm 1): `mime` without control variate, y ← y − η U(g(y; ξ), s)."""
    return _mime(client_lr, base, b1, b2, eps, corrects_drift=False)


def _mime(
    client_lr: LearningRate, base: str, b1: Number, b2: Number, eps: Number, corrects_drift: bool
) -> FedOpt[MimeUpload]:
    """MimeLite, and Mime with the control of the round before."""
    base_init, direction, track = _base(base, b1, b2, eps)

    def init(params: Tree) -> FedOptState:
        shared = Shared(base_init(params), tree.zeros_like(params) if corrects_drift else ())
        return FedOptState(params, (), jnp.zeros((), jnp.int32), shared)

    def client_update(
        grad_fn: GradFn, message: FedOptMessage, client: Tree, batches: Minibatches
    ) -> ClientResult[MimeUpload, Tree]:
        x, lr, shared = message.params, resolve_lr(client_lr, message.lr), message.shared

        def step(carry: tuple[Tree, Tree], batch: Tree) -> tuple[tuple[Tree, Tree], jax.Array]:
            y, gradient = carry
            loss, g = grad_fn(y, batch)
            _, g_x = grad_fn(x, batch)
            if corrects_drift:
                g = tree.add(tree.sub(g, g_x), shared.control)
            y = tree.add_scaled(y, -lr, direction(g, shared.stats))
            return (y, tree.accumulate(gradient, 1 / steps_or_one(batches), g_x)), loss

        (y, gradient), loss = local_steps(step, (x, tree.accumulate_zero(x)), batches)
        return MimeUpload(tree.sub(y, x), tree.accumulate_result(gradient, x)), client, loss

    def server_update(server: FedOptState, mean: MimeUpload, cohort: Cohort) -> FedOptState:
        shared = Shared(track(mean.gradient, server.shared.stats), mean.gradient if corrects_drift else ())
        return FedOptState(tree.add(server.params, mean.delta), (), server.round + 1, shared)

    return replace_updates(client_lr, init, client_update, server_update)._replace(gradients_per_step=2)


def _mime_of_two_exchanges(client_lr: LearningRate, base: str, b1: Number, b2: Number, eps: Number) -> FedOpt[Tree]:
    """Algorithm 1 with its extra exchange: ∇fᵢ(x) goes up in even rounds, y − x in the odd ones."""
    _, direction, track = _base(base, b1, b2, eps)

    def broadcast(server: FedOptState) -> FedOptMessage:
        shared = server.shared._replace(exchange=server.round % 2)
        return FedOptMessage(server.params, value_to_send(client_lr, server.round // 2), shared)

    def client_update(
        grad_fn: GradFn, message: FedOptMessage, client: Tree, batches: Minibatches
    ) -> ClientResult[Tree, Tree]:
        x, lr, shared = message.params, resolve_lr(client_lr, message.lr), message.shared

        def step(y: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
            loss, g = grad_fn(y, batch)
            _, g_x = grad_fn(x, batch)
            g = tree.add(tree.sub(g, g_x), shared.control)
            return tree.add_scaled(y, -lr, direction(g, shared.stats)), loss

        def train() -> tuple[Tree, jax.Array]:
            y, loss = local_steps(step, x, batches)
            return tree.sub(y, x), loss

        value, loss = cond(shared.exchange == 0, lambda: mean_gradient(grad_fn, x, batches), train)
        return value, client, loss

    def server_update(server: FedOptState, mean: Tree, cohort: Cohort) -> FedOptState:
        stats, control, _ = server.shared
        measured = FedOptState(server.params, (), server.round + 1, Shared(stats, mean))
        trained = measured._replace(params=tree.add(server.params, mean), shared=Shared(track(control, stats), control))
        return tree.select(server.round % 2 == 0, measured, trained)

    of_one = _mime(client_lr, base, b1, b2, eps, corrects_drift=True)._replace(exchanges=2, gradients_per_step=1.5)
    return of_one._replace(broadcast=broadcast, client_update=client_update, server_update=server_update)


def _base(base: str, b1: Number, b2: Number, eps: Number) -> tuple[Callable, ...]:
    """The base optimizer's first statistics, U and V; checks the hyper-parameters."""
    check_choice("base", base, ("sgd", "adam"))
    check_decay(b1=b1, b2=b2)
    check_positive(eps=eps)

    def init(params: Tree) -> Statistics:
        zeros = tree.zeros_like(params)
        return Statistics(zeros, () if base == "sgd" else zeros)

    def direction(g: Tree, s: Statistics) -> Tree:  # U
        m = tree.ema(b1, s.m, g)
        return m if base == "sgd" else tree.divide(m, tree.root_plus(s.v, eps))

    def track(g: Tree, s: Statistics) -> Statistics:  # V
        v = () if base == "sgd" else tree.ema(b2, s.v, tree.square(g))
        return Statistics(tree.ema(b1, s.m, g), v)

    return init, direction, track
