"""The optimizers in a plain PyTorch loop: what they compute, that they learn, and what they refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
import fedoptax.torch as ft
from oracles.compare import grad_fn
from oracles.problem import make
from torch_models import cross_entropy, net, torch

PROBLEM = make()
BATCHES = [{"x": torch.tensor(b["x"]).float(), "y": torch.tensor(b["y"])} for b in PROBLEM.batches(0, 3)]
OPTIMIZERS = {
    "LocalAMSGrad": lambda params: ft.LocalAMSGrad(params, lr=0.002),
    "FedLAMB": lambda params: ft.FedLAMB(params, lr=0.05),
    "Scaffold": lambda params: ft.Scaffold(params, lr=0.3),
    "FedProx": lambda params: ft.FedProx(params, lr=0.3, mu=0.01),
    "STEM": lambda params: ft.STEM(params, lr=0.2),
    "FAFED": lambda params: ft.FAFED(params, lr=0.02, rho=0.1),
}


def closure_for(module, optimizer, batch):
    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(module, batch)
        loss.backward()
        return loss

    return closure


def epochs(module, optimizer, count):
    """A plain loop; the rules with a server's part have it after every epoch."""
    losses = []
    for _ in range(count):
        losses.append(sum(optimizer.step(closure_for(module, optimizer, batch)).item() for batch in BATCHES))
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_alone_it_learns(name: str) -> None:
    module = net(PROBLEM, "float32")
    losses = epochs(module, OPTIMIZERS[name](module.parameters()), 40)
    assert losses[-1] < 0.4 * losses[0]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_its_state_dict_continues_it_exactly(name: str) -> None:
    whole = net(PROBLEM, "float32")
    epochs(whole, OPTIMIZERS[name](whole.parameters()), 4)
    first = net(PROBLEM, "float32")
    optimizer = OPTIMIZERS[name](first.parameters())
    epochs(first, optimizer, 2)
    second = net(PROBLEM, "float32")
    second.load_state_dict(first.state_dict())
    restored = OPTIMIZERS[name](second.parameters())
    restored.load_state_dict(optimizer.state_dict())
    epochs(second, restored, 2)
    for a, b in zip(second.parameters(), whole.parameters()):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["LocalAMSGrad", "FedLAMB", "STEM", "FAFED"])
def test_with_synchronize_it_is_a_federation_of_one(name: str) -> None:
    algorithms = {
        "LocalAMSGrad": fx.local_amsgrad(0.002),
        "FedLAMB": fx.fedlamb(0.05),
        "STEM": fx.stem(0.2),
        "FAFED": fx.fafed(0.02, rho=0.1),
    }
    module, algorithm = net(PROBLEM, "float32"), algorithms[name]
    server = algorithm.init(ft.params_from_module(module))
    clients = [algorithm.init_client(ft.params_from_module(module))]
    batches = [{"x": jnp.asarray(b["x"].numpy()), "y": jnp.asarray(b["y"].numpy())} for b in BATCHES]
    optimizer = OPTIMIZERS[name](module.parameters())
    for _ in range(4):
        server, clients, _ = fx.eager.run_round(algorithm, grad_fn, server, clients, [batches])
        epochs(module, optimizer, 1)
        got, want = ft.params_from_module(module), algorithm.params(server)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


def test_scaffolds_control_is_the_mean_gradient_of_its_round() -> None:
    module = net(PROBLEM, "float32")
    optimizer = ft.Scaffold(module.parameters(), lr=0.1)
    optimizer.start_round([torch.ones_like(p) for p in module.parameters()])
    total = [torch.zeros_like(p) for p in module.parameters()]
    for batch in BATCHES:
        optimizer.step(closure_for(module, optimizer, batch))
        total = [t + p.grad for t, p in zip(total, module.parameters())]
    deltas = optimizer.end_round()
    for p, t, delta in zip(module.parameters(), total, deltas):  # option II with c = 1 and c_i = 0
        torch.testing.assert_close(optimizer.state[p]["control"], t / len(BATCHES), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(delta, optimizer.state[p]["control"])
    optimizer.start_round([torch.ones_like(p) for p in module.parameters()])
    assert all(not delta.any() for delta in optimizer.end_round()), "a round without steps keeps the control"


def test_fedprox_pulls_to_where_the_round_began() -> None:
    p = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = ft.FedProx([p], lr=0.5, mu=0.2)
    with torch.no_grad():
        p.fill_(3.0)
    p.grad = torch.zeros(1)
    optimizer.step()
    assert float(p.detach()) == pytest.approx(3.0 - 0.5 * 0.2 * 2.0)
    optimizer.start_round()
    before = float(p.detach())
    optimizer.step()
    assert float(p.detach()) == before


@pytest.mark.parametrize("rule", ["STEM", "FAFED"])
def test_both_gradients_of_a_step_share_their_randomness(rule: str) -> None:
    p = torch.nn.Parameter(torch.ones(6))
    optimizer = getattr(ft, rule)([p], lr=0.1)
    optimizer.start_round([torch.zeros(6)], [torch.ones(6)] if rule == "FAFED" else [])
    drawn = []

    def closure():
        optimizer.zero_grad()
        drawn.append(torch.rand(6))
        loss = (p * drawn[-1]).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure)
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[2], drawn[3])
    assert not torch.equal(drawn[0], drawn[2])


def test_fedlambs_layers_are_tensors_or_modules() -> None:
    module = net(PROBLEM, "float32")
    with pytest.raises(fx.UsageError, match="named_parameters"):
        ft.FedLAMB(module.parameters(), lr=0.1, layers="module")
    lengths = {}
    for layers in ("tensor", "module"):
        module = net(PROBLEM, "float32")
        optimizer = ft.FedLAMB(module.named_parameters(), lr=0.1, phi=lambda norm: 1.0, layers=layers)
        before = [p.detach().clone() for p in module.out.parameters()]
        optimizer.step(closure_for(module, optimizer, BATCHES[0]))
        moved = [(p.detach() - b).norm() ** 2 for p, b in zip(module.out.parameters(), before)]
        lengths[layers] = [float(m) for m in moved]
    assert lengths["tensor"] == pytest.approx([0.01, 0.01], rel=1e-4)
    assert sum(lengths["module"]) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize(
    ("make_it", "words"),
    [
        (lambda p: ft.LocalAMSGrad(p, lr=-1.0), "lr: -1.0"),
        (lambda p: ft.LocalAMSGrad(p, lr=1.0, b1=1.0), "b1: 1.0"),
        (lambda p: ft.FedLAMB(p, lr=1.0, phi="none"), "phi: 'none'"),
        (lambda p: ft.FedLAMB(p, lr=1.0, weight_decay=-1), "weight_decay: -1"),
        (lambda p: ft.Scaffold(p, lr=0), "lr: 0"),
        (lambda p: ft.FedProx(p, lr=1.0, mu=-0.1), "mu: -0.1"),
        (lambda p: ft.STEM(p, lr=1.0, alpha=1.5), "alpha: 1.5"),
        (lambda p: ft.FAFED(p, lr=1.0, variant="new"), "variant: 'new'"),
        (lambda p: ft.FAFED(p, lr=1.0).step(), "closure: None"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(make_it, words: str) -> None:
    with pytest.raises(fx.UsageError) as error:
        make_it([torch.nn.Parameter(torch.ones(2))])
    assert str(error.value).startswith(words) and "\n" not in str(error.value)
