"""The papers' server optimizers, and AdamW and Muon for clients, as optax gradient transformations.

Each takes the pseudo-gradient −Δ (the negative weighted mean of the clients' changes) and returns a direction;
`descend(server_lr)` turns the direction into an update. In the formulas d stands for −Δ; the papers write them
with Δ and add instead of subtracting, which is the same, as m is linear in Δ and v depends on Δ² only.

Sources: Reddi et al. 2021, *Adaptive Federated Optimization*, Algorithm 2 (FedAdagrad, FedYogi, FedAdam);
Wang, Lin, Chen 2022, *Communication-Efficient Adaptive Federated Learning* (FedAMS, FedAMSGrad);
Hsu, Qi, Brown 2019 (FedAvgM).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import GradientTransformation

from fedoptax import tree
from fedoptax.algorithm import Tree
from fedoptax.errors import UsageError, check_decay, check_flag, check_number, check_positive
from fedoptax.schedules import LearningRate, Number, check_lr, value_at


class MomentState(NamedTuple):
    """First moment m and second moment v, shaped like the parameters, and t, the number of updates made."""

    m: Tree
    v: Tree
    updates_made: jax.Array


@dataclass(frozen=True)
class MomentOptions:
    """The common options of FedAdagrad, FedYogi and FedAdam, see `fedadam`; checked when they are set."""

    tau: Number = 1e-3
    debias: bool = False
    initial_accumulator: Number | None = None

    def __post_init__(self) -> None:
        check_positive(tau=self.tau)
        check_flag("debias", self.debias)
        if self.initial_accumulator is not None:
            check_number("initial_accumulator", self.initial_accumulator, 0)


DEFAULTS = MomentOptions()


class MaxMomentState(NamedTuple):
    """First moment m, second moment v and its running maximum v̂, shaped like the parameters."""

    m: Tree
    v: Tree
    v_max: Tree


def check_optimizer(name: str, optimizer: Any) -> None:
    """Check that the argument `name` is an optax transformation."""
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise UsageError(f"{name} must be an optax.GradientTransformation, got {optimizer!r}")


def descend(server_lr: LearningRate) -> GradientTransformation:
    """u ← −η_t d, with η a constant or a schedule over server updates (rounds, from 0)."""
    check_lr(server_lr=server_lr)
    return optax.scale_by_schedule(lambda round: -value_at(server_lr, round))


def scale_by_momentum(momentum: Number, nesterov: bool = False) -> GradientTransformation:
    """FedAvgM: m ← μ m + d; the direction is m, with `nesterov` d + μ m."""
    check_decay(momentum=momentum)

    def update(d: Tree, m: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        m = tree.add_scaled(d, momentum, m)
        return tree.add_scaled(d, momentum, m) if nesterov else m, m

    return GradientTransformation(tree.zeros_like, update)


def scale_by_fedadagrad(b1: Number = 0.0, options: MomentOptions = DEFAULTS) -> GradientTransformation:
    """FedAdagrad (Algorithm 2): m ← β₁ m + (1−β₁) d; v ← v + d²; the direction is m/(√v + τ). v starts at τ²."""
    return _scale_by_moments(lambda v, d: v + d * d, b1, 0.0, options)


def scale_by_fedyogi(b1: Number = 0.9, b2: Number = 0.99, options: MomentOptions = DEFAULTS) -> GradientTransformation:
    """FedYogi (Algorithm 2): v ← v − (1−β₂) d² sign(v − d²); m and direction as FedAdagrad."""

    def second_moment(v: jax.Array, d: jax.Array) -> jax.Array:
        return v - jnp.asarray(1 - b2, v.dtype) * d * d * jnp.sign(v - d * d)

    return _scale_by_moments(second_moment, b1, b2, options)


def scale_by_fedadam(b1: Number = 0.9, b2: Number = 0.99, options: MomentOptions = DEFAULTS) -> GradientTransformation:
    """FedAdam (Algorithm 2): v ← β₂ v + (1−β₂) d²; m and direction as FedAdagrad."""
    return _scale_by_moments(lambda v, d: tree.ema(b2, v, d * d), b1, b2, options)


def scale_by_fedams(b1: Number = 0.9, b2: Number = 0.99, eps: Number = 1e-3) -> GradientTransformation:
    """FedAMS: m, v as FedAdam; v̂ ← max(v̂, v, ε); the direction is m/√v̂. v and v̂ start at 0."""
    check_positive(eps=eps)
    return _scale_by_max_moments(b1, b2, floor=eps, eps=0.0)


def scale_by_fedamsgrad(b1: Number = 0.9, b2: Number = 0.99, eps: Number = 1e-3) -> GradientTransformation:
    """FedAMSGrad (option 2 of FedAMS's paper): v̂ ← max(v̂, v); the direction is m/(√v̂ + ε)."""
    check_positive(eps=eps)
    return _scale_by_max_moments(b1, b2, floor=0.0, eps=eps)


def adabound(
    server_lr: LearningRate, b1: Number, b2: Number, final_lr: Number, gamma: Number, decay: bool
) -> GradientTransformation:
    """AdaBound (Luo, Xiong, Liu, Sun 2019, Algorithm 2): u ← −clip(η/√v, low, high) m/√t, see `fedadabound`."""
    check_lr(server_lr=server_lr)
    check_decay(b1=b1, b2=b2)
    check_positive(final_lr=final_lr, gamma=gamma)
    check_flag("decay", decay)

    def update(d: Tree, state: MomentState, params: Tree = None) -> tuple[Tree, MomentState]:
        m, v = tree.ema(b1, state.m, d), tree.ema(b2, state.v, tree.square(d))
        t = (state.updates_made + 1).astype(float)
        lr, low, high = value_at(server_lr, state.updates_made), 1 - 1 / (gamma * t + 1), 1 + 1 / (gamma * t)

        def step(m: jax.Array, v: jax.Array) -> jax.Array:
            wide = jnp.clip(lr / jnp.sqrt(v.astype(t.dtype)), final_lr * low, final_lr * high)
            return -(wide / jnp.sqrt(t) if decay else wide).astype(m.dtype) * m

        return jax.tree.map(step, m, v), MomentState(m, v, state.updates_made + 1)

    return GradientTransformation(_no_moments, update)


def scale_by_adamw(b1: Number, b2: Number, eps: Number, weight_decay: Number) -> GradientTransformation:
    """AdamW (Loshchilov and Hutter 2019): m̂/(√v̂ + ε) + λ x, with FedAdam's m and v from 0, bias-corrected."""
    check_decay(b1=b1, b2=b2)
    check_positive(eps=eps)
    check_number("weight_decay", weight_decay, 0)

    def update(d: Tree, state: MomentState, params: Tree = None) -> tuple[Tree, MomentState]:
        m = tree.ema(b1, state.m, d)
        v = tree.ema(b2, state.v, tree.square(d))
        t = state.updates_made + 1
        m_hat, v_hat = (tree.scale(1 / (1 - b ** t.astype(float)), a) for b, a in ((b1, m), (b2, v)))
        direction = tree.divide(m_hat, tree.root_plus(v_hat, eps))
        return tree.add_scaled(direction, weight_decay, params), MomentState(m, v, t)

    return GradientTransformation(_no_moments, update)


def _no_moments(params: Tree) -> MomentState:
    return MomentState(tree.zeros_like(params), tree.zeros_like(params), jnp.zeros((), jnp.int32))


def scale_by_muon(
    beta: Number, adamw: str, b1: Number, b2: Number, eps: Number, weight_decay: Number
) -> GradientTransformation:
    """Muon (Jordan et al. 2024) for arrays of two or more axes, AdamW for the rest and for paths with `adamw`.

    m ← β m + d; the direction is √max(1, n/k) NS(d + β m) + λ x, with NS about the nearest orthogonal matrix of a
    k × n matrix: n is the last axis, a layer's outputs, and k all others, its inputs.
    """
    check_decay(beta=beta)
    try:
        pattern = re.compile(adamw)
    except (re.error, TypeError) as error:
        raise UsageError(f"adamw must be a regular expression, got {adamw!r}: {error}") from None

    def direction(m: Tree, params: Tree) -> Tree:
        return tree.add_scaled(jax.tree.map(_orthogonalize, m), weight_decay, params)

    muon = optax.chain(scale_by_momentum(beta, nesterov=True), optax.stateless(direction))

    def label(path: tuple, a: jax.Array) -> str:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return "muon" if a.ndim > 1 and not pattern.search(name) else "adamw"

    optimizers = {"muon": muon, "adamw": scale_by_adamw(b1, b2, eps, weight_decay)}
    return optax.partition(optimizers, lambda params: jax.tree_util.tree_map_with_path(label, params))


def _orthogonalize(m: jax.Array) -> jax.Array:
    """√max(1, n/k) times five Newton–Schulz steps from m/‖m‖: singular values of about 0.7 to 1.2."""
    x = m.reshape(-1, m.shape[-1])
    inputs, outputs = x.shape
    x = x / (jnp.linalg.norm(x) + 1e-7)
    x = x.T if inputs > outputs else x
    for _ in range(5):
        s = x @ x.T
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
    x = x.T if inputs > outputs else x
    return max(1, outputs / inputs) ** 0.5 * x.reshape(m.shape)


def _scale_by_moments(
    second_moment: Callable[[jax.Array, jax.Array], jax.Array], b1: Number, b2: Number, options: MomentOptions
) -> GradientTransformation:
    """Algorithm 2, with v ← `second_moment(v, d)`."""
    check_decay(b1=b1, b2=b2)
    tau, debias = options.tau, options.debias

    def init(params: Tree) -> MomentState:
        v0 = 0.0 if debias else tau**2
        v0 = v0 if options.initial_accumulator is None else options.initial_accumulator
        return MomentState(tree.zeros_like(params), tree.full_like(params, v0), jnp.zeros((), jnp.int32))

    def update(d: Tree, state: MomentState, params: Tree = None) -> tuple[Tree, MomentState]:
        m = tree.ema(b1, state.m, d)
        v = jax.tree.map(second_moment, state.v, d)
        t = state.updates_made + 1
        direction = tree.divide(m, tree.root_plus(v, tau))
        if debias:
            steps = t.astype(float)
            direction = tree.scale(jnp.sqrt(1 - b2**steps) / (1 - b1**steps), direction)
        return direction, MomentState(m, v, t)

    return GradientTransformation(init, update)


def _scale_by_max_moments(b1: Number, b2: Number, floor: Number, eps: Number) -> GradientTransformation:
    """FedAMS and FedAMSGrad: v̂ ← max(v̂, v, floor); the direction is m/(√v̂ + eps)."""
    check_decay(b1=b1, b2=b2)

    def init(params: Tree) -> MaxMomentState:
        zeros = tree.zeros_like(params)
        return MaxMomentState(zeros, zeros, zeros)

    def largest(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.maximum(jnp.maximum(old, new), jnp.asarray(floor, new.dtype))

    def update(d: Tree, state: MaxMomentState, params: Tree = None) -> tuple[Tree, MaxMomentState]:
        m = tree.ema(b1, state.m, d)
        v = tree.ema(b2, state.v, tree.square(d))
        v_max = jax.tree.map(largest, state.v_max, v)
        return tree.divide(m, tree.root_plus(v_max, eps)), MaxMomentState(m, v, v_max)

    return GradientTransformation(init, update)
