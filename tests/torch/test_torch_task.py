"""A module as a task, and as a client on a network: the same numbers as its JAX twin."""

from __future__ import annotations

import uuid

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
import fedoptax.torch as ft
from fedoptax.deploy.client import Client, Order
from fedoptax.deploy.server import RawReply, check_reply, forms, upload_form
from fedoptax.deploy.wire import pack
from fedoptax.engine.batches import LocalWork
from fedoptax.torch.client import ModuleClient
from oracles.problem import make
from small import small_task
from torch_models import Net, NormNet, cross_entropy, net, torch

WORK = {"rounds": 5, "cohort_size": 3, "batch_size": 4, "local_epochs": 2, "seed": 1}


def nll(module, batch):
    return torch.nn.functional.cross_entropy(module(batch["x"]), batch["y"].long(), reduction="none")


def torch_task(loss=cross_entropy, module=None):
    twin = small_task()
    module = net(make(), "float32") if module is None else module
    more = {"primary_metric": "nll", "higher_is_better": False}
    return ft.module_task("small", module, loss, {"nll": nll}, twin.clients, twin.test, **more)


@pytest.mark.parametrize("loop", ["loop", "vmap"])
def test_a_compiled_run_equals_that_of_the_jax_twin(loop: str) -> None:
    want = fx.run(small_task(), fx.fafed(0.02, rho=0.1), client_loop=loop, **WORK)
    got = fx.run(torch_task(), fx.fafed(0.02, rho=0.1), client_loop=loop, **WORK)
    for a, b in zip(jax.tree.leaves(got.params), jax.tree.leaves(want.params)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(got.history, want.history, strict=True):
        assert a["test_nll"] == pytest.approx(b["test_nll"], rel=1e-4)
        assert (a["bytes_up"], a["bytes_down"]) == (b["bytes_up"], b["bytes_down"])


def test_dropout_follows_the_seed_in_both_engines() -> None:
    def loss(module, batch):
        return cross_entropy(module, {**batch, "x": torch.nn.functional.dropout(batch["x"], 0.4)})

    def run(seed, engine="compiled"):
        return fx.run(torch_task(loss), fx.stem(0.1), engine=engine, **(WORK | {"seed": seed})).params["out"]["kernel"]

    np.testing.assert_array_equal(run(1), run(1))
    np.testing.assert_allclose(run(1), run(1, "eager"), rtol=1e-4, atol=1e-5)
    assert not np.allclose(run(1), run(2), rtol=1e-3)


def test_running_statistics_would_have_no_owner() -> None:
    with pytest.raises(fx.UsageError, match=r"'norm' keeps running statistics.*GroupNorm"):
        torch_task(module=NormNet())


def order(round, base):
    return Order(uuid.UUID(int=7).hex, round, base, base)


def client_kinds(name, hyperparameters, partition):
    """A JAX client, a module under the algorithm, a PyTorch loop, and the task of a module."""
    algorithm, twin, work = fx.ALGORITHMS[name](**hyperparameters), small_task(), LocalWork(4, 2)
    changed = ft.with_module(algorithm, Net(), cross_entropy)
    looped = ft.native(name, Net(), cross_entropy, **hyperparameters)
    return [
        Client(twin, algorithm, work, partition, 3),
        ModuleClient(twin, changed, work, partition, 3),
        ModuleClient(twin, looped, work, partition, 3),
        Client(torch_task(), algorithm, work, partition, 3),
    ]


@pytest.mark.parametrize(
    ("name", "hyperparameters"),
    [("fedadam", {"client_lr": 0.1, "server_lr": 0.1}), ("scaffold", {"client_lr": 0.1}), ("fafed", {"lr": 0.05})],
)
def test_on_the_wire_all_kinds_of_clients_are_one(name: str, hyperparameters: dict, tmp_path) -> None:
    twin, algorithm = small_task(), fx.ALGORITHMS[name](**hyperparameters)
    form = upload_form(twin, algorithm, LocalWork(4, 2))
    server = algorithm.init(twin.init(jax.random.key(0)))
    clients, kept = client_kinds(name, hyperparameters, 2), [{}, {}, {}, {}]
    for round in range(3):
        arrays = pack(algorithm.broadcast(server))
        replies = []
        for k, client in enumerate(clients):
            answer = client.answer(arrays, order(round, round - 1), kept[k], None)
            assert answer.numbers["state-lost"] == 0
            replies.append(check_reply(RawReply(answer.arrays, answer.numbers), form, 100))
            kept[k] = answer.kept
        for reply in replies[1:]:
            assert reply.examples == replies[0].examples == 11
            assert reply.loss == pytest.approx(replies[0].loss, rel=1e-4)
            for a, b in zip(jax.tree.leaves(reply.upload), jax.tree.leaves(replies[0].upload)):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        mean = jax.tree.map(jnp.asarray, replies[round % 4].upload)
        server = algorithm.server_update(server, mean, fx.Cohort(1, 7))


def test_a_server_knows_a_modules_task_without_running_it() -> None:
    def never(module, batch):
        raise AssertionError("PyTorch was called")

    algorithm = fx.scaffold(0.1)
    for task in (torch_task(never), small_task()):
        form = upload_form(task, algorithm, LocalWork(4, 1))
        assert jax.tree.map(lambda s: (s.shape, s.dtype), form) == jax.tree.map(
            lambda s: (s.shape, s.dtype), upload_form(small_task(), algorithm, LocalWork(4, 1))
        )
    assert jax.tree.structure(forms(torch_task(never), algorithm)) == jax.tree.structure(forms(small_task(), algorithm))


def test_statistics_survive_on_the_network(tmp_path) -> None:
    module = NormNet()
    params = ft.params_from_module(module)
    algorithm = ft.with_module(fx.fedavg(0.1), module, cross_entropy)
    task = small_task(init=lambda key: params)
    client, kept = ModuleClient(task, algorithm, LocalWork(4, 1), 2, 3), {}
    arrays = pack(algorithm.broadcast(algorithm.init(params)))
    tracked = []
    for round in range(3):
        kept = client.answer(arrays, order(round, round - 1), kept, None).kept
        tracked.append(int(module.norm.num_batches_tracked))
        torch.nn.init.constant_(module.norm.running_var, -1.0)  # another client's, or another process
        module.norm.num_batches_tracked.fill_(100)
    assert tracked == [3, 6, 9]
