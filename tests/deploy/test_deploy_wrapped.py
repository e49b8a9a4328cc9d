"""Private and compressed deployments equal the simulation of the same, and their histories tell the epsilon.

The network hands messages over in memory; server and clients are the real ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedoptax as fx
from federations import deployment, task_of
from fedoptax.deploy.client import Client, Order
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.rounds import Arrived
from fedoptax.deploy.run import Run
from fedoptax.deploy.server import RawReply
from fedoptax.deploy.wire import WireArray
from fedoptax.storage import folder as storage
from fedoptax.storage.history import read_rows


class InMemory:
    """Clients that answer at once."""

    def __init__(self, deployment: Deployment) -> None:
        task, algorithm = task_of(), deployment.build_algorithm()
        work = deployment.options.work
        self.clients = [Client(task, algorithm, work, i, deployment.seed) for i in range(task.clients.num_clients)]
        self.kept: list[dict[int, bytes]] = [{} for _ in self.clients]
        self._due: list[Arrived] = []

    def begin(self, arrays: Mapping[str, WireArray], order: Callable[[int], Mapping[str, Any]]) -> None:
        self._arrays, self._order = arrays, order

    def connected(self) -> Mapping[int, str]:
        return {i: f"node-{i}" for i in range(len(self.clients))}

    def send(self, partition: int) -> int:
        order = Order.read(self._order(partition))
        answer = self.clients[partition].answer(self._arrays, order, self.kept[partition], None)
        self.kept[partition] = answer.kept
        self._due.append(Arrived(partition, f"node-{partition}", RawReply(answer.arrays, answer.numbers), 1))
        return 1

    def receive(self) -> list[Arrived]:
        due, self._due = self._due, []
        return due

    def busy(self) -> set[int]:
        return set()


@pytest.mark.long
def test_a_private_and_compressed_deployment_is_the_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: 7)  # the noise's seed, which a deployment draws
    privacy, compress = "clip=0.5,noise_multiplier=1.0,delta=1e-3", "topk:fraction=0.2"
    given = deployment("fedadam", rounds=3, out=str(tmp_path / "run"), privacy=privacy, compress=compress)
    Run(given, task_of(), lambda line: None).go(InMemory(given))

    result = fx.run(
        task_of(), given.build_algorithm(), rounds=3, cohort_size=2, batch_size=50, seed=3, weighting="uniform"
    )
    rows = read_rows(tmp_path / "run", 3)
    assert [row["epsilon"] for row in rows] == [row["epsilon"] for row in result.history]
    assert 0 < rows[0]["epsilon"] < rows[-1]["epsilon"]
    assert rows[-1]["bytes_up"] == result.history[-1]["bytes_up"] < rows[-1]["bytes_down"]
    assert storage.read_json(tmp_path / "run" / "summary.json")["final"]["epsilon"] == rows[-1]["epsilon"]
    params = np.load(tmp_path / "run" / "params.npz")
    for name, leaf in storage.named_leaves(jax.device_get(result.params)).items():
        np.testing.assert_allclose(params[name], leaf, rtol=0, atol=1e-5)
