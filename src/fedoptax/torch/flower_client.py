"""The Flower ClientApp of clients that train a module by `with_module` or `native`, among any other clients.

The task of `module_task` needs none of this: it runs in `fedoptax.deploy.flower_client`.
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.clientapp import ClientApp

from fedoptax.algorithm import FedAlgorithm
from fedoptax.deploy import flower_client
from fedoptax.deploy.config import Deployment
from fedoptax.errors import UsageError
from fedoptax.tasks.task import Task
from fedoptax.torch.client import ModuleClient

Change = Callable[[FedAlgorithm], FedAlgorithm]
"""From the deployment's algorithm to the client's, with the same messages and uploads."""


def client_app(change: Change) -> ClientApp:
    """The ClientApp of a deployment whose clients train a module.

    Settings and states are those of `fedoptax.deploy.flower_client.client_app`; the buffers are part of the state.

    Args:
      change: makes the client's algorithm, as `lambda algorithm: with_module(algorithm, module, loss)`.
    """

    def make(task: Task, deployment: Deployment, partition: int) -> ModuleClient:
        algorithm = checked_change(deployment.build_algorithm(), change)
        return ModuleClient(task, algorithm, deployment.options.work, partition, deployment.seed)

    return flower_client.client_app(make)


def checked_change(algorithm: FedAlgorithm, change: Change) -> FedAlgorithm:
    """The client's algorithm, if its uploads are those that the deployment's server expects.

    Raises:
      UsageError: the deployment codes or clips uploads, and the client's algorithm does not.
    """
    changed = change(algorithm)
    if changed.decode is not algorithm.decode:
        raise UsageError(
            "compress, privacy: given with clients that send plain uploads (native), allowed are with_module's"
        )
    return changed
