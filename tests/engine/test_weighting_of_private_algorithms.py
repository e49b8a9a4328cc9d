"""No run of a private algorithm weighs uploads by examples, however it is started."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fedoptax as fx
import laws
from fedoptax.deploy.config import Deployment
from fedoptax.engine.plan import make_plan

REFUSED = "weighting"
DEPLOYED = Deployment(task={"name": "synthetic"}, algorithm="fedavg", cohort_size=2)


def private(clip: float = 1.0) -> fx.FedAlgorithm:
    return fx.with_privacy(fx.fedavg(0.1), clip, 1.0, 1e-5)


def test_a_run_a_sweep_and_a_deployment_refuse_weights_by_examples() -> None:
    with pytest.raises(fx.UsageError, match=REFUSED):
        laws.run(private(), weighting="examples")
    with pytest.raises(fx.UsageError, match=REFUSED):
        fx.sweep(laws.TASK, private, {"clip": [1.0]}, rounds=1, cohort_size=2, weighting="examples")
    with pytest.raises(fx.UsageError, match=REFUSED):
        make_plan(replace(DEPLOYED, weighting="examples"), laws.TASK, private())
    assert make_plan(DEPLOYED, laws.TASK, private()).weighting == "uniform"
