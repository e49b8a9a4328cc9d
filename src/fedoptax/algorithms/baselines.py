"""Baselines: training without federated learning."""

import jax
import jax.numpy as jnp

from fedoptax import names, tree
from fedoptax.algorithm import ClientResult, FedAlgorithm, GradFn, Minibatches, Tree, local_steps
from fedoptax.errors import check_positive
from fedoptax.schedules import Number


def local(client_lr: Number) -> FedAlgorithm[Tree, tuple[()], Tree, tuple[()]]:
    """Baseline: every client trains its own model by SGD on its own examples, and sends nothing.

    Its models are the clients' states; the server keeps the initial parameters.

    Args:
      client_lr: η_l > 0, a number.
    """
    check_positive(client_lr=client_lr)

    def client_update(grad_fn: GradFn, message: Tree, params: Tree, batches: Minibatches) -> ClientResult[Tree, Tree]:
        def step(y: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
            loss, grads = grad_fn(y, batch)
            return tree.add_scaled(y, -client_lr, grads), loss

        params, loss = local_steps(step, params, batches)
        return (), params, loss

    return FedAlgorithm(
        init=lambda params: params,
        init_client=lambda params: jax.tree.map(jnp.copy, params),
        broadcast=lambda server: (),
        client_update=client_update,
        server_update=lambda server, mean, cohort: server,
        params=lambda server: server,
    )


def centralized(client_lr: Number) -> FedAlgorithm[Tree, tuple[()], Tree, tuple[()]]:
    """Baseline: SGD on the examples of all clients in one place, with as many gradients; `local` with one client.

    Args:
      client_lr: η_l > 0, a number.
    """
    return local(client_lr)


BASELINES = {name: globals()[name] for name in names.BASELINES}
