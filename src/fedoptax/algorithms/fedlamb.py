"""Local AMSGrad (the Fed-AMS of the Fed-LAMB papers) and Fed-LAMB: adaptive steps at the clients, shared v̂.

*Layerwise and Dimensionwise Locally Adaptive Optimization Method*, Algorithm 1 (Fed-LAMB; lines as there), after
Chen, Li, Li 2020, *Toward Communication Efficient Adaptive Gradient Method* (Local AMSGrad). Each round sends (θ̄, v̂)
down and (θ, v) up: two vectors each way. The three texts of the algorithm contradict each other and themselves: each of
their readings is an argument, and docs/algorithms has the lines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import ClientResult, Cohort, GradFn, Minibatches, first_batches, local_steps, mean_gradient
from fedoptax.algorithms.fedopt import FedOpt, FedOptMessage, FedOptState, replace_updates
from fedoptax.errors import UsageError, check_choice, check_decay, check_number, check_positive
from fedoptax.schedules import LearningRate, Number, check_lr, resolve_lr
from fedoptax.tree import Tree

Phi = str | Callable[[jax.Array], jax.Array]
"""φ: `"clip"`, `"identity"`, or a function of a layer's norm, a scalar, to a scalar."""


class AMSUpload(NamedTuple):
    """Up (line 14): the local parameters θ and second moment v."""

    params: Tree
    v: Tree


class Moments(NamedTuple):
    """The client: m, the steps s since m was 0 (`()` without bias correction), and v (`()` unless it is its own)."""

    m: Tree
    steps: Tree
    v: Tree


@dataclass(frozen=True)
class AMSOptions:
    """The common options of Local AMSGrad and Fed-LAMB, see `fedlamb`; checked when they are set."""

    b1: Number
    b2: Number
    eps: Number
    v0: Number
    momentum: str
    bias_correction: str | bool
    second_moment: str
    gradient: str

    def __post_init__(self) -> None:
        check_decay(b1=self.b1, b2=self.b2)
        check_positive(eps=self.eps, v0=self.v0)
        check_choice("momentum", self.momentum, ("persist", "reset"))
        if self.bias_correction is not False and self.bias_correction not in ("momentum", "both"):
            raise UsageError(f"bias_correction must be False, momentum or both, got {self.bias_correction!r}")
        check_choice("second_moment", self.second_moment, ("server", "device"))
        check_choice("gradient", self.gradient, ("current", "start", "once"))
        if self.second_moment == "device" and self.momentum == "reset":
            raise UsageError('second_moment "device" is a client\'s state, which momentum "reset" does not keep')


def local_amsgrad(
    lr: LearningRate,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    v0: Number = 1e-4,
    momentum: str = "persist",
    bias_correction: str | bool = False,
    second_moment: str = "server",
    gradient: str = "current",
) -> FedOpt[AMSUpload]:
    """Local AMSGrad (Chen, Li, Li 2020), "Fed-AMS": Fed-LAMB's Algorithm 1 with θ ← θ − α p in place of line 12.

    Arguments are those of `fedlamb`.
    """
    options = AMSOptions(b1, b2, eps, v0, momentum, bias_correction, second_moment, gradient)
    return _local_adaptive(lr, lambda p, theta: p, options)


def fedlamb(
    lr: LearningRate,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    v0: Number = 1e-4,
    weight_decay: Number = 0.0,
    phi: Phi = "clip",
    layers: str = "tensor",
    momentum: str = "persist",
    bias_correction: str | bool = False,
    second_moment: str = "server",
    gradient: str = "current",
) -> FedOpt[AMSUpload]:
    """Fed-LAMB (Karimi, Li, Li, Algorithm 1): Local AMSGrad with steps normalised layer by layer.

    Line 12, per layer ℓ with u = p^ℓ + λ θ^ℓ: θ^ℓ ← θ^ℓ − α φ(‖θ^ℓ‖) u/‖u‖; a layer with ‖u‖ = 0 does not move.

    Args:
      lr: α > 0, a number or a schedule over rounds.
      b1, b2: β₁ and β₂ in [0, 1).
      eps: ε > 0 of line 11.
      v0: v̂₀ > 0, the starting value of v̂ and v (line 2).
      weight_decay: λ ≥ 0; the paper tries 0, 0.01 and 0.1.
      phi: `"clip"`, φ(a) = min(max(a, 10⁻³), 10), bounded as assumption H4 asks; `"identity"`, the paper's
        experiments, under which a layer that starts at 0 never moves; or a function of the layer's norm.
      layers: `"tensor"`: each parameter tensor is a layer; `"module"`: tensors whose key paths agree up to the last key
        (a kernel and its bias) form one layer.
      momentum: `"persist"`: m is the client's and survives rounds; `"reset"`: stateless clients, m = 0 each round.
      bias_correction: False; `"momentum"`: divide a copy of m by 1 − β₁ˢ (s steps since m was 0); `"both"`, as lines 9
        and 10 are printed: m and v are overwritten by m/(1 − β₁ᵗ) and v/(1 − β₂ᵗ), t the step of the round.
      second_moment: `"server"`: v starts each round at v̂ (line 6); `"device"`: v is the client's and survives rounds.
      gradient: where line 8 takes it: `"current"`, at the current iterate; `"start"`, as printed, at θ⁰ on each
        minibatch; `"once"`, at θ⁰ on the first minibatch, for all steps of the round.
    """
    check_number("weight_decay", weight_decay, 0)
    check_choice("layers", layers, ("tensor", "module"))
    phis = {"clip": lambda a: jnp.clip(a, 1e-3, 10.0), "identity": lambda a: a}
    if not callable(phi):
        check_choice("phi", phi, phis)
        phi = phis[phi]

    def normalize(u: jax.Array, norm_u: jax.Array, norm_theta: jax.Array) -> jax.Array:
        ratio = jnp.where(norm_u > 0, phi(norm_theta) / norm_u, 0.0)
        return ratio.astype(u.dtype) * u

    def direction(p: Tree, theta: Tree) -> Tree:
        u = tree.add_scaled(p, weight_decay, theta)
        return jax.tree.map(normalize, u, _layer_norms(u, layers), _layer_norms(theta, layers))

    options = AMSOptions(b1, b2, eps, v0, momentum, bias_correction, second_moment, gradient)
    return _local_adaptive(lr, direction, options)


