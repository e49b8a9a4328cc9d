"""One JAX and one PyTorch client on a real network compute what the simulation does with JAX alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedoptax as fx
from federations import assert_params, deployment, need_flower, network_lines, processes_of

need_flower()
pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'fedoptax[torch]')")

from fedoptax.deploy.app_folder import write_app, write_keys  # noqa: E402
from fedoptax.deploy.local import LocalFederation, LocalSettings  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MODULE = '''
"""Logistic regression on digits, in JAX and in PyTorch."""

from dataclasses import replace

import fedoptax as fx


def twin(partition=None):
    return fx.load_task("digits", model="logistic", num_clients=2, partition="dirichlet-by-class")


def mixed(partition):
    if partition != 1:
        return twin()
    import fedoptax.torch as ft

    task = twin()
    return replace(ft.module_task("digits", *in_pytorch(), {}, task.clients), init=task.init)


def in_pytorch():
    import torch

    class Dense(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel, self.bias = torch.nn.Parameter(torch.zeros(64, 10)), torch.nn.Parameter(torch.zeros(10))

        def forward(self, x):
            return x.flatten(1) / 16.0 @ self.kernel + self.bias  # pixels are 0 to 16

    def loss(module, batch):
        return torch.nn.functional.cross_entropy(module["dense1"](batch["x"]), batch["y"].long())

    return torch.nn.ModuleDict({"dense1": Dense()}), loss
'''
LOOPS = '''
"""Clients whose rounds are PyTorch loops."""

from fedoptax.torch import native
from fedoptax.torch.flower_client import client_app
from fedoptax_app.tasks import in_pytorch

app = client_app(lambda algorithm: native("scaffold", *in_pytorch(), client_lr=0.05))
'''


@pytest.mark.parametrize("kind", ["one JAX and one PyTorch client", "two PyTorch loops"])
def test_over_the_network_it_is_the_simulation_in_jax(tmp_path: Path, kind: str) -> None:
    function = "mixed" if kind.startswith("one") else "twin"
    given = deployment("scaffold", task={"name": f"fedoptax_app.tasks:{function}"}, out=str(tmp_path / "run"))
    write_keys(tmp_path / "keys", 2)
    write_app(tmp_path / "app", given, "mixed")
    package = tmp_path / "app" / "fedoptax_app"
    (package / "tasks.py").write_text(MODULE)
    if kind == "two PyTorch loops":
        (package / "client_app.py").write_text(LOOPS)
    (tmp_path / "run.toml").write_text("resume = false\n")
    with LocalFederation(tmp_path, LocalSettings(2, time_limit=800)) as federation:
        federation.run(tmp_path / "app", tmp_path / "run.toml", tmp_path / "log.txt", lambda: None)
    assert not processes_of(tmp_path)
    task = fx.load_task("digits", model="logistic", num_clients=2, partition="dirichlet-by-class")
    wanted = fx.run(task, given.build_algorithm(), rounds=5, cohort_size=2, batch_size=50, seed=3)
    assert_params(tmp_path / "run", wanted.params)
    lines = network_lines(tmp_path / "run")
    assert len(lines) == 5
    assert all(sorted(line["accepted"]) == [0, 1] and line["faults"] == [] for line in lines)
