"""Modules and trees: names, shapes and dtypes; buffers stay with their client; randomness belongs to the batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
import fedoptax.torch as ft
from fedoptax.deploy.wire import expected_of
from fedoptax.engine.batches import Minibatch
from oracles.problem import make
from torch_models import Net, NormNet, cross_entropy, torch

PROBLEM = make()


def batches(i, r=0):
    return [{"x": b["x"].astype(np.float32), "y": b["y"]} for b in PROBLEM.batches(r, i)]


def assert_refused(call, *words):
    with pytest.raises(fx.UsageError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message and all(word in message for word in words), message


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
    assert list(expected_of(out)) == ["hidden/bias", "hidden/kernel", "out/bias", "out/kernel"]
    ft.load_params(other, {"/".join(k.key for k in path): a for path, a in jax.tree_util.tree_leaves_with_path(out)})
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters()))


def test_the_tree_is_a_copy_both_ways() -> None:
    module = Net()
    params = ft.params_from_module(module)
    with torch.no_grad():
        module.hidden.bias.fill_(9)
    assert not params["hidden"]["bias"].any()
    array = np.zeros(5, np.float32)
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
    assert_refused(lambda: ft.params_from_module(module), "Net", "trained")


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
    server = algorithm.init(params)
    own = [{"x": jnp.asarray(b["x"], jnp.bfloat16), "y": b["y"]} for b in batches(0)]
    server, _, _ = fx.eager.run_round(algorithm, None, server, [algorithm.init_client(params)], [own])
    assert {a.dtype for a in jax.tree.leaves(algorithm.params(server))} == {jnp.dtype(jnp.bfloat16)}


def test_what_does_not_fit_is_refused_and_nothing_is_loaded() -> None:
    module = Net()
    good = jax.tree.map(np.asarray, ft.params_from_module(module))
    wrong = {**good, "out": {"kernel": np.ones((3, 5), np.float32), "bias": np.ones(3, np.float32)}}
    assert_refused(lambda: ft.load_params(module, wrong), "'out/kernel'", "[3, 5]", "[5, 3]")
    ones = jax.tree.map(lambda a: np.ones(a.shape, np.float64), good)
    assert_refused(lambda: ft.load_params(module, ones), "float64", "float32")
    assert_refused(
        lambda: ft.load_params(module, {"hidden": good["hidden"], "last": good["out"]}), "'out/bias'", "last"
    )
    for name, p in (("hidden", module.hidden), ("out", module.out)):
        assert torch.equal(p.kernel.detach(), torch.tensor(good[name]["kernel"])) and not p.bias.any()
    assert_refused(lambda: ft.params_from_module(Net().double()), "float64", "jax_enable_x64")


def test_a_loss_that_is_not_a_number_is_refused() -> None:
    module = Net()
    for loss, word in ((lambda m, b: m(b["x"]), "shape"), (lambda m, b: 1.0, "float")):
        grad_fn = ft.torch_grad_fn(module, loss)
        assert_refused(lambda grad_fn=grad_fn: grad_fn(ft.params_from_module(module), batches(0)[0]), "loss", word)


@pytest.mark.parametrize("make_it", [
    lambda module: ft.with_module(fx.fedadam(0.1, 0.5), module, cross_entropy),
    lambda module: ft.native("fafed", module, cross_entropy, lr=0.1),
], ids=["with_module", "native"])  # fmt: skip
def test_running_statistics_stay_with_their_client(make_it) -> None:
    module = NormNet()
    algorithm = make_it(module)
    params = ft.params_from_module(module)
    server, clients = algorithm.init(params), [algorithm.init_client(params) for _ in range(3)]
    start = clients[0].buffers
    for r in range(6):
        upload = algorithm.client_update(None, algorithm.broadcast(server), clients[0], batches(0, r))[0]
        for place in (server, algorithm.broadcast(server), upload):
            assert not [name for name in expected_of(place) if "running" in name or "tracked" in name]
        own = [batches(i, r) for i in (0, 3, 6)]
        server, clients, _ = fx.eager.run_round(algorithm, None, server, clients, own)
    assert set(start) == {"norm/running_mean", "norm/running_var", "norm/num_batches_tracked"}
    for client, i in zip(clients, (0, 3, 6)):
        assert (client.buffers["norm/running_var"] >= 0).all()
        assert client.buffers["norm/num_batches_tracked"] == 6 * len(batches(i)), "one update a minibatch"
    means = [client.buffers["norm/running_mean"] for client in clients]
    assert not np.allclose(means[0], means[1]) and not np.allclose(means[0], start["norm/running_mean"])
    assert start["norm/num_batches_tracked"] == 0


def test_two_gradients_on_a_batch_share_its_randomness() -> None:
    module = NormNet()
    grad_fn, params, batch = ft.torch_grad_fn(module, cross_entropy), ft.params_from_module(module), batches(0)[0]
    first, second = grad_fn(params, batch), grad_fn(params, batch)
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert module.norm.num_batches_tracked == 1
    other = grad_fn(params, dict(batch))
    assert float(other[0]) != float(first[0])
    keyed = [Minibatch({**batch, "mask": np.ones(len(batch["y"]), bool)}, jax.random.key(k)) for k in (1, 2, 1)]
    losses = [float(grad_fn(params, b)[0]) for b in keyed]
    assert losses[0] == losses[2] != losses[1]


def test_the_callers_random_numbers_go_on_as_if_nothing_were() -> None:
    grad_fn, params = ft.torch_grad_fn(module := NormNet(), cross_entropy), ft.params_from_module(module)
    batch = Minibatch({**batches(0)[0], "mask": np.ones(len(batches(0)[0]["y"]), bool)}, jax.random.key(0))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    grad_fn(params, batch)
    assert torch.equal(torch.rand(3), expected)


def test_padding_is_not_part_of_a_batch() -> None:
    module = Net()
    grad_fn, params = ft.torch_grad_fn(module, cross_entropy), ft.params_from_module(module)
    batch = batches(0)[0]
    n = len(batch["y"])
    padded = {"x": np.full((9, 4), np.nan, np.float32), "y": np.full(9, 99, np.int32), "mask": np.arange(9) < n}
    padded["x"][:n], padded["y"][:n] = batch["x"], batch["y"]
    jax.tree.map(
        np.testing.assert_array_equal, grad_fn(params, Minibatch(padded, jax.random.key(0))), grad_fn(params, batch)
    )


def test_a_compiled_round_is_refused_in_one_line() -> None:
    module = Net()
    algorithm = ft.with_module(fx.fedavg(0.1), module, cross_entropy)
    params = ft.params_from_module(module)
    server = algorithm.init(params)

    @jax.jit
    def compiled(server):
        return fx.eager.run_round(algorithm, None, server, [algorithm.init_client(params)], [batches(0)])

    assert_refused(lambda: compiled(server), "module", "traced", "eager")
