"""What the tests of deployments share."""

import pytest


@pytest.fixture
def inside_a_flower_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages be made: they want to know which run they belong to."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


@pytest.fixture
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server look for replies every hundredth of a second."""
    from fedoptax.deploy import run

    limits = run.Limits
    monkeypatch.setattr(run, "Limits", lambda *given: limits(*given, poll=0.01))
