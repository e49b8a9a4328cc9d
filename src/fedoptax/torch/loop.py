"""A user's own training loop as a client of the FedOpt family."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn

from fedoptax.algorithm import FedAlgorithm, Tree
from fedoptax.algorithms.fedopt import FedOptMessage, FedOptUpload
from fedoptax.errors import UsageError, check_int, is_traced
from fedoptax.torch.params import check_params, load_params, nest, to_array, trained

Train = Callable[[nn.Module, Any, Mapping[str, Any]], Any]
"""`train(module, examples, config)`: trains the module, returns the number of examples or (number, mean loss)."""


def with_loop(
    algorithm: FedAlgorithm, module: nn.Module, train: Train, config: Mapping[str, Any] | None = None
) -> FedAlgorithm:
    """`algorithm` with clients that train a module by a loop of their own and send Δ, the change of its parameters.

    Rounds are eager (`fedoptax.eager.run_round`). Optimizer, steps and all else are the loop's own business: of the
    algorithm only the server's part counts. Privacy and compression are wrapped around the result. The module ends a
    round as the loop leaves it; its buffers never leave the client.

    Args:
      algorithm: one whose clients send nothing but Δ: the FedOpt family (`fedavg`, `fedadam`, ...).
      module: the module; the loop finds the server's parameters in it.
      train: `(module, examples, config) -> number of examples`, or `-> (number of examples, mean loss)`; without a loss
        the round's training loss is 0. `examples` is what a round's `batches` hold for a client, in a list of one.
      config: what `train` is told, beside `"lr"`, the learning rate at the clients if the algorithm schedules it.

    Raises:
      UsageError: when a client runs: the algorithm's clients send more than Δ, or `train` returns something else.
    """

    def client_update(grad_fn: Any, message: Any, client: Tree, batches: Any) -> tuple[FedOptUpload, Tree, jax.Array]:
        del grad_fn
        if not isinstance(message, FedOptMessage) or jax.tree.leaves(message.client_opt_state):
            kind = type(message).__name__
            raise UsageError(f"algorithm must be one whose clients send only Δ, such as fedadam, got one with a {kind}")
        if any(map(is_traced, jax.tree.leaves(message))):  # a wrapper asks for the form of an upload
            check_params(module, message.params)
            return FedOptUpload(message.params, ()), client, jnp.zeros(())
        if len(batches) != 1:
            raise UsageError(f"batches must be [examples], the one argument of the training loop, got {len(batches)}")
        load_params(module, message.params)
        before = {name: p.detach().clone() for name, p in trained(module).items()}
        lr = {} if isinstance(message.lr, tuple) else {"lr": float(message.lr)}
        _, loss = examples_and_loss(train(module, batches[0], {**(config or {}), **lr}))
        with torch.no_grad():
            delta = {name: to_array(p - before[name], name) for name, p in trained(module).items()}
        return FedOptUpload(nest(delta), ()), client, jnp.asarray(loss, jnp.float32)

    return algorithm._replace(client_update=client_update)


def examples_and_loss(result: Any) -> tuple[int, float]:
    """Return the number of examples, and the mean loss or 0, of what `train` returned; refuse anything else."""
    number, loss = result if isinstance(result, tuple) and len(result) == 2 else (result, 0.0)
    return check_int("the number of examples that train returns", number), float(loss)
