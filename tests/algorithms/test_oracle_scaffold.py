"""SCAFFOLD equals Karimireddy et al. 2020b, Algorithm 1, round by round."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from oracles import scaffold as oracle
from oracles.compare import assert_bites, assert_matches, mutant
from oracles.problem import full, make

PROBLEM = make()
OPTION = {1: "I", 2: "II"}
"""The library's names of options I and II."""


def scaffold(**hyper: Any) -> Any:
    return importlib.import_module("fedoptax.algorithms.scaffold").scaffold(**hyper)


def schedule(t: Any) -> Any:
    return 0.2 / (1 + t) ** 0.5


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize(
    ("client_lr", "server_lr", "dtype"), [(0.2, 1.0, "float64"), (0.1, 1.7, "float64"), (0.1, 1.7, "float32")]
)
def test_equals_algorithm_1(client_lr: float, server_lr: float, option: int, dtype: str) -> None:
    want = oracle.run(PROBLEM, client_lr, server_lr, option)
    make_it = lambda: scaffold(client_lr=client_lr, server_lr=server_lr, option=OPTION[option])  # noqa: E731
    assert_matches(make_it, PROBLEM, want, dtype)


@pytest.mark.parametrize("option", [1, 2])
def test_equals_with_everyone_and_with_example_weights(option: int) -> None:
    make_it = lambda: scaffold(client_lr=0.2, server_lr=1.0, option=OPTION[option])  # noqa: E731
    everyone = full(PROBLEM)
    assert_matches(make_it, everyone, oracle.run(everyone, 0.2, 1.0, option), "float64")
    want = oracle.run(PROBLEM, 0.2, 1.0, option, weighting="examples")
    assert_matches(make_it, PROBLEM, want, "float64", "examples")
    assert_bites(oracle.run(PROBLEM, 0.2, 1.0, option), want)


@pytest.mark.parametrize("option", [1, 2])
def test_schedules_over_rounds(option: int) -> None:
    """K η_l of option II uses the η_l of the round whose steps it undoes."""
    want = oracle.run(PROBLEM, schedule, lambda t: 1.2 * 0.9**t, option)
    make_it = lambda: scaffold(client_lr=schedule, server_lr=lambda t: 1.2 * 0.9**t, option=OPTION[option])  # noqa: E731
    assert_matches(make_it, PROBLEM, want, "float64")


def test_with_prox() -> None:
    from fedoptax import algorithms as wrappers

    make_it = lambda: wrappers.with_prox(scaffold(client_lr=0.2, server_lr=1.0, option=OPTION[2]), 0.5)  # noqa: E731
    want = oracle.run(PROBLEM, 0.2, 1.0, 2, mu=0.5)
    assert_matches(make_it, PROBLEM, want, "float64")
    assert_bites(oracle.run(PROBLEM, 0.2, 1.0, 2), want)


WRONG = {
    "sign of x − y": ("(x[n] - y[n]) / (k", "(y[n] - x[n]) / (k"),
    "|S|/N forgotten": ("len(cohort) / problem.num_clients * dc[n]", "dc[n]"),
    "c is replaced": ("c[n] + len(cohort)", "len(cohort)"),
    "signs of the controls": ("g[n] - c_i[n] + c[n]", "g[n] + c_i[n] - c[n]"),
    "no c in the steps": ("g[n] - c_i[n] + c[n]", "g[n] - c_i[n]"),
    "no −c in option II": ("c_i[n] - c[n] + (x[n]", "c_i[n] + (x[n]"),
    "K of the whole federation": ("k = len(batches)", "k = 4"),
    "Δc of the last client only": (", mean(delta_c, weights)", ", delta_c[-1]"),
    "c_i uploaded, not Δc": ("c_plus[n] - c_i[n] for", "c_plus[n] for"),
    "c_i not kept": ("controls[i] = c_plus", "pass"),
    "gradients at the round's start": ("g = grad(y, batch)", "g = grad(x, batch)"),
    "c scaled by η": ("* dc[n] for", "* at(server_lr, r) * dc[n] for"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_oracle_bites(wrong: str) -> None:
    assert_bites(mutant(oracle, *WRONG[wrong]).run(PROBLEM, 0.2, 1.7), oracle.run(PROBLEM, 0.2, 1.7))


def test_options_differ() -> None:
    assert_bites(oracle.run(PROBLEM, 0.2, option=1), oracle.run(PROBLEM, 0.2, option=2))
    last = mutant(oracle, "c_plus = mean([grad(x, batch) for batch in batches])", "c_plus = grad(y, batches[-1])")
    assert_bites(last.run(PROBLEM, 0.2, option=1), oracle.run(PROBLEM, 0.2, option=1))
