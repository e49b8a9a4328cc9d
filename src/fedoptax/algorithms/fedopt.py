"""The FedOpt family: adaptivity at the server, plain steps at the clients.

Reddi et al. 2021, *Adaptive Federated Optimization*: Algorithm 1 (FedOpt) and Algorithm 2 (FedAdagrad, FedYogi,
FedAdam). Each round sends the parameters down and one change Δ up; clients keep nothing, or an optimizer's state.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import GradientTransformation

from fedoptax import tree
from fedoptax.algorithm import ClientResult, Cohort, FedAlgorithm, GradFn, Minibatches, Tree, Upload, local_steps
from fedoptax.algorithms import optimizers
from fedoptax.algorithms.optimizers import MomentOptions
from fedoptax.errors import UsageError, check_choice
from fedoptax.schedules import LearningRate, Number, check_lr, resolve_lr, value_to_send


class FedOptState(NamedTuple):
    """The server: x, its optimizer's state, the round, and what clients share besides x, `()` for nothing."""

    params: Tree
    opt_state: Tree
    round: jax.Array
    shared: Tree


class FedOptMessage(NamedTuple):
    """Down: x, the client learning rate if it is scheduled, what clients share, such as their optimizer's state."""

    params: Tree
    lr: Tree
    shared: Tree


class FedOptUpload(NamedTuple):
    """Up: Δᵢ = y − x, and the client optimizer's state if it is averaged."""

    delta: Tree
    client_opt_state: Tree


FedOpt = FedAlgorithm[FedOptState, FedOptMessage, Tree, Upload]
"""An algorithm with the server's state and the message of FedOpt; its parameter is the type of the upload."""
FedOptResult = ClientResult[FedOptUpload, Tree]


def _sgd(lr: Number) -> GradientTransformation:
    return optax.stateless(lambda grads, params: tree.scale(-lr, grads))


def _fedopt(
    client_lr: LearningRate,
    server_optimizer: GradientTransformation,
    client_optimizer: Callable[[Number], GradientTransformation] = _sgd,
    client_state: str = "reset",
) -> FedOpt[FedOptUpload]:
    """Algorithm 1 (FedOpt), with its line numbers at the code; a client optimizer may use the learning rate."""
    check_lr(client_lr=client_lr)
    check_choice("client_state", client_state, ("reset", "average", "persist", "server"))
    average, persists, is_fixed = (client_state == name for name in ("average", "persist", "server"))

    def init(params: Tree) -> FedOptState:
        inner, opt_state = client_optimizer(1.0).init(params), server_optimizer.init(params)
        forms: Any = [jax.tree.structure(state) for state in (inner, opt_state)]
        if is_fixed and forms[0] != forms[1]:
            raise UsageError('client_state "server" needs equal states of client_optimizer and server_optimizer')
        return FedOptState(params, opt_state, jnp.zeros((), jnp.int32), inner if average else ())

    def init_client(params: Tree) -> Tree:
        return client_optimizer(1.0).init(params) if persists else ()

    def broadcast(server: FedOptState) -> FedOptMessage:
        shared = server.opt_state if is_fixed else server.shared
        return FedOptMessage(server.params, value_to_send(client_lr, server.round), shared)

    def client_update(grad_fn: GradFn, message: FedOptMessage, client: Tree, batches: Minibatches) -> FedOptResult:
        optimizer = client_optimizer(resolve_lr(client_lr, message.lr))

        def step(carry: tuple[Tree, Tree], batch: Tree) -> tuple[tuple[Tree, Tree], jax.Array]:
            y, state = carry
            loss, grads = grad_fn(y, batch)  # line 7
            updates, new_state = optimizer.update(grads, state, y)  # line 8
            return (optax.apply_updates(y, updates), state if is_fixed else new_state), loss

        state = message.shared if average or is_fixed else client
        state = state if client_state != "reset" else optimizer.init(message.params)
        (y, state), loss = local_steps(step, (message.params, state), batches)  # lines 4 to 8
        upload = FedOptUpload(tree.sub(y, message.params), state if average else ())  # line 9
        return upload, state if persists else client, loss

    def server_update(server: FedOptState, mean: FedOptUpload, cohort: Cohort) -> FedOptState:
        pseudo_gradient = tree.scale(-1, mean.delta)  # line 10 is the mean
        updates, opt_state = server_optimizer.update(pseudo_gradient, server.opt_state, server.params)
        params = optax.apply_updates(server.params, updates)  # line 11
        return FedOptState(params, opt_state, server.round + 1, mean.client_opt_state)

    return FedAlgorithm(init, init_client, broadcast, client_update, server_update, lambda s: s.params)


