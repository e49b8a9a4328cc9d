"""Modules and trees: names, shapes and dtypes; buffers stay with their client; randomness belongs to the batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
import fedoptax.torch as ft
from fedoptax.engine.batches import Minibatch
from oracles.problem import make
from torch_models import Net, NormNet, cross_entropy, torch

PROBLEM = make()


def batches(i, r=0):
    return [{"x": b["x"].astype(np.float32), "y": b["y"]} for b in PROBLEM.batches(r, i)]


def minibatch(examples, mask=None, seed=0):
    mask = np.ones(len(examples["y"]), bool) if mask is None else mask
    return Minibatch({**examples, "mask": mask}, jax.random.key(seed))


def test_parameters_go_out_and_in_by_name() -> None:
    module, other = Net(), Net()
    params = {
        "hidden": {"kernel": np.full((4, 5), 2, np.float32), "bias": np.arange(5, dtype=np.float32)},
        "out": {"kernel": np.ones((5, 3), np.float32), "bias": np.zeros(3, np.float32)},
    }
    ft.load_params(module, params)
    assert module.hidden.bias.tolist() == [0, 1, 2, 3, 4]
    out = ft.params_from_module(module)
    assert jax.tree.structure(out) == jax.tree.structure(params)
    ft.load_params(other, {"/".join(k.key for k in path): a for path, a in jax.tree_util.tree_leaves_with_path(out)})
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters()))


def test_trees_are_copies_both_ways() -> None:
    module = Net()
    params = ft.params_from_module(module)
    with torch.no_grad():
        module.hidden.bias.fill_(9)
    assert not params["hidden"]["bias"].any()
    array = jnp.zeros(5)
    ft.load_params(module, {**params, "hidden": {**params["hidden"], "bias": array}})
    with torch.no_grad():
        module.hidden.bias.fill_(7)
    assert not array.any()


def test_frozen_parameters_stay_and_shared_ones_go_once() -> None:
    module = Net()
    module.hidden.requires_grad_(False)
    assert set(ft.params_from_module(module)) == {"out"}
    tied = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    tied["b"].weight = tied["a"].weight
    assert jax.tree.map(jnp.shape, ft.params_from_module(tied)) == {
        "a": {"weight": (3, 3), "bias": (3,)},
        "b": {"bias": (3,)},
    }
    module.requires_grad_(False)
    with pytest.raises(fx.UsageError, match="module"):
        ft.params_from_module(module)


def test_half_precision_crosses_exactly() -> None:
    module = Net().to(torch.bfloat16)
    with torch.no_grad():
        module.hidden.kernel.normal_()
    params = ft.params_from_module(module)
    assert params["hidden"]["kernel"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(params["hidden"]["kernel"].astype(np.float32), module.hidden.kernel.detach().float())
    other = Net().to(torch.bfloat16)
    ft.load_params(other, params)
    assert torch.equal(other.hidden.kernel, module.hidden.kernel)
    algorithm = ft.with_module(fx.fedadam(0.1, 0.1), module, cross_entropy)
    own = [{"x": jnp.asarray(b["x"], jnp.bfloat16), "y": b["y"]} for b in batches(0)]
    server = algorithm.init(params)
    server, _, _ = fx.eager.run_round(algorithm, None, server, [algorithm.init_client(params)], [own])
    assert {a.dtype for a in jax.tree.leaves(algorithm.params(server))} == {jnp.dtype(jnp.bfloat16)}


def test_parameters_that_do_not_fit_are_refused_and_nothing_is_loaded() -> None:
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
    with pytest.raises(fx.UsageError, match="float64"):
        ft.params_from_module(Net().double())


def test_a_gradient_shares_memory_both_ways_and_leaves_the_module_alone() -> None:
    module, seen = Net(), []

    def loss(module, batch):
        seen.append(module.hidden.kernel.data_ptr())
        module.hidden.kernel.register_hook(lambda grad: seen.append(grad.data_ptr()))
        return cross_entropy(module, batch)

    params = jax.tree.map(lambda a: a + 1, ft.params_from_module(module))
    before = ft.params_from_module(module)
    ft.torch_grad_fn(module, loss)(params, batches(0)[0])
    assert seen[0] == params["hidden"]["kernel"].unsafe_buffer_pointer() != module.hidden.kernel.data_ptr()
    jax.tree.map(np.testing.assert_array_equal, ft.params_from_module(module), before)
    assert module.hidden.kernel.grad is None


@pytest.mark.parametrize(("loss", "given"), [(lambda m, b: m(b["x"]), "shape"), (lambda m, b: 1.0, "float")])
def test_a_loss_that_is_not_a_number_is_refused(loss, given: str) -> None:
    module = Net()
    params = ft.params_from_module(module)
    with pytest.raises(fx.UsageError, match=f"loss .*{given}"):
        ft.torch_grad_fn(module, loss)(params, batches(0)[0])
    algorithm = ft.with_module(fx.fedavg(0.1), module, loss)
    for _ in range(2):  # the first failure leaves nothing behind
        with pytest.raises(fx.UsageError, match=f"loss .*{given}"):
            fx.eager.run_round(algorithm, None, algorithm.init(params), [algorithm.init_client(params)], [batches(0)])


@pytest.mark.parametrize("algorithm", [fx.fedadam(0.1, 0.5), fx.fafed(0.1)], ids=["fedadam", "fafed"])
def test_running_statistics_stay_with_their_client(algorithm) -> None:
    module = NormNet()
    algorithm = ft.with_module(algorithm, module, cross_entropy)
    params = ft.params_from_module(module)
    server, clients = algorithm.init(params), [algorithm.init_client(params) for _ in range(3)]
    start = clients[0].buffers
    for r in range(6):
        upload = algorithm.client_update(None, algorithm.broadcast(server), clients[0], batches(0, r))[0]
        for tree in (server, algorithm.broadcast(server), upload):
            paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
            assert paths and not [path for path in paths if "running" in path or "tracked" in path]
        own = [batches(i, r) for i in (0, 3, 6)]
        server, clients, _ = fx.eager.run_round(algorithm, None, server, clients, own)
    assert set(start) == {"norm/running_mean", "norm/running_var", "norm/num_batches_tracked"}
    for client, i in zip(clients, (0, 3, 6)):
        assert (client.buffers["norm/running_var"] >= 0).all()
        assert client.buffers["norm/num_batches_tracked"] == 6 * len(batches(i)), "one update per minibatch"
    means = [client.buffers["norm/running_mean"] for client in clients]
    assert not np.allclose(means[0], means[1]) and not np.allclose(means[0], start["norm/running_mean"])
    assert start["norm/num_batches_tracked"] == 0


def test_two_gradients_on_a_batch_share_its_randomness() -> None:
    module = NormNet()
    grad_fn, params, batch = ft.torch_grad_fn(module, cross_entropy), ft.params_from_module(module), batches(0)[0]
    first, second = grad_fn(params, batch), grad_fn(params, batch)
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert module.norm.num_batches_tracked == 1
    assert float(grad_fn(params, dict(batch))[0]) != float(first[0])
    losses = [float(grad_fn(params, minibatch(batch, seed=k))[0]) for k in (1, 2, 1)]
    assert losses[0] == losses[2] != losses[1]


def test_the_callers_random_numbers_go_on_as_before() -> None:
    grad_fn, params = ft.torch_grad_fn(module := NormNet(), cross_entropy), ft.params_from_module(module)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    grad_fn(params, minibatch(batches(0)[0]))
    assert torch.equal(torch.rand(3), expected)


def test_padding_is_not_part_of_a_batch() -> None:
    module = Net()
    grad_fn, params, batch = ft.torch_grad_fn(module, cross_entropy), ft.params_from_module(module), batches(0)[0]
    n = len(batch["y"])
    padded = {"x": np.full((9, 4), np.nan, np.float32), "y": np.full(9, 99, np.int32)}
    padded["x"][:n], padded["y"][:n] = batch["x"], batch["y"]
    got = grad_fn(params, minibatch(padded, np.arange(9) < n))
    jax.tree.map(np.testing.assert_array_equal, got, grad_fn(params, batch))


@pytest.mark.parametrize("through", ["with_module", "torch_grad_fn"])
def test_a_compiled_round_equals_the_eager_one(through: str) -> None:
    module = Net()
    params, grad_fn, plain = ft.params_from_module(module), ft.torch_grad_fn(module, cross_entropy), fx.fafed(0.1)
    algorithm = ft.with_module(plain, module, cross_entropy) if through == "with_module" else plain

    def both_rounds(server):
        client = algorithm.init_client(params)
        for r in range(2):
            server, (client,), _ = fx.eager.run_round(algorithm, grad_fn, server, [client], [batches(0, r)])
        return server

    got, want = jax.jit(both_rounds)(algorithm.init(params)), both_rounds(algorithm.init(params))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
