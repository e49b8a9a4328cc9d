"""The papers' server optimizers as optax gradient transformations.

Each takes the pseudo-gradient −Δ (the negative weighted mean of the clients' changes) and returns a direction;
`descend(learning_rate)` turns the direction into an update. In the formulas d stands for −Δ; the papers write them
with Δ and add instead of subtracting, which is the same, as m is linear in Δ and v depends on Δ² only.

Sources: Reddi et al. 2021, *Adaptive Federated Optimization*, Algorithm 2 (FedAdagrad, FedYogi, FedAdam);
Wang, Lin, Chen 2022, *Communication-Efficient Adaptive Federated Learning* (FedAMS, FedAMSGrad);
Hsu, Qi, Brown 2019 (FedAvgM).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedoptax import _tree as tree
from fedoptax.schedules import LearningRate, lr_at

Leafwise = Callable[[jax.Array, jax.Array], jax.Array]


class MomentState(NamedTuple):
    """First moment m and second moment v, shaped like the parameters, and t, the number of updates made."""

    m: Any
    v: Any
    updates_made: jax.Array


class MaxMomentState(NamedTuple):
    """First moment m, second moment v and its running maximum v̂, shaped like the parameters."""

    m: Any
    v: Any
    v_max: Any


def descend(learning_rate: LearningRate) -> optax.GradientTransformation:
    """u ← −η_t d, with η a constant or a schedule over server updates (rounds, from 0)."""
    return optax.scale_by_schedule(lambda round: -lr_at(learning_rate, round))


def scale_by_momentum(momentum: Any) -> optax.GradientTransformation:
    """FedAvgM: m ← μ m + d; the direction is m."""

    def update(d: Any, m: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        m = tree.add_scaled(d, momentum, m)
        return m, m

    return optax.GradientTransformation(tree.zeros_like, update)


def scale_by_fedadagrad(b1: Any = 0.0, tau: Any = 1e-3) -> optax.GradientTransformation:
    """FedAdagrad (Algorithm 2): m ← β₁ m + (1−β₁) d; v ← v + d²; the direction is m/(√v + τ). v starts at τ²."""
    return _moments(b1, lambda v, d: v + d * d, tau, v0=tau**2)


def scale_by_fedyogi(
    b1: Any = 0.9, b2: Any = 0.99, tau: Any = 1e-3, debias: bool = False
) -> optax.GradientTransformation:
    """FedYogi (Algorithm 2): v ← v − (1−β₂) d² sign(v − d²); m and direction as FedAdagrad.

    `debias` is the convention of the authors' released code: v starts at 0 instead of τ², and the direction of the
    t-th update (t = 1, 2, …) is multiplied by √(1−β₂ᵗ)/(1−β₁ᵗ).
    """

    def second(v: jax.Array, d: jax.Array) -> jax.Array:
        return v - jnp.asarray(1 - b2, v.dtype) * d * d * jnp.sign(v - d * d)

    return _moments(b1, second, tau, v0=0.0 if debias else tau**2, bias=_bias(b1, b2) if debias else None)


def scale_by_fedadam(
    b1: Any = 0.9, b2: Any = 0.99, tau: Any = 1e-3, debias: bool = False
) -> optax.GradientTransformation:
    """FedAdam (Algorithm 2): v ← β₂ v + (1−β₂) d²; m and direction as FedAdagrad; `debias` as in FedYogi."""
    return _moments(b1, _second_ema(b2), tau, v0=0.0 if debias else tau**2, bias=_bias(b1, b2) if debias else None)


def scale_by_fedams(b1: Any = 0.9, b2: Any = 0.99, eps: Any = 1e-3) -> optax.GradientTransformation:
    """FedAMS: m, v as FedAdam; v̂ ← max(v̂, v, ε); the direction is m/√v̂. v and v̂ start at 0."""

    def direction(m: jax.Array, v_max: jax.Array) -> jax.Array:
        return m / jnp.sqrt(v_max)

    return _max_moments(b1, b2, direction, floor=eps)


def scale_by_fedamsgrad(b1: Any = 0.9, b2: Any = 0.99, eps: Any = 1e-3) -> optax.GradientTransformation:
    """FedAMSGrad (option 2 of FedAMS's paper): v̂ ← max(v̂, v); the direction is m/(√v̂ + ε)."""

    def direction(m: jax.Array, v_max: jax.Array) -> jax.Array:
        return m / (jnp.sqrt(v_max) + jnp.asarray(eps, m.dtype))

    return _max_moments(b1, b2, direction, floor=0.0)


def _moments(
    b1: Any, second: Leafwise, tau: Any, v0: Any, bias: Callable[[jax.Array], jax.Array] | None = None
) -> optax.GradientTransformation:
    def init(params: Any) -> MomentState:
        return MomentState(tree.zeros_like(params), tree.full_like(params, v0), jnp.zeros((), jnp.int32))

    def update(d: Any, state: MomentState, params: Any = None) -> tuple[Any, MomentState]:
        del params
        m = tree.ema(b1, state.m, d)
        v = jax.tree.map(second, state.v, d)
        count = state.updates_made + 1
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + jnp.asarray(tau, v.dtype)), m, v)
        if bias is not None:
            direction = tree.scale(bias(count), direction)
        return direction, MomentState(m, v, count)

    return optax.GradientTransformation(init, update)


def _max_moments(b1: Any, b2: Any, direction: Leafwise, floor: Any) -> optax.GradientTransformation:
    def init(params: Any) -> MaxMomentState:
        return MaxMomentState(tree.zeros_like(params), tree.zeros_like(params), tree.zeros_like(params))

    def update(d: Any, state: MaxMomentState, params: Any = None) -> tuple[Any, MaxMomentState]:
        del params
        m = tree.ema(b1, state.m, d)
        v = jax.tree.map(_second_ema(b2), state.v, d)
        v_max = jax.tree.map(
            lambda old, new: jnp.maximum(jnp.maximum(old, new), jnp.asarray(floor, new.dtype)), state.v_max, v
        )
        return jax.tree.map(direction, m, v_max), MaxMomentState(m, v, v_max)

    return optax.GradientTransformation(init, update)


def _second_ema(b2: Any) -> Leafwise:
    def second(v: jax.Array, d: jax.Array) -> jax.Array:
        return jnp.asarray(b2, v.dtype) * v + jnp.asarray(1 - b2, v.dtype) * d * d

    return second


def _bias(b1: Any, b2: Any) -> Callable[[jax.Array], jax.Array]:
    def factor(count: jax.Array) -> jax.Array:
        t = count.astype(jnp.result_type(float))
        return jnp.sqrt(1 - jnp.asarray(b2, t.dtype) ** t) / (1 - jnp.asarray(b1, t.dtype) ** t)

    return factor
