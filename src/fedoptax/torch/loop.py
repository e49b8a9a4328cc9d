"""A user's own training loop as a client of the FedOpt family."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from fedoptax.algorithm import Batches, FedAlgorithm, Tree
from fedoptax.algorithms.fedopt import FedOptMessage, FedOptUpload
from fedoptax.engine.batches import Minibatch
from fedoptax.engine.xla import call_host
from fedoptax.errors import UsageError, check_function, check_int, check_output
from fedoptax.torch import gradients
from fedoptax.torch.gradients import ModuleState, to_array, trained

Train = Callable[[nn.Module, Any, Mapping[str, Any]], Any]
"""`train(module, examples, config)`: trains the module, returns the number of examples or (number, mean loss)."""


def with_loop(
    algorithm: FedAlgorithm, module: nn.Module, train: Train, config: Mapping[str, Any] | None = None
) -> FedAlgorithm:
    """`algorithm` with clients that train a module by your loop and send Δ, the change of its parameters.

    Optimizer and steps are the loop's business: of the algorithm only the server's part counts. Privacy and compression
    are wrapped around the result. The loop runs in `fedoptax.run`, called from the compiled round with PyTorch's random
    numbers seeded by the run's seed, round and client, and in `fedoptax.eager.run_round`. The module's buffers never
    leave the client: in a run they are part of its state. The module ends a round as the loop leaves it.

    Args:
      algorithm: one of the FedOpt family, where clients only send Δ (`fedavg`, `fedadam`, ...).
      module: the module; the loop finds it in training mode, with the server's parameters.
      train: `(module, examples, config) -> number of examples`, or `-> (number of examples, mean loss)`; without a loss
        the round's training loss is 0. `examples` are those of the client: in a run all its arrays by field, whole
        numbers as int64, once; in an eager round what its `batches`, a list of one, hold.
      config: for `train`, besides `"lr"`, the clients' learning rate if the algorithm schedules it.

    Raises:
      UsageError: when a client runs: the algorithm's clients send more than Δ, or `train` returns something else.
    """
    check_function("train", train, "module, examples, config")
    first_buffers = gradients.buffers_from_module(module)

    def run_loop(examples: Any, data: Any, params: Tree, lr: Any, buffers: Any) -> tuple[Tree, Any, Any]:
        """Run it on `data`, a `Minibatch` of all examples, or on `examples` as they are if that is ()."""
        examples = gradients.real_examples(data.examples) if data else examples
        rates = {} if isinstance(lr, tuple) else {"lr": float(lr)}
        with gradients.ONE_AT_A_TIME, torch.random.fork_rng(enabled=bool(data)):
            if data:
                torch.manual_seed(gradients.seed_of(data.key))
            gradients.load_params(module, params)
            if buffers:
                gradients.load_buffers(module, buffers)
            before = {name: (p, p.detach().clone()) for name, p in trained(module).items()}
            module.train()  # an evaluation leaves it in eval mode
            _, loss = examples_and_loss(train(module, examples, {**(config or {}), **rates}))
            change = {name: to_array(p.detach() - old.to(p.device), name) for name, (p, old) in before.items()}
            delta = jax.tree.unflatten(jax.tree.structure(params), [change[name] for name in gradients.flatten(params)])
            return delta, np.float32(loss), buffers and gradients.buffers_from_module(module)

    def client_update(_: Any, message: Any, client: Tree, batches: Any) -> tuple[FedOptUpload, Tree, jax.Array]:
        if not isinstance(message, FedOptMessage) or jax.tree.leaves(message.shared):
            raise UsageError("algorithm must be one whose clients receive x and send only Δ, such as fedadam")
        data: Any = ()
        if isinstance(batches, Batches) and batches.examples is not None:
            data = (own := batches.examples())._replace(key=jax.random.key_data(own.key))
        elif isinstance(batches, Batches) or len(batches) != 1 or isinstance(batches[0], Minibatch):
            raise UsageError("batches must be [examples], and in a run the engine compiled")
        has_buffers = isinstance(client, ModuleState)
        start = message.params, np.float32(0), client.buffers if has_buffers else ()
        form = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), start)
        run = partial(run_loop, None if data else batches[0])
        delta, loss, buffers = call_host(run, form, data, start[0], message.lr, start[2])
        return FedOptUpload(delta, ()), ModuleState(client.algorithm, buffers) if has_buffers else client, loss

    def init_client(params: Tree) -> Tree:
        state = algorithm.init_client(params)
        return ModuleState(state, first_buffers) if first_buffers else state

    return algorithm._replace(init_client=init_client, client_update=client_update)


def examples_and_loss(result: Any) -> tuple[int, float]:
    """Return the number of examples, and the mean loss or 0, of what `train` returned; refuse anything else."""
    number, loss = result if isinstance(result, tuple) and len(result) == 2 else (result, 0.0)
    loss = loss.detach().numpy(force=True) if isinstance(loss, torch.Tensor) else loss
    loss = float(check_output("train's loss", loss, verb="be"))
    return check_int("the number of examples that train returns", number), loss
