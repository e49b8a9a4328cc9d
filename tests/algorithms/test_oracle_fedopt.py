"""The FedOpt family and FedProx equal the paper's pseudo-code, round by round."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import optax
import pytest

from oracles import fedopt as oracle
from oracles.compare import assert_bites, assert_matches, mutant
from oracles.problem import full, make

library = importlib.import_module("fedoptax.algorithms.fedopt")
PROBLEM = make()
CASES: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"client_lr": 0.3, "server_lr": 1.0}),
    ("fedavg", {"client_lr": 0.1, "server_lr": 2.5}),
    ("fedavgm", {"client_lr": 0.2, "server_lr": 0.7, "momentum": 0.9}),
    ("fedavgm", {"client_lr": 0.3, "server_lr": 1.0, "momentum": 0.5}),
    ("fedadagrad", {"client_lr": 0.3, "server_lr": 0.2, "b1": 0.0, "tau": 1e-3}),
    ("fedadagrad", {"client_lr": 0.1, "server_lr": 0.5, "b1": 0.6, "tau": 0.1}),
    ("fedyogi", {"client_lr": 0.3, "server_lr": 0.05, "b1": 0.9, "b2": 0.99, "tau": 1e-2}),
    ("fedyogi", {"client_lr": 0.1, "server_lr": 0.2, "b1": 0.3, "b2": 0.7, "tau": 0.3}),
    ("fedyogi", {"client_lr": 0.3, "server_lr": 0.03, "b1": 0.9, "b2": 0.99, "tau": 1e-2, "debias": True}),
    ("fedadam", {"client_lr": 0.3, "server_lr": 0.05, "b1": 0.9, "b2": 0.99, "tau": 1e-2}),
    ("fedadam", {"client_lr": 0.1, "server_lr": 0.2, "b1": 0.0, "b2": 0.5, "tau": 0.1}),
    ("fedadam", {"client_lr": 0.3, "server_lr": 0.03, "b1": 0.9, "b2": 0.99, "tau": 1e-2, "debias": True}),
    ("fedams", {"client_lr": 0.3, "server_lr": 0.05, "b1": 0.9, "b2": 0.99, "eps": 1e-3}),
    ("fedams", {"client_lr": 0.3, "server_lr": 0.1, "b1": 0.5, "b2": 0.3, "eps": 1e-2}),
    ("fedamsgrad", {"client_lr": 0.3, "server_lr": 0.02, "b1": 0.9, "b2": 0.99, "eps": 1e-3}),
    ("fedamsgrad", {"client_lr": 0.3, "server_lr": 0.1, "b1": 0.5, "b2": 0.3, "eps": 1e-2}),
]
FIRST = dict(reversed(CASES))  # the first case of every rule
SINGLE = [(*case, "float32") for case in [*FIRST.items(), *(c for c in CASES if "debias" in c[1])]]


def client_schedule(t: Any) -> Any:
    return 0.4 / (1 + t) ** 0.5


def server_schedule(t: Any) -> Any:
    return 0.1 * 0.8**t


def name(case: Any) -> str:
    return case if isinstance(case, str) else ",".join(f"{k}={v}" for k, v in case.items())


@pytest.mark.parametrize(("rule", "hyper", "dtype"), [*((*c, "float64") for c in CASES), *SINGLE], ids=name)
def test_equals_algorithm_2(rule: str, hyper: dict[str, Any], dtype: str) -> None:
    want = oracle.run(PROBLEM, rule, **hyper)
    assert_matches(lambda: getattr(library, rule)(**hyper), PROBLEM, want, dtype, "examples")


@pytest.mark.parametrize(("rule", "hyper"), FIRST.items(), ids=name)
def test_equals_with_uniform_weights(rule: str, hyper: dict[str, Any]) -> None:
    want = oracle.run(PROBLEM, rule, weighting="uniform", **hyper)
    assert_matches(lambda: getattr(library, rule)(**hyper), PROBLEM, want, "float64", "uniform")
    assert_bites(oracle.run(PROBLEM, rule, **hyper), want)


def test_equals_with_everyone() -> None:
    everyone = full(PROBLEM)
    want = oracle.run(everyone, "fedadam", **FIRST["fedadam"])
    assert_matches(lambda: library.fedadam(**FIRST["fedadam"]), everyone, want, "float64", "examples")


@pytest.mark.parametrize("rule", FIRST)
def test_schedules_over_rounds(rule: str) -> None:
    run = functools.partial(oracle.run, PROBLEM, rule, b1=0.0 if rule == "fedadagrad" else 0.9)  # their defaults
    want = run(client_schedule, server_schedule)
    make_it = functools.partial(getattr(library, rule), client_schedule, server_schedule)
    assert_matches(make_it, PROBLEM, want, "float64", "examples")
    assert_bites(run(lambda t: client_schedule(t + 1), server_schedule), want)
    assert_bites(run(client_schedule, lambda t: server_schedule(t + 1)), want)


def test_any_two_optimizers() -> None:
    """Algorithm 1 with SGD clients and a heavy-ball server is FedAvgM; the server is fed −Δ."""
    want = oracle.run(PROBLEM, "fedavgm", 0.2, 0.7, momentum=0.8)
    make_it = functools.partial(library.fedopt, optax.sgd(0.2), optax.sgd(0.7, momentum=0.8))
    assert_matches(make_it, PROBLEM, want, "float64", "examples")


@pytest.mark.parametrize(("mu", "dtype"), [(0.1, "float64"), (2.0, "float64"), (2.0, "float32")])
def test_fedprox(mu: float, dtype: str) -> None:
    from fedoptax import algorithms as wrappers

    want = oracle.run(PROBLEM, "fedavg", 0.3, mu=mu)
    assert_matches(lambda: wrappers.fedprox(client_lr=0.3, mu=mu), PROBLEM, want, dtype, "examples")
    assert_matches(lambda: wrappers.with_prox(library.fedavg(0.3), mu), PROBLEM, want, dtype, "examples")
    want = oracle.run(PROBLEM, "fedyogi", 0.3, 0.05, tau=1e-2, mu=mu)
    with_prox: Callable[[], Any] = lambda: wrappers.with_prox(library.fedyogi(0.3, 0.05, tau=1e-2), mu)  # noqa: E731
    assert_matches(with_prox, PROBLEM, want, dtype, "examples")


WRONG = {
    "gradients at the round's start": ("fedavg", "g = grad(y, batch)", "g = grad(x, batch)"),
    "Δ reversed": ("fedavg", "{n: y[n] - x[n] for n in x})  # A2:9", "{n: x[n] - y[n] for n in x})"),
    "damped FedAvgM": ("fedavgm", "momentum * m[n] + delta[n]", "momentum * m[n] + 0.1 * delta[n]"),
    "Nesterov": ("fedavgm", "eta * m[n] for n", "eta * (momentum * m[n] + delta[n]) for n"),
    "Adagrad forgets": ("fedadagrad", "{n: v[n] + delta[n] ** 2", "{n: b2 * v[n] + delta[n] ** 2"),
    "Yogi's sign": ("fedyogi", "np.sign(v[n] - delta[n] ** 2)", "np.sign(delta[n] ** 2 - v[n])"),
    "Yogi without sign": ("fedyogi", " * np.sign(v[n] - delta[n] ** 2)", ""),
    "v starts at 0": ("fedadam", "np.full_like(x[n], tau**2)", "np.zeros_like(x[n])"),
    "bias correction": ("fedadam", "if debias:", "if True:"),
    "tau in the root": ("fedadam", "(np.sqrt(v[n]) + tau)", "np.sqrt(v[n] + tau)"),
    "betas exchanged": ("fedadam", "b2 * v[n] + (1 - b2) *", "b1 * v[n] + (1 - b1) *"),
    "v updated twice": ("fedadam", "(np.sqrt(v[n]) + tau)", "(np.sqrt(v[n] + delta[n] ** 2) + tau)"),
    "no running maximum": ("fedams", "np.maximum(np.maximum(v_hat[n], v[n]), eps)", "np.maximum(v[n], eps)"),
    "no floor": ("fedams", "np.maximum(np.maximum(v_hat[n], v[n]), eps)", "np.maximum(v_hat[n], v[n])"),
}  # fmt: skip
HYPER: dict[str, dict[str, Any]] = {
    "fedams": {"b2": 0.3, "eps": 1e-2},
    "fedyogi": {"b2": 0.9, "tau": 0.3, "server_lr": 0.3},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_oracle_bites(wrong: str) -> None:
    rule, old, new = WRONG[wrong]
    rates = {"client_lr": 0.3, "server_lr": 1.0 if rule in ("fedavg", "fedavgm") else 0.05}
    hyper: dict[str, Any] = {**rates, "tau": 1e-2, **HYPER.get(rule, {})}
    want = oracle.run(PROBLEM, rule, **hyper)
    assert_bites(mutant(oracle, old, new).run(PROBLEM, rule, **hyper), want)


def test_the_running_maximum_of_fedamsgrad_bites() -> None:
    hyper: dict[str, Any] = {"client_lr": 0.3, "server_lr": 0.05, "b2": 0.3}
    wrong = mutant(oracle, "v_hat = {n: np.maximum(v_hat[n], v[n]) for n in x}", "v_hat = v")
    assert_bites(wrong.run(PROBLEM, "fedamsgrad", **hyper), oracle.run(PROBLEM, "fedamsgrad", **hyper))
