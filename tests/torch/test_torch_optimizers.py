"""The optimizers in a plain PyTorch loop: they compute what the algorithms do, learn, and refuse wrong arguments."""

from copy import deepcopy

import jax
import numpy as np
import pytest

import fedoptax as fx
import fedoptax.torch as ft
from oracles.compare import grad_fn
from oracles.problem import make
from refusals import refusals
from small_rounds import close
from torch_models import cross_entropy, net, torch

PROBLEM = make()
BATCHES = [{"x": torch.tensor(b["x"]).float(), "y": torch.tensor(b["y"])} for b in PROBLEM.batches(0, 3)]
CORRECTED = {"lr": 0.003, "b2": 0.5, "v0": 0.01, "bias_correction": True}
BY_MODULE = {"lr": 0.02, "layers": "module", "phi": "identity"}
RELEASED = {"lr": 0.02, "rho": 0.1, "variant": "released"}
OPTIMIZERS = {
    "LocalAMSGrad": (
        fx.local_amsgrad(**CORRECTED | {"bias_correction": "momentum"}),
        lambda net: ft.LocalAMSGrad(net.parameters(), **CORRECTED),
    ),
    "FedLAMB": (fx.fedlamb(0.02, weight_decay=0.1), lambda net: ft.FedLAMB(net.parameters(), 0.02, weight_decay=0.1)),
    "FedLAMB by module": (
        fx.fedlamb(**BY_MODULE),
        lambda net: ft.FedLAMB([{"params": net.named_parameters(), **BY_MODULE}], 1.0),
    ),
    "STEM": (fx.stem(0.2), lambda net: ft.STEM(net.parameters(), 0.2)),
    "FAFED": (fx.fafed(0.02, rho=0.1), lambda net: ft.FAFED(net.parameters(), 0.02, rho=0.1)),
    "FAFED as released": (fx.fafed(**RELEASED), lambda net: ft.FAFED(net.parameters(), **RELEASED)),
}


def closure_for(module, optimizer, batch):
    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(module, batch)
        loss.backward()
        return loss

    return closure


def train(module, optimizer, epochs):
    """A plain loop with a synchronisation after each epoch."""
    losses = []
    for _ in range(epochs):
        losses.append(sum(optimizer.step(closure_for(module, optimizer, batch)).item() for batch in BATCHES))
        optimizer.synchronize()
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_three_clients_compute_what_the_algorithm_does(name):
    algorithm, make_optimizer = OPTIMIZERS[name]
    with jax.enable_x64(True):
        modules = [net(PROBLEM, "float64") for _ in range(3)]
        params = ft.params_from_module(modules[0])
        server, clients = algorithm.init(params), [algorithm.init_client(params)] * 3
        optimizers = [make_optimizer(module) for module in modules]
        for r in range(4):
            batches = [PROBLEM.batches(r, i) for i in (0, 3, 6)]
            server, clients, _ = fx.eager.run_round(algorithm, grad_fn, server, clients, batches)
            for module, optimizer, own in zip(modules, optimizers, batches):
                for batch in own:
                    tensors = {key: torch.tensor(array) for key, array in batch.items()}
                    optimizer.step(closure_for(module, optimizer, tensors))
            uploads = [optimizer.upload() for optimizer in optimizers]
            for optimizer in optimizers:
                optimizer.synchronize(uploads)
            for module in modules:
                close(ft.params_from_module(module), algorithm.params(server), rtol=1e-9, atol=1e-11)
        moved = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b))), algorithm.params(server), params)
        assert max(jax.tree.leaves(moved)) > 1e-2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_alone_it_learns_and_its_state_dict_continues_it_exactly(name):
    module, twin = net(PROBLEM, "float32"), net(PROBLEM, "float32")
    optimizer, restored = OPTIMIZERS[name][1](module), OPTIMIZERS[name][1](twin)
    losses = train(module, optimizer, 20)
    twin.load_state_dict(module.state_dict())
    restored.load_state_dict(deepcopy(optimizer.state_dict()))  # PyTorch shares the tensors of a state_dict
    copied = deepcopy((module, optimizer))
    losses += train(module, optimizer, 20)
    assert train(twin, restored, 20) == train(*copied, 20) == losses[20:] and losses[-1] < 0.4 * losses[0]


@pytest.mark.parametrize("name", ["STEM", "FAFED"])
def test_both_gradients_of_a_step_share_their_randomness(name):
    p = torch.nn.Parameter(torch.ones(6))
    optimizer = getattr(ft, name)([p], lr=0.1)
    drawn = []

    def closure():
        optimizer.zero_grad()
        drawn.append(torch.rand(6))
        loss = (p * drawn[-1]).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.synchronize()
    optimizer.step(closure)
    optimizer.step(closure)
    assert torch.equal(drawn[1], drawn[2]) and torch.equal(drawn[3], drawn[4])
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[2], drawn[3])


@pytest.mark.parametrize("name", ["STEM", "FAFED"])
def test_parameters_that_are_added_later_begin_with_a_first_round(name):
    early, late, alone = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    optimizer, other = getattr(ft, name)([early], lr=0.1), getattr(ft, name)([alone], lr=0.02)

    def closure():
        for p in (early, late, alone):
            p.grad = 2 * p.detach() + torch.arange(2)
        return torch.zeros(())

    optimizer.step(closure)
    optimizer.synchronize()
    optimizer.add_param_group({"params": [late], "lr": 0.02})
    for _ in range(3):
        for one in (optimizer, other):
            one.step(closure)
            one.step(closure)
            one.synchronize()
    assert torch.equal(late, alone) and not torch.equal(late, torch.ones(2))


P = [torch.nn.Parameter(torch.ones(2))]
test_wrong_arguments_are_named = refusals([
    (lambda: ft.LocalAMSGrad(P, lr=-1.0), "lr"), (lambda: ft.LocalAMSGrad(P, lr=1.0, b1=1.0), "b1"),
    (lambda: ft.FedLAMB(P, lr=1.0, phi="none"), "phi"), (lambda: ft.STEM(P, lr=1.0, alpha=1.5), "alpha"),
    (lambda: ft.FedLAMB(P, lr=1.0, weight_decay=-1), "weight_decay"),
    (lambda: ft.FedLAMB(P, lr=1.0, layers="module"), "named_parameters"),
    (lambda: ft.FAFED(P, lr=1.0, variant="new"), "variant"), (lambda: ft.FAFED(P, lr=1.0).step(), "closure"),
])  # fmt: skip
