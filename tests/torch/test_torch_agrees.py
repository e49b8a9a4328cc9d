"""JAX client, module under an algorithm and PyTorch loop compute the same: ragged clients, three of seven a round."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedoptax as fx
import fedoptax.torch as ft
from oracles.compare import grad_fn
from oracles.problem import make
from torch_models import cross_entropy, net, rounds

PROBLEM = make()
ETA, ALPHA = fx.fafed_schedule(rho=0.1, h=0.5, w=2.0, c=5.0)
CASES = {
    "fedavg": ("fedavg", {"client_lr": 0.1}),
    "fedadam": ("fedadam", {"client_lr": 0.1, "server_lr": 0.03}),
    "fedadam, rate by round": ("fedadam", {"client_lr": lambda r: 0.1 / (1 + r), "server_lr": 0.03}),
    "fedprox": ("fedprox", {"client_lr": 0.1, "mu": 0.3}),
    "scaffold": ("scaffold", {"client_lr": 0.1, "server_lr": 0.9}),
    "scaffold, option I": ("scaffold", {"client_lr": 0.1, "option": "I"}),
    "local_amsgrad": ("local_amsgrad", {"lr": 0.003}),
    "local_amsgrad, corrected": ("local_amsgrad", {"lr": 0.003, "v0": 0.01, "bias_correction": True}),
    "fedlamb": ("fedlamb", {"lr": 0.02, "weight_decay": 0.1}),
    "fedlamb, modules": ("fedlamb", {"lr": 0.02, "layers": "module", "phi": "identity", "momentum": "reset"}),
    "stem": ("stem", {"lr": 0.1}),
    "fafed": ("fafed", {"lr": 0.02, "rho": 0.1}),
    "fafed, released": ("fafed", {"lr": 0.02, "rho": 0.1, "variant": "released"}),
    "fafed, equation (5)": ("fafed", {"lr": ETA, "alpha": ALPHA, "rho": 0.1}),
}
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}


def assert_same(got, want, tolerance):
    for (path, losses, states), name in ((got, "got"), (want, "want")):
        assert len(path) == len(losses) == 5 and len(states) == 7, name
    for r, (a, b) in enumerate(zip(got[0], want[0])):
        for leaf in b:
            scale = np.max(np.abs(b[leaf]))
            np.testing.assert_allclose(a[leaf], b[leaf], rtol=0, atol=tolerance * scale, err_msg=f"round {r}, {leaf}")
    np.testing.assert_allclose(got[1], want[1], rtol=max(tolerance, 1e-6))
    states = [state.algorithm for state in got[2]]
    assert jax.tree.structure(states) == jax.tree.structure(list(want[2]))
    for a, b in zip(jax.tree.leaves(states), jax.tree.leaves(list(want[2]))):
        scale = np.max(np.abs(b))
        np.testing.assert_allclose(a, b, rtol=0, atol=10 * tolerance * max(scale, 1e-2))
        assert np.asarray(a).dtype == b.dtype


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES)
def test_module_and_pytorch_loop_equal_the_jax_client(case: str, dtype: str) -> None:
    name, hyperparameters = CASES[case]
    with jax.enable_x64(dtype == "float64"):
        algorithm = fx.ALGORITHMS[name](**hyperparameters)
        want = rounds(algorithm, grad_fn, PROBLEM, dtype)
        assert max(np.max(np.abs(want[0][-1][n] - PROBLEM.params[n])) for n in PROBLEM.params) > 1e-2
        module = net(PROBLEM, dtype)
        assert_same(
            rounds(ft.with_module(algorithm, module, cross_entropy), None, PROBLEM, dtype), want, TOLERANCE[dtype]
        )
        looped = ft.native(name, module, cross_entropy, **hyperparameters)
        assert_same(rounds(looped, None, PROBLEM, dtype), want, TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["mime", "naive_adaptive", "local_adaalter", "lookahead"])
def test_any_algorithm_takes_a_modules_gradients(name: str) -> None:
    rate = {"client_lr" if name in ("mime", "lookahead") else "lr": 0.05}
    with jax.enable_x64(True):
        algorithm = fx.ALGORITHMS[name](**rate)
        want = rounds(algorithm, grad_fn, PROBLEM, "float64")
        module_grad_fn = ft.torch_grad_fn(net(PROBLEM, "float64"), cross_entropy)
        got = rounds(algorithm, module_grad_fn, PROBLEM, "float64")
        for a, b in zip(got[0], want[0]):
            for leaf in b:
                np.testing.assert_allclose(a[leaf], b[leaf], rtol=1e-9, atol=1e-10)


def test_the_seven_of_the_fedopt_family_share_the_loop() -> None:
    assert set(ft.NATIVE) >= {"fedavg", "fedavgm", "fedadagrad", "fedyogi", "fedadam", "fedams", "fedamsgrad"}
    for name in ("fedavgm", "fedyogi", "fedams"):
        algorithm = fx.ALGORITHMS[name](0.1, 0.03)
        want = rounds(algorithm, grad_fn, PROBLEM, "float32")
        got = rounds(
            ft.native(name, net(PROBLEM, "float32"), cross_entropy, client_lr=0.1, server_lr=0.03),
            None,
            PROBLEM,
            "float32",
        )
        assert_same(got, want, 1e-4)


def test_a_wrong_name_or_hyperparameter_is_one_line() -> None:
    module = net(PROBLEM, "float32")
    for name, given, words in (
        ("mime", {"client_lr": 0.1}, ("algorithm", "'mime'", "scaffold")),
        ("fedavg", {}, ("fedavg", "client_lr")),
        ("fedavg", {"client_lr": 0.1, "mu": 1}, ("fedavg", "mu")),
        ("stem", {"lr": -1}, ("lr", "-1")),
    ):
        with pytest.raises(fx.UsageError) as error:
            ft.native(name, module, cross_entropy, **given)
        assert "\n" not in str(error.value)
        assert all(word in str(error.value) for word in words), str(error.value)


WRAPPED = {
    "coded at random": lambda a: fx.with_compression(a, fx.codecs.qsgd(bits=4, bucket=8)),
    "error feedback": lambda a: fx.with_compression(a, fx.codecs.topk(0.3)),
    "private and coded": lambda a: fx.with_compression(fx.with_privacy(a, 0.5, 0.1, 1e-3), fx.codecs.sign()),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("name", ["fedadam", "scaffold"])
def test_wrapped_algorithms_take_a_modules_gradients(name: str, wrapped: str) -> None:
    """In float64, so that no rounding of a gradient moves a level or a choice of the codec."""
    if "private" in wrapped:
        pytest.importorskip("dp_accounting")
    with jax.enable_x64(True):
        algorithm = WRAPPED[wrapped](fx.ALGORITHMS[name](**({"client_lr": 0.1} | FED[name])))
        want = rounds(algorithm, grad_fn, PROBLEM, "float64")
        got = rounds(ft.with_module(algorithm, net(PROBLEM, "float64"), cross_entropy), None, PROBLEM, "float64")
        assert_same(got, want, 1e-9)


FED = {"fedadam": {"server_lr": 0.03}, "scaffold": {}}


def test_a_loop_that_sends_plain_uploads_is_refused_where_they_should_be_coded() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedoptax[flower]')")
    from fedoptax.torch.flower_client import checked_change

    module, plain = net(PROBLEM, "float32"), fx.fedavg(0.1)
    coded = fx.with_compression(plain, fx.codecs.sign())
    assert checked_change(coded, lambda a: ft.with_module(a, module, cross_entropy)).decode is coded.decode
    loop = ft.native("fedavg", module, cross_entropy, client_lr=0.1)
    assert checked_change(plain, lambda a: loop) is loop
    with pytest.raises(fx.UsageError, match="compress, privacy: given with clients that send plain uploads"):
        checked_change(coded, lambda a: loop)
