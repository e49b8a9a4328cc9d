"""A module under an algorithm computes what the JAX client does: ragged clients, three of seven per round."""

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
    "fedavg": fx.fedavg(0.1),
    "fedadam, rate by round": fx.fedadam(lambda r: 0.1 / (1 + r), 0.03),
    "fedprox": fx.fedprox(0.1, 0.3),
    "scaffold": fx.scaffold(0.1, 0.9),
    "scaffold, option I": fx.scaffold(0.1, option="I"),
    "mime": fx.mime(0.05),
    "lookahead": fx.lookahead(0.05),
    "naive_adaptive": fx.naive_adaptive(0.05),
    "local_amsgrad": fx.local_amsgrad(0.003, v0=0.01, bias_correction=True),
    "fedlamb": fx.fedlamb(0.02, weight_decay=0.1),
    "stem": fx.stem(0.1),
    "fafed": fx.fafed(0.02, rho=0.1),
    "fafed, equation (5)": fx.fafed(ETA, ALPHA, rho=0.1),
}


def assert_same(got, want, tolerance):
    for path, losses, _ in (got, want):
        assert len(path) == len(losses) == 5
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


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-4)])
@pytest.mark.parametrize("case", CASES)
def test_a_module_equals_the_jax_client(case: str, dtype: str, tolerance: float) -> None:
    with jax.enable_x64(dtype == "float64"):
        want = rounds(CASES[case], grad_fn, PROBLEM, dtype)
        assert max(np.max(np.abs(want[0][-1][n] - PROBLEM.params[n])) for n in PROBLEM.params) > 1e-2
        got = rounds(ft.with_module(CASES[case], net(PROBLEM, dtype), cross_entropy), None, PROBLEM, dtype)
        assert_same(got, want, tolerance)


def test_its_gradient_alone_serves_an_eager_round() -> None:
    with jax.enable_x64(True):
        want = rounds(CASES["mime"], grad_fn, PROBLEM, "float64")
        module_grad_fn = ft.torch_grad_fn(net(PROBLEM, "float64"), cross_entropy)
        got = rounds(CASES["mime"], module_grad_fn, PROBLEM, "float64")
        for a, b in zip(got[0], want[0]):
            for leaf in b:
                np.testing.assert_allclose(a[leaf], b[leaf], rtol=1e-9, atol=1e-10)


WRAPPED = {
    "coded at random": lambda a: fx.with_compression(a, fx.codecs.qsgd(bits=4, bucket=8)),
    "error feedback": lambda a: fx.with_compression(a, fx.codecs.topk(0.3)),
    "private and coded": lambda a: fx.with_compression(fx.with_privacy(a, 0.5, 0.1, 1e-3), fx.codecs.sign()),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_modules_uploads_are_wrapped_as_the_jax_clients(wrapped: str) -> None:
    """In float64, so that no rounding of a gradient moves a level or a choice of the codec."""
    if "private" in wrapped:
        pytest.importorskip("dp_accounting")
    with jax.enable_x64(True):
        module, wrap = net(PROBLEM, "float64"), WRAPPED[wrapped]
        want = rounds(wrap(CASES["scaffold"]), grad_fn, PROBLEM, "float64")
        got = rounds(wrap(ft.with_module(CASES["scaffold"], module, cross_entropy)), None, PROBLEM, "float64")
        assert_same((got[0], got[1], []), (want[0], want[1], []), 1e-9)
