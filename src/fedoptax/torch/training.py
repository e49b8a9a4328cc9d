"""Any algorithm with a module at its clients: the algorithm's own steps, PyTorch's gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from torch import nn

from fedoptax.algorithm import FedAlgorithm, Tree
from fedoptax.torch.gradients import ModuleLoss, as_list, torch_grad_fn
from fedoptax.torch.params import buffers_from_module, load_buffers


class ModuleState(NamedTuple):
    """A client: what the algorithm keeps, and the module's buffers, which never leave the client."""

    algorithm: Tree
    buffers: dict[str, Any]


def with_module(algorithm: FedAlgorithm, module: nn.Module, loss: ModuleLoss) -> FedAlgorithm:
    """`algorithm` with clients that train a module; server, messages and uploads stay as they are.

    A client's gradients are those of `torch_grad_fn`, whatever gradient function the round gives; so this wrapper is
    the outermost one. Rounds are eager (`fedoptax.eager.run_round`, or `fedoptax.torch.client` on a network). Clients
    in one process may share the module: each round puts the client's parameters and buffers into it.

    Buffers, the running statistics of batch normalisation, are the client's own and kept between rounds; no server
    optimizer and no mean ever sees them. They start as the module's are now.

    Args:
      algorithm: any algorithm.
      module: the module. `params_from_module(module)` are parameters for `algorithm.init`.
      loss: `(module, batch) -> scalar`; see `torch_grad_fn`.

    Returns:
      An algorithm whose client states are `ModuleState`s.
    """
    start = buffers_from_module(module)
    grad_fn = torch_grad_fn(module, loss)

    def client_update(given: Any, message: Tree, client: ModuleState, batches: Any) -> tuple[Tree, Tree, jax.Array]:
        del given
        own = as_list(batches)
        load_buffers(module, client.buffers)
        upload, state, mean_loss = algorithm.client_update(grad_fn, message, client.algorithm, own)
        return upload, ModuleState(state, buffers_from_module(module)), mean_loss

    return algorithm._replace(
        init_client=lambda params: ModuleState(algorithm.init_client(params), start), client_update=client_update
    )
