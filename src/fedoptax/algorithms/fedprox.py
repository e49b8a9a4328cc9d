"""FedProx: a proximal term keeps clients near the model that they received.

Li et al. 2020, *Federated Optimization in Heterogeneous Networks*, Algorithm 2.
"""

import jax

from fedoptax import tree
from fedoptax.algorithm import Client, FedAlgorithm, GradFn, Message, Server, Tree, Upload
from fedoptax.algorithms.fedopt import FedOpt, FedOptUpload, fedavg
from fedoptax.errors import UsageError, check_number
from fedoptax.schedules import LearningRate, Number
from fedoptax.wrappers.gradients import with_gradient


def with_prox(
    algorithm: FedAlgorithm[Server, Message, Client, Upload], mu: Number
) -> FedAlgorithm[Server, Message, Client, Upload]:
    """Add FedProx's proximal term to any algorithm (Li et al. 2020, Algorithm 2).

    The client minimises fᵢ(y) + (μ/2)‖y − x‖² (Algorithm 2, line 5): wherever the algorithm takes a gradient, g(y)
    becomes g(y) + μ (y − x), where x is what the client received. The reported loss stays the task's.

    Args:
      algorithm: any algorithm whose message has a field `params`, the received x (all but the baselines do).
      mu: μ ≥ 0.

    Raises:
      UsageError: μ is not a number ≥ 0, or (when a client runs) the message has no field `params`.
    """
    check_number("mu", mu, 0)
    if getattr(algorithm, "client_params", None) is not None:
        raise UsageError("algorithm must have no personal parameters yet: wrap with_prox's result in with_personal")

    def proximal(grad_fn: GradFn, message: Tree) -> GradFn:
        if not hasattr(message, "params"):
            raise UsageError(f"algorithm must send a message with a field 'params', got {type(message).__name__}")

        def gradient(y: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
            loss, grads = grad_fn(y, batch)
            return loss, tree.add_scaled(grads, mu, tree.sub(y, message.params))

        return gradient

    return with_gradient(algorithm, proximal)


def fedprox(client_lr: LearningRate, mu: Number, server_lr: LearningRate = 1.0) -> FedOpt[FedOptUpload]:
    """FedProx (Li et al. 2020, Algorithm 2): `fedavg` with (μ/2)‖y − x‖² added to every client's objective.

    Args:
      client_lr, server_lr: η_l > 0 and η > 0, each a number or a schedule over rounds.
      mu: μ ≥ 0; 0 is FedAvg.
    """
    return with_prox(fedavg(client_lr, server_lr), mu)
