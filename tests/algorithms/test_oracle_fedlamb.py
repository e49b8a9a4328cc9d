"""Fed-AMS (Local AMSGrad) and Fed-LAMB equal Algorithm 1 of 000_*/003_*, round by round."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from oracles import fedlamb as oracle
from oracles.compare import assert_bites, assert_matches, mutant
from oracles.problem import full, make

PROBLEM = make()
PHI: dict[str, tuple[Callable[[Any], Any], Callable[[float], float]]] = {
    "identity": (lambda norm: norm, oracle.identity),
    "narrow": (lambda norm: jnp.clip(norm, 0.2, 0.7), lambda norm: min(max(norm, 0.2), 0.7)),
}
"""The library's φ and the oracle's; without one both take the default, clip(·, 1e-3, 10)."""
AMS: list[dict[str, Any]] = [
    {"lr": 1e-3, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "v0": 1e-4},
    {"lr": 2e-2, "b1": 0.5, "b2": 0.7, "eps": 1e-2, "v0": 0.1},
    {"lr": 1e-2, "b1": 0.9, "b2": 0.9, "v0": 1e-2, "momentum": "reset"},
    {"lr": 1e-2, "b1": 0.9, "b2": 0.9, "v0": 1e-2, "bias_correction": True},
    {"lr": 1e-2, "b1": 0.9, "b2": 0.9, "v0": 1e-2, "momentum": "reset", "bias_correction": True},
]
LAMB: list[dict[str, Any]] = [
    {"lr": 3e-2},
    {"lr": 3e-2, "b1": 0.5, "b2": 0.7, "v0": 1e-2, "weight_decay": 0.5},
    {"lr": 3e-2, "b2": 0.9, "weight_decay": 0.1, "layers": "module"},
    {"lr": 3e-2, "b2": 0.9, "weight_decay": 0.1, "phi": "identity"},
    {"lr": 3e-2, "b2": 0.9, "weight_decay": 0.1, "phi": "identity", "layers": "module"},
    {"lr": 5e-2, "b2": 0.9, "phi": "narrow"},
    {"lr": 3e-2, "b2": 0.9, "momentum": "reset"},
    {"lr": 3e-2, "b2": 0.9, "weight_decay": 0.5, "bias_correction": True},
    {"lr": 3e-2, "b2": 0.9, "weight_decay": 0.5, "bias_correction": True, "momentum": "reset"},
]


def name(case: Any) -> str:
    return ",".join(f"{k}={v}" for k, v in case.items()) if isinstance(case, dict) else str(case)


def runs(cases: list[dict[str, Any]], single: int) -> list[tuple[dict[str, Any], str]]:
    """Every case in float64, the first few in float32 too."""
    return [*((c, "float64") for c in cases), *((c, "float32") for c in cases[:single])]


def library(lamb: bool, hyper: dict[str, Any]) -> Any:
    module = importlib.import_module("fedoptax.algorithms.fedlamb")
    hyper = {k: PHI[v][0] if k == "phi" else v for k, v in hyper.items()}
    return module.fedlamb(**hyper) if lamb else module.local_amsgrad(**hyper)


def expected(lamb: bool, hyper: dict[str, Any], module: Any = oracle, problem: Any = PROBLEM) -> Any:
    hyper = {k: PHI[v][1] if k == "phi" else v for k, v in hyper.items()}
    return module.run(problem, lamb=lamb, **hyper)


def still(hyper: dict[str, Any]) -> list[str]:
    """A zero bias with its own norm and the identity never moves; with φ >= 1e-3 it moves by 3e-5 a step."""
    own = hyper.get("layers", "tensor") == "tensor" and hyper.get("phi") == "identity"
    return ["hidden/bias"] if own else []


@pytest.mark.parametrize(("hyper", "dtype"), runs(AMS, 2), ids=name)
def test_fed_ams(hyper: dict[str, Any], dtype: str) -> None:
    assert_matches(lambda: library(False, hyper), PROBLEM, expected(False, hyper), dtype)


@pytest.mark.parametrize(("hyper", "dtype"), runs(LAMB, 3), ids=name)
def test_fed_lamb(hyper: dict[str, Any], dtype: str) -> None:
    want = expected(True, hyper)
    assert_matches(lambda: library(True, hyper), PROBLEM, want, dtype, still=still(hyper))
    if still(hyper):
        assert not any(tree["hidden/bias"].any() for tree in want)


@pytest.mark.parametrize(("lamb", "hyper"), [(False, AMS[1]), (True, LAMB[1])], ids=["ams", "lamb"])
def test_everyone_examples_and_schedule(lamb: bool, hyper: dict[str, Any]) -> None:
    everyone = full(PROBLEM)
    want = expected(lamb, hyper, problem=everyone)
    assert_matches(lambda: library(lamb, hyper), everyone, want, "float64")
    want = expected(lamb, {**hyper, "weighting": "examples"})
    assert_matches(lambda: library(lamb, hyper), PROBLEM, want, "float64", "examples")
    scheduled = {**hyper, "lr": lambda t: hyper["lr"] * 0.8**t}
    assert_matches(lambda: library(lamb, scheduled), PROBLEM, expected(lamb, scheduled), "float64")


WRONG_AMS = {
    "gradients at the round's start": ("grad(theta, batch)", "grad(theta_bar, batch)"),
    "v of the step, not v̂": ("(np.sqrt(v_hat[n]) + eps)", "(np.sqrt(v[n]) + eps)"),
    "bias correction": ("if bias_correction else 1.0", ""),
    "v starts at 0": ("v = v_hat  # 6", "v = zeros(v_hat)"),
    "no maximum": ("np.maximum(v_hat[n], v_bar[n])", "v_bar[n]"),
    "v̂ starts at ε": ("np.full_like(theta_bar[n], v0)", "np.full_like(theta_bar[n], 1e-4)"),
    "v̂ is refreshed in the round": ("s = s + 1", "s, v_hat = s + 1, {n: np.maximum(v_hat[n], v[n]) for n in g}"),
    "m is reset": ("m, s = moments[i], taken[i]", "m, s = zeros(theta), 0"),
    "m is the last client's": ("moments[i], taken[i] = m, s", "moments = [m] * len(moments)"),
    "m is averaged": ("moments[i], taken[i] = m, s", "moments[0], moments[i] = m, m"),
    "maximum before the mean": ("vs.append(v)", "vs.append({n: np.maximum(v[n], v_hat[n]) for n in v})"),
    "uniform means": ('weighting: str = "uniform"', 'weighting: str = "examples"'),
}  # fmt: skip
WRONG_LAMB = {
    "λ after the norm": ("u = {n: p[n] + weight_decay * theta[n] for n in members}", "u = {n: p[n] for n in members}"),
    "norm of p alone": ("length = norm(u, members)", "length = norm(p, members)"),
    "‖θ‖ of the round's start": ("phi(norm(theta, members))", "phi(norm(theta_bar, members))"),
    "no φ": ("phi(norm(theta, members))", "1.0"),
    "one layer": ('name if layers == "tensor" else name.split("/")[0]', '""'),
    "modules": ('name if layers == "tensor" else', ""),
    "sum of absolutes": ("np.sqrt(sum(np.sum(tree[n] ** 2)", "(sum(np.sum(np.abs(tree[n]))"),
    "gradients at the round's start": ("grad(theta, batch)", "grad(theta_bar, batch)"),
    "m is reset": ("m, s = moments[i], taken[i]", "m, s = zeros(theta), 0"),
    "no clip": ("min(max(norm, 1e-3), 10.0)", "norm"),
}
WRONG_CORRECTION = {
    "s starts again every round": ("m, s = moments[i], taken[i]", "m, s = moments[i], 0"),
    "compounding, as printed": ("p = {n: m[n] / correction /", "p = {n: (m := {**m, n: m[n] / correction})[n] /"),
    "corrects v too": ("(np.sqrt(v_hat[n])", "(np.sqrt(v_hat[n] / (1 - b2**s))"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_AMS)
def test_oracle_of_fed_ams_bites(wrong: str) -> None:
    assert_bites(expected(False, AMS[1], mutant(oracle, *WRONG_AMS[wrong])), expected(False, AMS[1]))


@pytest.mark.parametrize("wrong", WRONG_LAMB)
def test_oracle_of_fed_lamb_bites(wrong: str) -> None:
    assert_bites(expected(True, LAMB[1], mutant(oracle, *WRONG_LAMB[wrong])), expected(True, LAMB[1]))


@pytest.mark.parametrize("lamb", [False, True], ids=["ams", "lamb"])
@pytest.mark.parametrize("wrong", WRONG_CORRECTION)
def test_oracle_of_the_bias_correction_bites(wrong: str, lamb: bool) -> None:
    hyper = LAMB[7] if lamb else AMS[3]
    assert hyper["bias_correction"]
    assert_bites(expected(lamb, hyper, mutant(oracle, *WRONG_CORRECTION[wrong])), expected(lamb, hyper))
