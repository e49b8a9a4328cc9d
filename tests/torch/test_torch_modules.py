"""Modules and trees: names, shapes and dtypes; buffers stay with their client; randomness belongs to the batch."""

import jax
import numpy as np
import pytest

import fedoptax as fx
import fedoptax.torch as ft
from fedoptax.engine.batches import Minibatch
from oracles.problem import make
from refusals import refused
from small import ragged_clients
from torch_models import Net, NormNet, cross_entropy, torch

PROBLEM = make()
ONCE = {"rounds": 1, "cohort_size": 1}


def batches(i, r=0):
    return [{"x": b["x"].astype(np.float32), "y": b["y"]} for b in PROBLEM.batches(r, i)]


def minibatch(examples, mask=None, seed=0):
    mask = np.ones(len(examples["y"]), bool) if mask is None else mask
    return Minibatch({**examples, "mask": mask}, jax.random.key(seed))


def test_parameters_go_out_and_in_by_name():
    module, other = Net(), Net()
    params = jax.tree.map(lambda a: a + 1, ft.params_from_module(module))
    assert jax.tree.map(np.shape, params["hidden"]) == {"kernel": (4, 5), "bias": (5,)} and len(params["out"]) == 2
    ft.load_params(module, params)
    assert module.hidden.bias.tolist() == [1] * 5
    ft.load_params(other, {"/".join(k.key for k in path): a for path, a in jax.tree_util.tree_leaves_with_path(params)})
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters()))


def test_frozen_parameters_stay_and_shared_ones_go_once():
    module = Net()
    module.hidden.requires_grad_(False)
    assert set(ft.params_from_module(module)) == {"out"}
    tied = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    tied["b"].weight = tied["a"].weight
    params = ft.params_from_module(tied)
    assert {name: set(part) for name, part in params.items()} == {"a": {"weight", "bias"}, "b": {"bias"}}
    module.requires_grad_(False)
    refused(lambda: ft.params_from_module(module), "module")


def test_parameters_that_do_not_fit_are_refused_and_nothing_is_loaded():
    module = Net()
    good = jax.tree.map(np.asarray, ft.params_from_module(module))
    for wrong, name in (
        ({**good, "out": {"kernel": np.ones((3, 5), np.float32), "bias": np.ones(3, np.float32)}}, "out/kernel"),
        (jax.tree.map(lambda a: np.ones(a.shape, np.float64), good), "float64"),
        ({"hidden": jax.tree.map(np.ones_like, good["hidden"]), "last": good["out"]}, "last"),
    ):
        with pytest.raises(fx.UsageError, match=f"params .*{name}"):
            ft.load_params(module, wrong)
    jax.tree.map(np.testing.assert_array_equal, ft.params_from_module(module), good)
    refused(lambda: ft.params_from_module(Net().double()), "float64")


def test_a_gradient_shares_memory_both_ways_and_leaves_the_module_alone():
    module, seen = Net(), []
    module.hidden.kernel.register_post_accumulate_grad_hook(lambda p: seen.extend((p.data_ptr(), p.grad.data_ptr())))
    before = ft.params_from_module(module)
    params = jax.tree.map(lambda a: a + 1, before)
    _, grads = ft.torch_grad_fn(module, cross_entropy)(params, batches(0)[0])
    assert seen == [tree["hidden"]["kernel"].unsafe_buffer_pointer() for tree in (params, grads)]
    jax.tree.map(np.testing.assert_array_equal, ft.params_from_module(module), before)
    assert module.hidden.kernel.grad is None and module.hidden.kernel.data_ptr() not in seen


@pytest.mark.parametrize("algorithm", [fx.fedadam(0.1, 0.5), fx.fafed(0.1)], ids=["fedadam", "fafed"])
def test_running_statistics_stay_with_their_client(algorithm):
    module = NormNet()
    algorithm = ft.with_module(algorithm, module, cross_entropy)
    params = ft.params_from_module(module)
    server, clients = algorithm.init(params), [algorithm.init_client(params) for _ in range(3)]
    start = clients[0].buffers
    upload = algorithm.client_update(None, algorithm.broadcast(server), clients[0], batches(0))[0]
    assert "running" not in str(jax.tree.structure((server, algorithm.broadcast(server), upload)))
    for r in range(6):
        own = [batches(i, r) for i in (0, 3, 6)]
        server, clients, _ = fx.eager.run_round(algorithm, None, server, clients, own)
    assert set(start) == {"norm/running_mean", "norm/running_var", "norm/num_batches_tracked"}
    for client, i in zip(clients, (0, 3, 6)):
        assert (client.buffers["norm/running_var"] >= 0).all()
        assert client.buffers["norm/num_batches_tracked"] == 6 * len(batches(i)), "one update per minibatch"
    means = [state["norm/running_mean"] for state in (start, clients[0].buffers, clients[1].buffers)]
    assert not np.allclose(means[1], means[0]) and not np.allclose(means[1], means[2])


def test_two_gradients_on_a_batch_share_its_randomness():
    module = NormNet()
    grad_fn, params, batch = ft.torch_grad_fn(module, cross_entropy), ft.params_from_module(module), batches(0)[0]
    first, second = grad_fn(params, batch), grad_fn(params, batch)
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert module.norm.num_batches_tracked == 1
    assert float(grad_fn(params, dict(batch))[0]) != float(first[0])
    torch.manual_seed(5)
    losses = [float(grad_fn(params, minibatch(batch, seed=k))[0]) for k in (1, 2, 1)]
    assert losses[0] == losses[2] != losses[1]
    assert torch.equal(torch.rand(3), torch.manual_seed(5) and torch.rand(3)), "the caller's random numbers go on"


def test_padding_is_not_part_of_a_batch():
    module = Net()
    grad_fn, params, batch = ft.torch_grad_fn(module, cross_entropy), ft.params_from_module(module), batches(0)[0]
    n = len(batch["y"])
    padded = {"x": np.full((9, 4), np.nan, np.float32), "y": np.full(9, 99, np.int32)}
    padded["x"][:n], padded["y"][:n] = batch["x"], batch["y"]
    got = grad_fn(params, minibatch(padded, np.arange(9) < n))
    jax.tree.map(np.testing.assert_array_equal, got, grad_fn(params, batch))
    rows = {"rows": lambda module, batch: np.full(len(batch["y"]), len(batch["y"]))}
    clients = ragged_clients((5,), "float32")
    task = ft.module_task("rows", module, cross_entropy, rows, clients, {"y": np.arange(9)}, eval_batch=8)
    assert fx.run(task, fx.fedavg(0.1), **ONCE).history[-1]["test_rows"] == pytest.approx((8 * 8 + 1) / 9)


def test_an_embedding_that_writes_to_its_weights_is_refused_and_sparse_gradients_become_dense():
    def run(**options):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Embedding(4, 3, **options), torch.nn.Linear(3, 3))
        module.register_buffer("expanded", torch.ones(1).expand(4))
        clients = fx.FederatedData.from_clients([{"x": np.arange(4), "y": np.array([0, 1, 2, 0])}])
        return fx.run(ft.module_task("words", module, cross_entropy, {}, clients), fx.fedavg(0.1), **ONCE).params

    refused(lambda: run(max_norm=0.1), "max_norm")
    jax.tree.map(np.testing.assert_array_equal, run(sparse=True), run())