def fedopt(
    client_optimizer: GradientTransformation, server_optimizer: GradientTransformation, client_state: str = "reset"
) -> FedOpt[FedOptUpload]:
    """Algorithm 1 (FedOpt) with any two optax transformations.

    The client runs K steps of `client_optimizer` from x (lines 4–8) and uploads Δᵢ = y − x (line 9); the server feeds
    the pseudo-gradient −Σ wᵢ Δᵢ to `server_optimizer` (lines 10–11).

    Args:
      client_optimizer: ClientOpt. A schedule inside it counts the steps since its state began; with `"server"`, rounds.
      server_optimizer: ServerOpt. A schedule inside it counts rounds.
      client_state: `"reset"` starts each client's optimizer afresh every round (cross-device); `"average"` uploads
        the optimizer's state too, averages it and broadcasts it with x (Local AdaAlter, federated Lookahead);
        `"persist"` lets each client keep its own between rounds (DiLoCo; cross-silo); `"server"` starts every client
        from the server optimizer's state and keeps it fixed for the round, so that updates depend on "globally
        aggregated statistics" (Section 2): both optimizers must have states of one form.
    """
    for name, optimizer in (("client_optimizer", client_optimizer), ("server_optimizer", server_optimizer)):
        optimizers.check_optimizer(name, optimizer)
    return _fedopt(1.0, server_optimizer, lambda lr: client_optimizer, client_state)


def fedavg(client_lr: LearningRate, server_lr: LearningRate = 1.0) -> FedOpt[FedOptUpload]:
    """FedAvg (McMahan et al. 2017) as FedOpt: SGD at the clients, x ← x + η Δ at the server.

    Args:
      client_lr: η_l > 0, a number or a schedule over rounds.
      server_lr: η > 0, a number or a schedule over rounds; 1 is plain averaging.
    """
    return _fedopt(client_lr, optimizers.descend(server_lr))


def replace_updates(
    client_lr: LearningRate,
    init: Callable[[Tree], FedOptState],
    client_update: Callable[[GradFn, FedOptMessage, Tree, Minibatches], ClientResult[Upload, Tree]],
    server_update: Callable[[FedOptState, Upload, Cohort], FedOptState],
) -> FedOpt[Upload]:
    """FedAvg with another initial state and other updates; clients receive the same message, and means are uniform."""
    avg = fedavg(client_lr)
    return FedAlgorithm(init, avg.init_client, avg.broadcast, client_update, server_update, avg.params, "uniform")


def fedavgm(client_lr: LearningRate, server_lr: LearningRate = 1.0, momentum: Number = 0.9) -> FedOpt[FedOptUpload]:
    """FedAvgM (Hsu et al. 2019): SGD at the clients; m ← μ m + Δ and x ← x + η m at the server.

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      momentum: μ in [0, 1); 0 is FedAvg.
    """
    return _fedopt(client_lr, optax.chain(optimizers.scale_by_momentum(momentum), optimizers.descend(server_lr)))


def fedadagrad(
    client_lr: LearningRate,
    server_lr: LearningRate,
    b1: Number = 0.0,
    tau: Number = 1e-3,
    initial_accumulator: Number | None = None,
) -> FedOpt[FedOptUpload]:
    """FedAdagrad (Reddi et al. 2021, Algorithm 2): m ← β₁ m + (1−β₁) Δ; v ← v + Δ²; x ← x + η m/(√v + τ).

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      b1: β₁ in [0, 1).
      tau: τ > 0, the degree of adaptivity (smaller is more adaptive).
      initial_accumulator: what v starts at, >= 0; None is τ².
    """
    direction = optimizers.scale_by_fedadagrad(b1, MomentOptions(tau, False, initial_accumulator))
    return _fedopt(client_lr, optax.chain(direction, optimizers.descend(server_lr)))


