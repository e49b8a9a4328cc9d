"""FedAda²: adaptive optimizers at both ends; preconditioners are not sent, the clients' start at 0 in every round.

Lee, Sharma, Zaheer, Li 2025, *Efficient Adaptive Federated Optimization* (FedAda², FedAda²++). SM3: Anil, Gupta, Koren,
Singer 2019, *Memory-Efficient Adaptive Optimization*, Algorithm SM3-II.
"""

from functools import reduce

import jax
import jax.numpy as jnp
import optax

from fedoptax import tree
from fedoptax.algorithm import Tree
from fedoptax.algorithms import optimizers
from fedoptax.algorithms.fedopt import FedOpt, FedOptUpload, _fedopt, _sgd
from fedoptax.errors import check_choice, check_positive
from fedoptax.schedules import LearningRate, Number


def fedada2(
    client_lr: LearningRate,
    server_lr: LearningRate,
    client: str = "adagrad",
    server: str = "adagrad",
    b1: Number = 0.9,
    b2: Number = 0.99,
    tau: Number = 1e-3,
    eps: Number = 1e-3,
) -> FedOpt[FedOptUpload]:
    """FedAda² (Lee et al. 2025): `fedopt` of two adaptive optimizers; with `client="sm3"` FedAda²++.

    Client, from v = 0: v ← v + g²; y ← y − η_l g/(√v + ε). SM3 keeps, for each tensor, one number per row, column, …
    instead of v: v ← min of those that cover an element, + g²; each becomes the largest v that it covers. Server, as
    `fedadagrad` or `fedadam`: m ← β₁ m + (1−β₁) Δ; v ← v + Δ² (Adam: β₂ v + (1−β₂) Δ²); x ← x + η m/(√v + τ). The
    messages are FedAvg's. Weights are uniform.

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      client: `"adagrad"` or `"sm3"`.
      server: `"adagrad"` or `"adam"`.
      b1, b2: β₁ and β₂ in [0, 1) of the server; β₂ is Adam's only.
      tau: τ > 0; the server's v starts at τ².
      eps: ε > 0 of the clients.
    """
    check_choice("client", client, ("adagrad", "sm3"))
    check_choice("server", server, ("adagrad", "adam"))
    check_positive(eps=eps)
    inner = scale_by_adagrad(eps) if client == "adagrad" else scale_by_sm3(eps)
    options = optimizers.MomentOptions(tau)
    adagrad, adam = optimizers.scale_by_fedadagrad(b1, options), optimizers.scale_by_fedadam(b1, b2, options)
    outer = optax.chain(adagrad if server == "adagrad" else adam, optimizers.descend(server_lr))
    return _fedopt(client_lr, outer, lambda lr: optax.chain(inner, _sgd(lr)))._replace(weighting="uniform")


def scale_by_adagrad(eps: Number) -> optax.GradientTransformation:
    """AdaGrad from 0: v ← v + g²; the direction is g/(√v + ε)."""

    def update(g: Tree, v: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        v = tree.add(v, tree.square(g))
        return tree.divide(g, tree.root_plus(v, eps)), v

    return optax.GradientTransformation(tree.zeros_like, update)


def scale_by_sm3(eps: Number) -> optax.GradientTransformation:
    """SM3-II: AdaGrad with v bounded by one number for each row, column, … of a tensor; see `fedada2`."""

    def cover(v: jax.Array) -> tuple[jax.Array, ...]:
        axes = range(v.ndim)
        return tuple(jnp.max(v, [a for a in axes if a != axis], keepdims=True) for axis in axes) or (v,)

    def init(params: Tree) -> Tree:
        return jax.tree.map(lambda a: cover(jnp.zeros_like(a)), params)

    def update(g: Tree, mu: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        v = jax.tree.map(lambda g, mu: reduce(jnp.minimum, mu) + g * g, g, mu)
        return tree.divide(g, tree.root_plus(v, eps)), jax.tree.map(cover, v)

    return optax.GradientTransformation(init, update)
