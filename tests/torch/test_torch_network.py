"""Clients that train with PyTorch on a real network compute what the simulation does with JAX."""

from dataclasses import replace
from typing import Any

import pytest

import fedoptax as fx
from federations import assert_params, deployment, keys_of, need_flower, network_lines, processes_of

need_flower()

from fedoptax.deploy.app import write_app  # noqa: E402
from fedoptax.deploy.keys import make_keys, write_keys  # noqa: E402
from fedoptax.deploy.local import LocalFederation  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

TASKS = """
from dataclasses import replace

import torch

import fedoptax as fx
import fedoptax.torch as ft


def twin(partition=None):
    return fx.load_task("digits", model="logistic", num_clients=2, partition="dirichlet-by-class")


def mixed(partition):
    task = twin()
    return replace(ft.module_task("digits", module(), loss, {}, task.clients), init=task.init) if partition else task


class Dense(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel, self.bias = torch.nn.Parameter(torch.zeros(64, 10)), torch.nn.Parameter(torch.zeros(10))

    def forward(self, x):
        return x.flatten(1) / 16.0 @ self.kernel + self.bias  # pixels are 0 to 16


def module():
    return torch.nn.ModuleDict({"dense1": Dense()})


def loss(module, batch):
    return torch.nn.functional.cross_entropy(module["dense1"](batch["x"]), batch["y"].long())
"""
LOOP_APP = """
import torch

from fedoptax.torch.app import loop_app
from fedoptax_app.tasks import loss, module


def train(module, examples, config):
    batch = {name: torch.tensor(array) for name, array in examples.items()}
    optimizer = torch.optim.SGD(module.parameters(), lr=config["client_lr"])
    for _ in range(config["local_steps"]):
        optimizer.zero_grad()
        loss(module, batch).backward()
        optimizer.step()
    return len(batch["y"])


app = loop_app(module(), train)
"""
KINDS: dict[str, tuple[str, str, str | None, dict[str, Any]]] = {
    "one JAX and one PyTorch client": ("scaffold", "mixed", None, {"batch_size": 50}),
    "two loops": ("fedadam", "twin", LOOP_APP, {"batch_size": 2000, "local_steps": 2}),
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    work = tmp_path_factory.mktemp("federation")
    write_keys(work / "keys", make_keys(2))
    with LocalFederation(work, 2, time_limit=800) as running:
        yield running
    assert not processes_of(work)


@pytest.mark.parametrize("kind", KINDS)
def test_over_the_network_it_is_the_simulation_in_jax(federation, tmp_path, kind):
    algorithm, function, client_app, options = KINDS[kind]
    out, package = tmp_path / "run", tmp_path / "app" / "fedoptax_app"
    task = {"name": f"fedoptax_app.tasks:{function}"}
    given = deployment(algorithm, task=task, out=str(out), rounds=3, **options)
    write_app(tmp_path / "app", replace(given, **keys_of(federation.work / "keys")), "torch")
    (package / "tasks.py").write_text(TASKS)
    if client_app is not None:
        (package / "client.py").write_text(client_app)
    (tmp_path / "run.toml").write_text("resume = false\n")
    federation.run(tmp_path / "app", tmp_path / "run.toml", tmp_path / "log.txt", lambda: None)
    twin = fx.load_task("digits", model="logistic", num_clients=2, partition="dirichlet-by-class")
    assert_params(out, fx.run(twin, given.build_algorithm(), rounds=3, cohort_size=2, seed=3, **options).params)
    assert [(sorted(line["accepted"]), line["faults"]) for line in network_lines(out)] == [([0, 1], [])] * 3
