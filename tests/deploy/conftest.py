"""What the tests of deployments share."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from fedoptax.algorithm import FedAlgorithm
from fedoptax.deploy import client
from fedoptax.deploy.config import Deployment

collect_ignore_glob = [] if find_spec("flwr") else ["test_*"]
"""Without Flower what needs it is not collected."""


@pytest.fixture(scope="session", autouse=True)
def quick_runs():
    """Let a server look for replies often, and deployments of one algorithm share it: it is compiled once for all."""
    build, made = Deployment.build_algorithm, dict[str, FedAlgorithm]()

    def build_once(deployment: Deployment, change: Any = None) -> FedAlgorithm:
        key = repr((deployment.algorithm, deployment.hyperparameters, deployment.wrappers))
        if change is not None or deployment.privacy:  # whose noise is drawn anew
            return build(deployment, change)
        return made.get(key) or made.setdefault(key, build(deployment))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deployment, "build_algorithm", build_once)
        for name in ("client_update", "initial_state", "forms"):
            patch.setattr(client, name, cache(getattr(client, name)))
        if find_spec("flwr"):
            from fedoptax.deploy import deployment

            limits = deployment.Limits
            patch.setattr(deployment, "Limits", lambda *given: limits(*given, poll=0.01))
        yield


@pytest.fixture
def inside_a_flower_run(monkeypatch):
    """Let messages be made: they want to know which run they belong to."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
