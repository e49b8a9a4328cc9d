"""Mime and MimeLite equal Karimireddy et al. 2020a, Algorithm 1, round by round."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from oracles import mime as oracle
from oracles.compare import assert_bites, assert_matches, mutant
from oracles.problem import full, make

PROBLEM = make()
CASES: list[dict[str, Any]] = [
    {"base": "sgd", "client_lr": 0.5, "b1": 0.5},
    {"base": "sgd", "client_lr": 0.3, "b1": 0.0},
    {"base": "adam", "client_lr": 0.02, "b1": 0.5, "b2": 0.9, "eps": 0.1},
    {"base": "adam", "client_lr": 0.02, "b1": 0.9, "b2": 0.99, "eps": 0.05},
]
RUNS = [*((case, "float64") for case in CASES), *((case, "float32") for case in CASES[1:3])]


def name(case: Any) -> str:
    return ",".join(f"{k}={v}" for k, v in case.items()) if isinstance(case, dict) else str(case)


def library(algorithm: str, hyper: dict[str, Any]) -> Any:
    return getattr(importlib.import_module("fedoptax.algorithms.mime"), algorithm)(**hyper)


def expected(mime: bool, hyper: dict[str, Any], module: Any = oracle, problem: Any = PROBLEM, **more: Any) -> Any:
    hyper = {**hyper, **more}
    lr, base = hyper.pop("client_lr"), {"sgd": "sgdm", "adam": "adam"}[hyper.pop("base")]
    return module.run(problem, lr, base, mime, **hyper)


@pytest.mark.parametrize(("hyper", "dtype"), RUNS, ids=name)
def test_mimelite(hyper: dict[str, Any], dtype: str) -> None:
    assert_matches(lambda: library("mimelite", hyper), PROBLEM, expected(False, hyper), dtype)


@pytest.mark.parametrize(("hyper", "dtype"), RUNS, ids=name)
def test_mime_with_the_control_of_the_previous_round(hyper: dict[str, Any], dtype: str) -> None:
    """A deviation that the library declares: with one exchange a round, c is a round old, and 0 in the first."""
    want = expected(True, hyper, control="previous")
    assert_matches(lambda: library("mime", hyper), PROBLEM, want, dtype, since=1)
    assert_bites(expected(True, hyper), want)  # the paper's own Mime is another trajectory


@pytest.mark.parametrize("mime", [True, False])
def test_everyone_examples_and_schedule(mime: bool) -> None:
    algorithm, hyper, since = ("mime", CASES[2], 1) if mime else ("mimelite", CASES[0], 0)
    control = {"control": "previous"}
    everyone = full(PROBLEM)
    want = expected(mime, hyper, problem=everyone, **control)
    assert_matches(lambda: library(algorithm, hyper), everyone, want, "float64", since=since)
    want = expected(mime, hyper, weighting="examples", **control)
    assert_matches(lambda: library(algorithm, hyper), PROBLEM, want, "float64", "examples", since=since)
    assert_bites(expected(mime, hyper, **control), want)
    scheduled = {**hyper, "client_lr": lambda t: hyper["client_lr"] * 0.8**t}
    want = expected(mime, scheduled, **control)
    assert_matches(lambda: library(algorithm, scheduled), PROBLEM, want, "float64", since=since)


WRONG = {
    "statistics updated in the round": ("ys.append(y)", "ys.append(y); m = {n: m[n] + g[n] for n in x}"),
    "gradients at the round's start": ("g = grad(y, batch)", "g = grad(x, batch)"),
    "statistics of the clients' last gradients": ("g = mean(full, weights)", "pass"),
    "m is not tracked": ("m = {n: (1 - b1) * g[n] + b1 * m[n] for n in x}  # V", "pass"),
    "v is not tracked": ("v = {n: (1 - b2) * g[n] ** 2 + b2 * v[n] for n in x}  # V", "pass"),
    "one minibatch for ∇f": ("for batch in problem.batches(r, i)])", "for batch in problem.batches(r, i)[:1]])"),
    "betas exchanged": ("(1 - b2) * g[n] ** 2 + b2 * v[n]", "(1 - b1) * g[n] ** 2 + b1 * v[n]"),
    "U without momentum": ("u = {n: (1 - b1) * g[n] + b1 * m[n] for n in x}", "u = {n: g[n] for n in x}"),
    "eps in the root": ("(np.sqrt(v[n]) + eps)", "np.sqrt(v[n] + eps)"),
}  # fmt: skip
WRONG_MIME = {
    "sign of the control": ("g[n] - g_x[n] + c[n]", "g[n] + g_x[n] - c[n]"),
    "c without g(x)": ("g[n] - g_x[n] + c[n]", "g[n] + c[n]"),
    "another minibatch": ("g_x = grad(x, batch)", "g_x = grad(x, problem.batches(r, i)[0])"),
}


@pytest.mark.parametrize("mime", [True, False])
@pytest.mark.parametrize("wrong", [*WRONG, *WRONG_MIME])
def test_oracle_bites(wrong: str, mime: bool) -> None:
    old, new = {**WRONG, **WRONG_MIME}[wrong]
    got, want = expected(mime, CASES[2], mutant(oracle, old, new)), expected(mime, CASES[2])
    if mime or wrong in WRONG:
        assert_bites(got, want)
    else:  # MimeLite has no control variate
        assert all((a[n] == b[n]).all() for a, b in zip(got, want) for n in b)
