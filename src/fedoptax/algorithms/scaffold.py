"""SCAFFOLD: control variates correct the drift of the clients.

Karimireddy et al. 2020, *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*, Algorithm 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedoptax import tree
from fedoptax.algorithm import (
    ClientResult,
    Cohort,
    GradFn,
    Minibatches,
    Tree,
    local_steps,
    mean_gradient,
    num_steps,
    steps_or_one,
)
from fedoptax.algorithms import optimizers
from fedoptax.algorithms.fedopt import FedOpt, FedOptMessage, FedOptState, replace_updates
from fedoptax.errors import check_choice
from fedoptax.schedules import LearningRate, Number, check_lr, resolve_lr, value_at


class ScaffoldUpload(NamedTuple):
    """Up (line 13): Δy = y − x and Δc = cᵢ⁺ − cᵢ."""

    delta: Tree
    control_delta: Tree


def scaffold(
    client_lr: LearningRate,
    server_lr: LearningRate = 1.0,
    option: str = "II",
    server_optimizer: optax.GradientTransformation | None = None,
) -> FedOpt[ScaffoldUpload]:
    """SCAFFOLD (Karimireddy et al. 2020, Algorithm 1); clients share x and the control variate c.

    Client: y ← x (line 7); K steps y ← y − η_l (g(y) − cᵢ + c) (lines 8–10); cᵢ⁺ by the option (line 12); upload
    Δy, Δc (line 13); cᵢ ← cᵢ⁺ (line 14). Server: x ← x + η Σ wᵢ Δyᵢ and c ← c + (|S|/N) Σ wᵢ Δcᵢ (lines 16–17). Both
    controls start at 0. K is the number of steps the client took; a client that took none keeps its control.

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      option: `"II"`: cᵢ⁺ = cᵢ − c + (x − y)/(K η_l), at no cost; `"I"`: cᵢ⁺ = ∇fᵢ(x), taken as the mean of the round's
        minibatch gradients at x, which doubles the gradients computed.
      server_optimizer: an optax transformation that gets −Σ wᵢ Δyᵢ as its gradient, as in `fedopt`; x ← x + η u with
        its update u (Reddi et al. 2021, Section 3, discussion (iv)). None is u = Σ wᵢ Δyᵢ.
    """
    check_lr(client_lr=client_lr, server_lr=server_lr)
    check_choice("option", option, ("I", "II"))
    optimizer = optax.scale(-1.0) if server_optimizer is None else server_optimizer
    optimizers.check_optimizer("server_optimizer", optimizer)

    def init(params: Tree) -> FedOptState:
        return FedOptState(params, optimizer.init(params), jnp.zeros((), jnp.int32), tree.zeros_like(params))

    def client_update(
        grad_fn: GradFn, message: FedOptMessage, c_i: Tree, batches: Minibatches
    ) -> ClientResult[ScaffoldUpload, Tree]:
        x, c, lr = message.params, message.shared, resolve_lr(client_lr, message.lr)

        def step(y: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
            loss, g = grad_fn(y, batch)  # line 9
            return tree.add_scaled(y, -lr, tree.add(tree.sub(g, c_i), c)), loss  # line 10

        y, loss = local_steps(step, x, batches)  # lines 7 and 8
        if option == "I":
            c_plus, _ = mean_gradient(grad_fn, x, batches)  # line 12, option I
        else:
            distance = steps_or_one(batches) * lr
            c_plus = tree.add_scaled(tree.sub(c_i, c), 1 / distance, tree.sub(x, y))  # line 12, option II
        c_plus = tree.select(num_steps(batches) > 0, c_plus, c_i)
        return ScaffoldUpload(tree.sub(y, x), tree.sub(c_plus, c_i)), c_plus, loss  # lines 13 and 14

    def server_update(server: FedOptState, mean: ScaffoldUpload, cohort: Cohort) -> FedOptState:
        updates, opt_state = optimizer.update(tree.scale(-1, mean.delta), server.opt_state, server.params)
        x = tree.add_scaled(server.params, value_at(server_lr, server.round), updates)  # lines 16 and 17
        c = tree.add_scaled(server.shared, cohort.size / cohort.num_clients, mean.control_delta)  # line 17
        return FedOptState(x, opt_state, server.round + 1, c)

    algorithm = replace_updates(client_lr, init, client_update, server_update)
    return algorithm._replace(init_client=tree.zeros_like, gradients_per_step=2 if option == "I" else 1)


def scaffold_adam(
    client_lr: LearningRate,
    server_lr: LearningRate,
    option: str = "II",
    b1: Number = 0.9,
    b2: Number = 0.99,
    tau: Number = 1e-3,
    debias: bool = False,
) -> FedOpt[ScaffoldUpload]:
    """SCAFFOLD's clients and FedAdam's server, "directly combined" (Reddi et al. 2021, Section 3, discussion (iv)).

    `scaffold` with `fedadam`'s m ← β₁ m + (1−β₁) Δ; v ← β₂ v + (1−β₂) Δ²; x ← x + η m/(√v + τ).

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      option: `"II"` or `"I"`, how a client updates its control, see `scaffold`.
      b1, b2: β₁ and β₂ in [0, 1).
      tau: τ > 0, the degree of adaptivity (smaller is more adaptive).
      debias: False is the paper; True scales the step by √(1−β₂ᵗ)/(1−β₁ᵗ) and starts v at 0, see `fedadam`.
    """
    adam = optimizers.scale_by_fedadam(b1, b2, optimizers.MomentOptions(tau, debias))
    return scaffold(client_lr, server_lr, option, optax.chain(adam, optax.scale(-1.0)))
