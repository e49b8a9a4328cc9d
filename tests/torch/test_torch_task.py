"""A module as a task, and as a client of a deployment: the same numbers as its JAX twin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
import fedoptax.torch as ft
from fedoptax.deploy.client import NodeClient
from fedoptax.engine.batches import LocalWork
from refusals import refused
from small import small_task
from small_rounds import close
from torch_models import Net, NormNet, cross_entropy, torch, torch_task

OPTIONS = {"rounds": 5, "cohort_size": 3, "batch_size": 4, "local_epochs": 2, "seed": 1}


@pytest.mark.parametrize("client_loop", ["loop", "vmap"])
def test_a_compiled_run_equals_that_of_the_jax_twin(client_loop):
    want = fx.run(small_task(), fx.fafed(0.02, rho=0.1), client_loop=client_loop, **OPTIONS)
    got = fx.run(torch_task(), fx.fafed(0.02, rho=0.1), client_loop=client_loop, **OPTIONS)
    close(got.params, want.params, rtol=1e-4, atol=1e-5)
    for a, b in zip(got.history, want.history, strict=True):
        assert a["test_nll"] == pytest.approx(b["test_nll"], rel=1e-4)
        assert (a["bytes_up"], a["bytes_down"]) == (b["bytes_up"], b["bytes_down"])


def test_a_module_with_running_statistics_is_refused():
    refused(lambda: fx.run(torch_task(module=NormNet()), fx.fedavg(0.1), **OPTIONS), "module", "'norm'")


def test_a_run_is_not_resumed_on_other_frozen_parameters(tmp_path):
    module = Net()
    module.hidden.requires_grad_(False)
    fx.run(torch_task(module), fx.fedavg(0.1), out=tmp_path / "a", **OPTIONS | {"rounds": 1})
    with torch.no_grad():
        module.hidden.bias += 1
    refused(lambda: fx.run(torch_task(module), fx.fedavg(0.1), resume_from=tmp_path / "a", **OPTIONS), "experiment")


def test_two_runs_of_a_module_whose_buffers_change_are_equal():
    module = Net()
    torch.nn.utils.parametrizations.spectral_norm(module.hidden, "kernel")
    task = torch_task(module)
    first, second = (fx.run(task, fx.fedavg(0.1), **OPTIONS).params for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("algorithm", [fx.fedadam(0.1, 0.1), fx.scaffold(0.1), fx.fafed(0.05)], ids=range(3))
def test_all_kinds_of_a_deployments_clients_are_one(algorithm):
    twin, work = small_task(), LocalWork(4, 2)
    server = algorithm.init(twin.init(jax.random.key(0)))
    clients = [
        NodeClient(twin, algorithm, work, 2, 3),
        NodeClient(twin, ft.with_module(algorithm, Net(), cross_entropy), work, 2, 3),
        NodeClient(torch_task(), algorithm, work, 2, 3),
    ]
    states = [client.algorithm.init_client(algorithm.params(server)) for client in clients]
    for round in range(3):
        uploads = []
        for k, client in enumerate(clients):
            upload, states[k], loss, size = client.train(algorithm.broadcast(server), states[k], round)
            uploads.append((upload, loss, size))
        close(uploads[1:], [uploads[0]] * 2, rtol=1e-3, atol=1e-4)
        mean = jax.tree.map(jnp.asarray, uploads[round][0])
        server = algorithm.server_update(server, mean, fx.Cohort(1, 7))


def test_statistics_are_part_of_a_deployed_clients_state():
    module = NormNet()
    params = ft.params_from_module(module)
    algorithm = ft.with_module(fx.fedavg(0.1), module, cross_entropy)
    client, state = NodeClient(small_task(), algorithm, LocalWork(11, 1), 2, 3), algorithm.init_client(params)
    message = algorithm.broadcast(algorithm.init(params))
    for round in range(3):
        (_, first, _, _), (_, state, _, _) = (client.train(message, state, round) for _ in range(2))  # repeated
        assert first.buffers["norm/num_batches_tracked"] == state.buffers["norm/num_batches_tracked"] == round + 1
        torch.nn.init.constant_(module.norm.running_var, -1.0)  # another client's, or another process
        module.norm.num_batches_tracked.fill_(100)
