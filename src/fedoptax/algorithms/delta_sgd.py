"""Δ-SGD: each client finds its step size from the smoothness that it meets.

Kim, Toghani, Uribe, Kyrillidis 2024, *Adaptive Federated Learning with Auto-Tuned Clients*, Algorithm 1.
"""

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import GradFn, Minibatches, Tree, local_steps
from fedoptax.algorithms.fedopt import FedOpt, FedOptMessage, FedOptResult, FedOptUpload, fedavg
from fedoptax.errors import check_choice, check_number, check_positive
from fedoptax.schedules import LearningRate, Number


def delta_sgd(
    gamma: Number = 2.0,
    delta: Number = 0.1,
    lr0: Number = 0.2,
    theta0: Number = 1.0,
    server_lr: LearningRate = 1.0,
    variant: str = "paper",
) -> FedOpt[FedOptUpload]:
    """Δ-SGD (Kim et al. 2024, Algorithm 1): η_k = min(γ ‖y_k − y_{k−1}‖/(2 ‖g_k − g_{k−1}‖), √(1 + δ θ_{k−1}) η_{k−1}).

    Step 1 has η₀; before step k+1 the client takes the gradients at y_k and y_{k−1} on the minibatch of that step, sets
    η_k and θ_k = η_k/η_{k−1}, and steps with the first of them. η and θ start afresh in every round. Where the
    gradients do not differ, only the second bound counts. Two gradients per step; the defaults are the paper's, for
    all tasks. Server: x ← x + η Δ with uniform weights.

    Args:
      gamma: γ > 0.
      delta: δ ≥ 0, how fast a step size may grow.
      lr0, theta0: η₀ and θ₀ > 0.
      server_lr: η > 0, a number or a schedule over rounds; 1 is plain averaging, the paper.
      variant: `"paper"`, or `"released"`: the authors' code lets η grow before the first step, too, and adds 10⁻⁸ to
        it wherever the gradients differ.
    """
    check_positive(gamma=gamma, lr0=lr0, theta0=theta0)
    check_number("delta", delta, 0)
    check_choice("variant", variant, ("paper", "released"))
    is_released = variant == "released"

    def client_update(grad_fn: GradFn, message: FedOptMessage, client: Tree, batches: Minibatches) -> FedOptResult:
        dtype = tree.sum_dtype(message.params)

        def step(carry: tuple, batch: Tree) -> tuple[tuple, jax.Array]:
            k, y_prev, y, eta, theta = carry
            loss, g = grad_fn(y, batch)
            _, g_prev = grad_fn(y_prev, batch)
            moved, changed = (tree.norm(tree.sub(a, b)) for a, b in ((y, y_prev), (g, g_prev)))
            grown = jnp.sqrt(1 + delta * theta) * eta
            bound = gamma * moved / (2 * jnp.where(changed > 0, changed, 1))
            smooth = jnp.minimum(bound, grown) + (1e-8 if is_released else 0)
            eta_k = jnp.where((moved > 0) & (changed > 0), smooth, grown)
            has_start = (k == 0) & (not is_released)  # the first step has η₀
            eta_k, theta_k = jnp.where(has_start, eta, eta_k), jnp.where(has_start, theta, eta_k / eta)
            y_next = tree.add_scaled(y, -eta_k, g)
            return (k + 1, y, y_next, eta_k, theta_k), loss

        x = message.params
        start = (jnp.zeros((), jnp.int32), x, x, jnp.asarray(lr0, dtype), jnp.asarray(theta0, dtype))
        (_, _, y, _, _), loss = local_steps(step, start, batches)
        return FedOptUpload(tree.sub(y, x), ()), client, loss

    server = fedavg(lr0, server_lr)  # x down, their mean
    return server._replace(client_update=client_update, weighting="uniform", gradients_per_step=2)