def _local_adaptive(
    lr: LearningRate, direction: Callable[[Tree, Tree], Tree], options: AMSOptions
) -> FedOpt[AMSUpload]:
    """Algorithm 1, with θ ← θ − α direction(p, θ) in line 12; v̂ is the shared state of the clients' optimizers."""
    check_lr(lr=lr)
    b1, b2, correction = options.b1, options.b2, options.bias_correction
    persists, has_v = options.momentum == "persist", options.second_moment == "device"

    def init(params: Tree) -> FedOptState:
        return FedOptState(params, (), jnp.zeros((), jnp.int32), tree.full_like(params, options.v0))  # line 2

    def fresh(params: Tree) -> Moments:
        v = tree.full_like(params, options.v0) if has_v else ()  # line 2
        return Moments(tree.zeros_like(params), jnp.zeros((), jnp.int32) if correction else (), v)

    def client_update(
        grad_fn: GradFn, message: FedOptMessage, client: Tree, batches: Minibatches
    ) -> ClientResult[AMSUpload, Tree]:
        theta_0, v_hat = message.params, message.shared  # line 5
        alpha = resolve_lr(lr, message.lr)
        m, s, v = client if persists else fresh(theta_0)
        v = v if has_v else v_hat  # line 6
        s = jnp.zeros((), jnp.int32) if correction == "both" else s  # t of line 7
        if options.gradient == "once":
            once = mean_gradient(grad_fn, theta_0, first_batches(batches, 1))

        def step(carry: tuple, batch: Tree) -> tuple[tuple, jax.Array]:
            theta, m, v, s = carry
            if options.gradient == "once":
                g, loss = once
            else:
                loss, g = grad_fn(theta if options.gradient == "current" else theta_0, batch)  # line 8
            s = s + 1 if correction else s
            m_hat = m = tree.ema(b1, m, g)  # line 9
            v = tree.ema(b2, v, tree.square(g))  # line 10
            if correction:
                m_hat = tree.scale(1 / (1 - b1 ** s.astype(float)), m)  # line 9
            if correction == "both":
                m, v = m_hat, tree.scale(1 / (1 - b2 ** s.astype(float)), v)  # lines 9 and 10
            p = tree.divide(m_hat, tree.root_plus(v_hat, options.eps))  # line 11
            theta = tree.add_scaled(theta, -alpha, direction(p, theta))  # line 12
            return (theta, m, v, s), loss

        (theta, m, v, s), loss = local_steps(step, (theta_0, m, v, s), batches)  # line 7
        client = Moments(m, s, v if has_v else ()) if persists else ()
        return AMSUpload(theta, v), client, loss  # line 14

    def server_update(server: FedOptState, mean: AMSUpload, cohort: Cohort) -> FedOptState:
        v_max = jax.tree.map(jnp.maximum, server.shared, mean.v)
        return FedOptState(mean.params, (), server.round + 1, v_max)  # line 16

    algorithm = replace_updates(lr, init, client_update, server_update)
    init_client, each = fresh if persists else algorithm.init_client, float(options.gradient != "once")
    return algorithm._replace(init_client=init_client, gradients_per_step=each)


def _layer_norms(params: Tree, layers: str) -> Tree:
    """The 2-norm of the layer that each leaf belongs to, a scalar in at least float32."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    wide = tree.sum_dtype(params)
    names = [path if layers == "tensor" else path[:-1] for path, _ in leaves]
    squares: dict[tuple, jax.Array] = {}
    for name, (_, a) in zip(names, leaves):
        squares[name] = squares.get(name, jnp.zeros((), wide)) + jnp.sum(jnp.square(a.astype(wide)))
    return jax.tree.unflatten(structure, [jnp.sqrt(squares[name]) for name in names])
