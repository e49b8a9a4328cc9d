"""Client optimizers whose state is averaged: FedOpt with `client_state="average"`, Local AdaAlter, Lookahead."""

from __future__ import annotations

import importlib
from typing import Any

import optax
import pytest

from oracles import shared_state as oracle
from oracles.compare import DTYPES, assert_bites, assert_matches, mutant
from oracles.problem import full, make

PROBLEM = make()
EVERYONE = full(PROBLEM)


def library(name: str) -> Any:
    return getattr(importlib.import_module("fedoptax.algorithms.shared_state"), name)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("client_state", ["reset", "average"])
def test_fedopt_with_heavy_ball_clients(client_state: str, weighting: str) -> None:
    fedopt = importlib.import_module("fedoptax.algorithms.fedopt").fedopt
    want = oracle.run_momentum(PROBLEM, 0.05, 0.8, 0.9, client_state, weighting)
    make_it = lambda: fedopt(optax.sgd(0.05, momentum=0.9), optax.sgd(0.8), client_state)  # noqa: E731
    assert_matches(make_it, PROBLEM, want, "float64", weighting)


def test_average_and_reset_differ() -> None:
    reset, average = (oracle.run_momentum(PROBLEM, 0.05, 0.8, 0.9, s) for s in ("reset", "average"))
    assert_bites(reset, average)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lr", "eps", "b0"), [(0.5, 1.0, 1.0), (0.2, 0.3, 0.5), (0.1, 0.1, 0.1)])
def test_local_adaalter(lr: float, eps: float, b0: float, dtype: str) -> None:
    want = oracle.run_adaalter(PROBLEM, lr, eps, b0, weighting="uniform")
    assert_matches(lambda: library("local_adaalter")(lr, b0=b0, eps=eps), PROBLEM, want, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lr", "alpha", "b2", "eps"), [(0.02, 0.5, 0.999, 1e-3), (0.02, 0.8, 0.9, 1e-2)])
def test_lookahead(lr: float, alpha: float, b2: float, eps: float, dtype: str) -> None:
    want = oracle.run_lookahead(PROBLEM, lr, alpha, b2=b2, eps=eps, weighting="uniform")
    assert_matches(lambda: library("lookahead")(lr, alpha=alpha, b2=b2, eps=eps), PROBLEM, want, dtype)


def test_everyone_examples_and_schedule() -> None:
    def lr(t: Any) -> Any:
        return 0.03 * 0.8**t

    want = oracle.run_adaalter(PROBLEM, lr, 0.1, 0.1)
    make_it = lambda: library("local_adaalter")(lr, b0=0.1, eps=0.1)  # noqa: E731
    assert_matches(make_it, PROBLEM, want, "float64", "examples")
    assert_matches(make_it, EVERYONE, oracle.run_adaalter(EVERYONE, lr, 0.1, 0.1), "float64", "examples")
    want = oracle.run_lookahead(PROBLEM, lr, b2=0.9, eps=1e-2)
    make_it = lambda: library("lookahead")(lr, b2=0.9, eps=1e-2)  # noqa: E731
    assert_matches(make_it, PROBLEM, want, "float64", "examples")
    want = oracle.run_lookahead(EVERYONE, lr, b2=0.9, eps=1e-2)
    assert_matches(make_it, EVERYONE, want, "float64", "examples")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b_square[n] + k * eps**2", "b_square[n] + eps**2"),
        ("b_square[n] + k * eps**2", "a_square[n] + k * eps**2"),
        ("b_square[n] + k * eps**2", "b_square[n] + (k - 1) * eps**2"),
        ("np.full_like(x[n], b0**2)", "np.full_like(x[n], b0)"),
        ("b_square = mean(accumulators, weights)", "b_square = accumulators[-1]"),
        ("y[n] - at(lr, r) * g[n]", "y[n] - at(lr, r) * grad(x, batch)[n]"),
    ],
)  # fmt: skip
def test_oracle_of_adaalter_bites(old: str, new: str) -> None:
    assert_bites(
        mutant(oracle, old, new).run_adaalter(PROBLEM, 0.1, 0.2, 0.2), oracle.run_adaalter(PROBLEM, 0.1, 0.2, 0.2)
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m_bar, v_bar = mean(ms, weights), mean(vs, weights)", "pass"),
        ("fast, m, v, s = slow, m_bar, v_bar, count", "fast, m, v, s = slow, m_bar, v_bar, 0"),
        ("* np.sqrt(1 - b2**s) / (1 - b1**s)", ""),
        ("alpha * (fast_bar[n] - slow[n])", "(fast_bar[n] - slow[n])"),
        ("counts.append(s)", "counts.append(r + 1)"),
        ("size * m[n] / (np.sqrt(v[n]) + eps)", "size * m[n] / (np.sqrt(v[n]) + eps * np.sqrt(1 - b2**s))"),
    ],
)
def test_oracle_of_lookahead_bites(old: str, new: str) -> None:
    got = mutant(oracle, old, new).run_lookahead(PROBLEM, 0.02, eps=1e-2)
    assert_bites(got, oracle.run_lookahead(PROBLEM, 0.02, eps=1e-2))
