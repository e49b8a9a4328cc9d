"""A module under an algorithm computes what the JAX client does: ragged clients, three of seven per round."""

import jax
import numpy as np
import pytest

import fedoptax as fx
import fedoptax.torch as ft
from oracles.compare import grad_fn
from oracles.problem import make
from small_rounds import close
from torch_models import cross_entropy, net, rounds

PROBLEM = make()
ETA, ALPHA = fx.fafed_schedule(rho=0.1, h=0.5, w=2.0, c=5.0)
CASES = {
    "fedadam, rate by round": fx.fedadam(lambda r: 0.1 / (1 + r), 0.03),
    "scaffold, option I": fx.scaffold(0.1, option="I"), "mime": fx.mime(0.05),
    "fedlamb": fx.fedlamb(0.02, weight_decay=0.1), "fafed, equation (5)": fx.fafed(ETA, ALPHA, rho=0.1),
}  # fmt: skip


def assert_same(got, want, tolerance):
    """Parameters and losses of five rounds are the same, and so is what the clients kept."""
    assert len(got[0]) == len(want[0]) == 5
    for a, b in zip(got[0], want[0]):
        for leaf in b:
            np.testing.assert_allclose(a[leaf], b[leaf], rtol=0, atol=tolerance * np.max(np.abs(b[leaf])))
    close(got[1], want[1], rtol=max(tolerance, 1e-6), atol=0)
    states = [state.algorithm if isinstance(state, ft.ModuleState) else state for state in got[2]]
    assert jax.tree.structure(states) == jax.tree.structure(list(want[2]))
    for a, b in zip(jax.tree.leaves(states), jax.tree.leaves(want[2])):
        np.testing.assert_allclose(a, b, rtol=0, atol=10 * tolerance * max(np.max(np.abs(b)), 1e-2))
        assert np.asarray(a).dtype == b.dtype


@pytest.mark.parametrize(("case", "dtype"), [*((case, "float64") for case in CASES), ("mime", "float32")])
def test_a_module_equals_the_jax_client(case, dtype):
    tolerance = {"float64": 1e-10, "float32": 1e-4}[dtype]
    with jax.enable_x64(dtype == "float64"):
        want = rounds(CASES[case], grad_fn, PROBLEM, dtype)
        assert max(np.max(np.abs(want[0][-1][n] - PROBLEM.params[n])) for n in PROBLEM.params) > 1e-2
        got = rounds(ft.with_module(CASES[case], net(PROBLEM, dtype), cross_entropy), None, PROBLEM, dtype)
        assert_same(got, want, tolerance)


def test_a_modules_uploads_are_coded_as_the_jax_clients():
    """In float64, so that no rounding of a gradient moves a level of the codec."""

    def coded(algorithm: fx.FedAlgorithm) -> fx.FedAlgorithm:
        return fx.with_compression(algorithm, fx.codecs.qsgd(bits=4, bucket=8))

    with jax.enable_x64(True):
        module, algorithm = net(PROBLEM, "float64"), CASES["scaffold, option I"]
        want = rounds(coded(algorithm), grad_fn, PROBLEM, "float64")
        got = rounds(coded(ft.with_module(algorithm, module, cross_entropy)), None, PROBLEM, "float64")
        assert_same((got[0], got[1], []), (want[0], want[1], []), 1e-9)
