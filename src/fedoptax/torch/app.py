"""The Flower apps of clients that train with PyTorch; a `module_task` runs in the deployment's own app."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from flwr.clientapp import ClientApp
from torch import nn

from fedoptax.algorithm import Tree
from fedoptax.deploy.client import NodeClient, default_client
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.flower import client_app
from fedoptax.tasks.task import Task
from fedoptax.torch.gradients import ModuleLoss, real_examples, with_module
from fedoptax.torch.loop import Train, examples_and_loss, with_loop


def module_app(module: nn.Module, loss: ModuleLoss) -> ClientApp:
    """The app of clients that train a module by `with_module`, with any algorithm.

    Their buffers are part of their state. Of the task they need the parameters' form and their examples, not the loss.
    The module has the names and shapes of the task's parameters; its loss is as in `torch_grad_fn`.
    """

    def make(task: Task, deployment: Deployment, partition: int) -> NodeClient:
        algorithm = deployment.build_algorithm(lambda base: with_module(base, module, loss))
        return replace(default_client(task, deployment, partition), algorithm=algorithm)

    return client_app(make)


def loop_app(module: nn.Module, train: Train) -> ClientApp:
    """The app of clients with their own training loop, for any algorithm of the FedOpt family.

    The module has the names and shapes of the task's parameters. `train` is as in `with_loop`; `examples` are the
    arrays of the client's partition by field, and `config` holds the deployment's hyper-parameters, `batch_size`,
    `local_epochs`, `local_steps`, `seed` and `round`, and for a scheduled client rate `lr`, its value in this round.
    """

    def make(task: Task, deployment: Deployment, partition: int) -> LoopClient:
        algorithm = deployment.build_algorithm(partial(with_loop, module=module, train=train))
        client = replace(default_client(task, deployment, partition), algorithm=algorithm)
        return LoopClient(**vars(client), deployment=deployment, module=module, loop=train)

    return client_app(make)


@dataclass(frozen=True)
class LoopClient(NodeClient):
    """A client of a deployment with a training loop; see `loop_app` for the additional attributes."""

    deployment: Deployment
    module: nn.Module
    loop: Train

    def train(self, message: Tree, state: Tree, round: int) -> tuple[Tree, Tree, float, int]:
        """Do the local work of a round; see `NodeClient.train`."""
        work = {"batch_size": self.work.batch_size, "local_epochs": self.work.epochs, "local_steps": self.work.steps}
        config = {**self.deployment.hyperparameters, **work, "seed": self.seed, "round": round}
        results: list[tuple[int, float]] = []

        def remembering(*args: Any) -> tuple[int, float]:
            results.append(examples_and_loss(self.loop(*args)))
            return results[0]

        change = partial(with_loop, module=self.module, train=remembering, config=config)
        update: Any = self.deployment.build_algorithm(change).client_update
        upload, state, _ = jax.device_get(update(None, message, state, [real_examples(self.examples())]))
        (examples, loss), *_ = results
        return upload, state, loss, examples