def fedyogi(
    client_lr: LearningRate,
    server_lr: LearningRate,
    b1: Number = 0.9,
    b2: Number = 0.99,
    tau: Number = 1e-3,
    debias: bool = False,
    initial_accumulator: Number | None = None,
) -> FedOpt[FedOptUpload]:
    """FedYogi (Reddi et al. 2021, Algorithm 2): `fedadam`, also its arguments, with v ← v − (1−β₂) Δ² sign(v − Δ²)."""
    direction = optimizers.scale_by_fedyogi(b1, b2, MomentOptions(tau, debias, initial_accumulator))
    return _fedopt(client_lr, optax.chain(direction, optimizers.descend(server_lr)))


def fedadam(
    client_lr: LearningRate,
    server_lr: LearningRate,
    b1: Number = 0.9,
    b2: Number = 0.99,
    tau: Number = 1e-3,
    debias: bool = False,
    initial_accumulator: Number | None = None,
) -> FedOpt[FedOptUpload]:
    """FedAdam (Reddi et al. 2021, Algorithm 2): m ← β₁ m + (1−β₁) Δ; v ← β₂ v + (1−β₂) Δ²; x ← x + η m/(√v + τ).

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      b1, b2: β₁ and β₂ in [0, 1).
      tau: τ > 0, the degree of adaptivity (smaller is more adaptive).
      debias: False is the paper (no bias correction, v starts at τ²). True is the convention of the authors' released
        code and Keras (step η √(1−β₂ᵗ)/(1−β₁ᵗ) from t = 1, v starts at 0): use it with hyper-parameters that were
        published for it.
      initial_accumulator: what v starts at, >= 0; None is the convention's own, τ² or 0. Many implementations start at
        0 and correct no bias: docs/conformance.md says which.
    """
    direction = optimizers.scale_by_fedadam(b1, b2, MomentOptions(tau, debias, initial_accumulator))
    return _fedopt(client_lr, optax.chain(direction, optimizers.descend(server_lr)))


def fedadabound(
    client_lr: LearningRate,
    server_lr: LearningRate,
    b1: Number = 0.9,
    b2: Number = 0.99,
    final_lr: Number = 0.1,
    gamma: Number = 1e-3,
    decay: bool = True,
) -> FedOpt[FedOptUpload]:
    """FedAdaBound (named in Reddi et al. 2021, Section 2): the server's optimizer is AdaBound (Luo et al. 2019).

    m, v as FedAdam, from 0; x ← x + clip(η/√v, η_f (1 − 1/(γ t + 1)), η_f (1 + 1/(γ t))) m/√t, from t = 1.

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      b1, b2: β₁ and β₂ in [0, 1).
      final_lr: η_f > 0, the SGD step that the bounds end at.
      gamma: γ > 0, how fast they do.
      decay: False leaves out 1/√t, as the authors' code and experiments do.
    """
    return _fedopt(client_lr, optimizers.adabound(server_lr, b1, b2, final_lr, gamma, decay))


def fedams(
    client_lr: LearningRate, server_lr: LearningRate, b1: Number = 0.9, b2: Number = 0.99, eps: Number = 1e-3
) -> FedOpt[FedOptUpload]:
    """FedAMS (Wang, Lin, Chen 2022): m, v as FedAdam; v̂ ← max(v̂, v, ε); x ← x + η m/√v̂; v, v̂ start at 0.

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      b1, b2: β₁ and β₂ in [0, 1).
      eps: ε > 0. While v stays below ε, as it does for small Δ, v̂ = ε and this is `fedavgm`: choose ε near Δ².
    """
    return _fedopt(client_lr, optax.chain(optimizers.scale_by_fedams(b1, b2, eps), optimizers.descend(server_lr)))


def fedamsgrad(
    client_lr: LearningRate, server_lr: LearningRate, b1: Number = 0.9, b2: Number = 0.99, eps: Number = 1e-3
) -> FedOpt[FedOptUpload]:
    """FedAMSGrad (Wang, Lin, Chen 2022, option 2): v̂ ← max(v̂, v); x ← x + η m/(√v̂ + ε); v, v̂ start at 0.

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      b1, b2, eps: β₁ and β₂ in [0, 1), ε > 0.
    """
    return _fedopt(client_lr, optax.chain(optimizers.scale_by_fedamsgrad(b1, b2, eps), optimizers.descend(server_lr)))
