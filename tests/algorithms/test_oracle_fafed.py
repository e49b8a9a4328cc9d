"""The naive adaptive FedAvg, FAFED and STEM equal Wu et al. 2023, Algorithms 1 and 2, round by round."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import fafed as oracle
from oracles.compare import DTYPES, assert_bites, assert_matches, mutant
from oracles.problem import full, make

PROBLEM = make()
EQUAL = full(make(steps=(3,) * 7))
"""Algorithm 2 as printed: everyone takes part, and everyone makes q steps."""
CASES: list[dict[str, Any]] = [
    {"lr": 0.03, "alpha": 0.1, "beta": 0.9, "rho": 0.3},
    {"lr": 0.02, "alpha": 0.9, "beta": 0.1, "rho": 0.05},
    {"lr": 0.03, "alpha": 0.5, "beta": 0.5, "rho": 0.1, "variant": "released"},
    {"lr": 0.02, "alpha": 0.1, "beta": 0.9, "rho": 0.5, "variant": "released"},
]
PROBLEMS = {"partial": PROBLEM, "full": full(PROBLEM), "equal": EQUAL}
SCHEDULE = {"rho": 0.1, "h": 0.6, "w": 1.5, "c": 200.0}


def library(name: str) -> Any:
    return getattr(importlib.import_module("fedoptax.algorithms"), name)


MEAN_SQUARE = "mean([{n: m[n] ** 2 for n in m} for m in hats], weights)"
FIRST_M = "mean([grad(x0, batch) for batch in problem.batches(0, i)])"


def name(case: Any) -> str:
    return ",".join(f"{k}={v}" for k, v in case.items()) if isinstance(case, dict) else str(case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lr", "b2"), [(0.03, 0.5), (0.01, 0.9)])
def test_naive_adaptive(lr: float, b2: float, dtype: str) -> None:
    want = oracle.run_naive(PROBLEM, lr, b2)
    assert_matches(lambda: library("naive_adaptive")(lr, b2=b2), PROBLEM, want, dtype)


def test_theorem_1() -> None:
    """Three clients, x₀ = 10, η = 0.1, β = 0.5, one step a round: x̄ = 10 + η/(3√(1 − β^t)) more each round."""
    x, slopes, v, grad_fn = 10.0, np.array([6.0, -2.0, -2.0]), np.zeros(3), lambda p, s: (p * s, s)
    want = []
    for _ in range(6):  # Algorithm 1 by hand, on the linear pieces |x| > 1
        v = 0.5 * v + 0.5 * slopes**2
        x = float(np.mean(x - 0.1 * slopes / np.sqrt(v)))
        want.append(x)
    assert want[0] == pytest.approx(10.047140, abs=1e-6)
    steps = np.diff([10.0, *want])
    np.testing.assert_allclose(steps, [0.1 / (3 * np.sqrt(1 - 0.5**t)) for t in range(1, 7)], rtol=1e-12)
    from fedoptax.engine.eager import run_round

    with jax.enable_x64(True):
        algorithm = library("naive_adaptive")(0.1, b2=0.5)
        server = algorithm.init(jnp.asarray(10.0))
        clients = [algorithm.init_client(jnp.asarray(10.0)) for _ in range(3)]
        for expected in want:
            batches = [[jnp.asarray(s)] for s in slopes]
            server, clients, _ = run_round(algorithm, grad_fn, server, clients, batches)
            assert float(algorithm.params(server)) == pytest.approx(expected, rel=1e-12)


RUNS = [*((case, "partial") for case in CASES), (CASES[0], "full"), (CASES[0], "equal"), (CASES[2], "equal")]


@pytest.mark.parametrize(("hyper", "problem"), RUNS, ids=name)
def test_fafed(hyper: dict[str, Any], problem: str) -> None:
    want = oracle.run(PROBLEMS[problem], **hyper)
    assert_matches(lambda: library("fafed")(**hyper), PROBLEMS[problem], want, "float64")


@pytest.mark.parametrize("hyper", CASES[1:3], ids=name)
def test_fafed_in_single_precision(hyper: dict[str, Any]) -> None:
    assert_matches(lambda: library("fafed")(**hyper), PROBLEM, oracle.run(PROBLEM, **hyper), "float32")


@pytest.mark.parametrize("problem", ["partial", "equal"])
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_equation_5(variant: str, problem: str) -> None:
    lr, alpha = oracle.equation_5(**SCHEDULE)
    used = [alpha(t) for t in range(1, 16)]
    assert 0 < min(used) < max(used) < 1
    want = oracle.run(PROBLEMS[problem], lr, alpha, 0.9, SCHEDULE["rho"], variant)

    def make_it() -> Any:
        pair = library("fafed_schedule")(**SCHEDULE)
        return library("fafed")(*pair, beta=0.9, rho=SCHEDULE["rho"], variant=variant)

    assert_matches(make_it, PROBLEMS[problem], want, "float64")


def test_equation_5_cuts_alpha_at_one() -> None:
    """Theorem 2's c may make α > 1, outside line 7's (0, 1): the library cuts it there."""
    with jax.enable_x64(True):
        lr, alpha = library("fafed_schedule")(0.1, 1.0, 1.5, 900.0)
        want_lr, want_alpha = oracle.equation_5(0.1, 1.0, 1.5, 900.0)
        assert want_alpha(1) > 1 > want_alpha(40)
        for t in range(1, 60):
            assert float(lr(jnp.asarray(t))) == pytest.approx(want_lr(t), rel=1e-12)
            assert float(alpha(jnp.asarray(t))) == pytest.approx(min(want_alpha(t), 1.0), rel=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lr", "alpha"), [(0.1, 0.1), (0.2, 0.9)])
def test_stem(lr: float, alpha: float, dtype: str) -> None:
    for problem in (PROBLEM, EQUAL):
        want = oracle.run(problem, lr, alpha, adaptive=False)
        assert_matches(lambda: library("stem")(lr, alpha=alpha), problem, want, dtype)


def test_example_weights() -> None:
    hyper = CASES[0]
    want = oracle.run(PROBLEM, weighting="examples", **hyper)
    assert_matches(lambda: library("fafed")(**hyper), PROBLEM, want, "float64", "examples")
    assert_bites(oracle.run(PROBLEM, **hyper), want)


WRONG = {
    "A in round 0": ("at(lr, 0) * m_bar[n] for", "at(lr, 0) * m_bar[n] / a[n] for"),
    "v₀ the square of the mean": (MEAN_SQUARE, "{n: m_bar[n] ** 2 for n in m_bar}"),
    "v₀ = 0": (MEAN_SQUARE, "zeros(x0)"),
    "one minibatch in round 0": (FIRST_M, "grad(x0, problem.batches(0, i)[0])"),
    "A refreshed in the round": ("x_minus = x\n", "x_minus, a = x, diagonal(v)\n"),
    "A refreshed after the step": ("a = diagonal(v_bar)  # 10", "pass"),
    "no last step": ("x_mean[n] - at(lr, t) * m_bar[n] / a[n]", "x_mean[n]"),
    "gradients at the round's start": ("g = grad(x, batch)  # 6", "g = grad(x_bar, batch)"),
    "x_prev is the average": ("x_before[i] = x_minus", "pass"),
    "x_prev is the synchronised x": ("x_bar, m_bar, v_bar, x_before[i]", "x_bar, m_bar, v_bar, x_bar"),
    "another minibatch": ("grad(x_minus, batch)", "grad(x_minus, batches[0])"),
    "alpha for 1 − alpha": ("(1 - at(alpha, t)) * (m", "at(alpha, t) * (m"),
    "sign of g₋": ("(m[n] - g_minus[n])", "(m[n] + g_minus[n])"),
    "v starts at 0 every round": ("x_bar, m_bar, v_bar, x_before[i]", "x_bar, m_bar, zeros(v_bar), x_before[i]"),
    "m is the client's": ("m_bar = mean(ms, weights)  # 11", "m_bar = ms[-1]"),
    "rho in the root": ("np.sqrt(v[n]) + rho if", "np.sqrt(v[n] + rho) if"),
    "v of m": ("(1 - beta) * g[n] ** 2", "(1 - beta) * m[n] ** 2"),
}  # fmt: skip
WRONG_SCHEDULE = {
    "t starts late": ("t = t0 + k", "t = t0 + k + 1"),
    "t of the round": ("t = t0 + k", "t = r"),
    "alpha of now": ("c * eta(t - 1) ** 2", "c * eta(t) ** 2"),
}


@pytest.mark.parametrize("problem", ["partial", "equal"])
@pytest.mark.parametrize("wrong", WRONG)
def test_oracle_of_fafed_bites(wrong: str, problem: str) -> None:
    hyper = {**CASES[0], "alpha": 0.4}
    got = mutant(oracle, *WRONG[wrong]).run(PROBLEMS[problem], **hyper)
    assert_bites(got, oracle.run(PROBLEMS[problem], **hyper))


@pytest.mark.parametrize("wrong", WRONG_SCHEDULE)
def test_oracle_of_equation_5_bites(wrong: str) -> None:
    module = mutant(oracle, *WRONG_SCHEDULE[wrong])
    got, want = (m.run(EQUAL, *m.equation_5(**SCHEDULE), rho=0.1) for m in (module, oracle))
    assert_bites(got, want)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("second[i] = v", "pass"),
        ("y, v = x, second[i]", "y, v = x, {n: np.ones_like(x[n]) for n in x}"),
        ("np.sqrt(v[n]), where", "v[n], where"),
        ("g = grad(y, batch)  # 5", "g = grad(x, batch)"),
    ],
)
def test_oracle_of_naive_bites(old: str, new: str) -> None:
    assert_bites(mutant(oracle, old, new).run_naive(PROBLEM, 0.03), oracle.run_naive(PROBLEM, 0.03))


def test_variants_differ_only_by_the_last_A() -> None:
    paper, released = (oracle.run(EQUAL, 0.01, rho=0.1, variant=v) for v in ("paper", "released"))
    assert_bites(released, paper)
    old_a = mutant(oracle, "a = diagonal(v_bar)  # 10", "pass")
    np.testing.assert_allclose(old_a.run(EQUAL, 0.01, rho=0.1)[1]["out/bias"], released[1]["out/bias"], rtol=1e-12)
