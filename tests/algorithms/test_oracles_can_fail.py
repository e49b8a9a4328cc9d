"""The oracles tell the papers from their near misses: with one statement changed, each is far outside the tolerance."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from oracles import fafed, fedlamb, fedopt, mime, scaffold, shared_state
from oracles.compare import assert_bites, mutant
from oracles.problem import Tree, full, make

pytestmark = pytest.mark.long  # the oracles and their problem do not change

PARTIAL, EQUAL = make(), full(make(steps=(3,) * 7))
Run = Callable[[Any], list[Tree]]
MUTANTS: dict[str, tuple[ModuleType, Run, str, str]] = {}


def add(oracle: ModuleType, run: Run, changes: dict[str, tuple[str, str]]) -> None:
    """`changes` by name: a statement of the oracle, and what stands in its place."""
    for name, (old, new) in changes.items():
        MUTANTS[f"{len(MUTANTS)} {oracle.__name__}: {name}"] = (oracle, run, old, new)


add(
    fedopt,
    lambda oracle: oracle.run(PARTIAL, "fedavg", 0.3, 1.0),
    {
        "gradients at the round's start": ("g = grad(y, batch)", "g = grad(x, batch)"),
        "Δ reversed": ("{n: y[n] - x[n] for n in x})  # A2:9", "{n: x[n] - y[n] for n in x})"),
    },
)
add(
    fedopt,
    lambda oracle: oracle.run(PARTIAL, "fedavgm", 0.3, 1.0),
    {
        "damped FedAvgM": ("momentum * m[n] + delta[n]", "momentum * m[n] + 0.1 * delta[n]"),
        "Nesterov": ("eta * m[n] for n", "eta * (momentum * m[n] + delta[n]) for n"),
    },
)
add(
    fedopt,
    lambda oracle: oracle.run(PARTIAL, "fedadagrad", 0.3, 0.05, tau=1e-2),
    {
        "Adagrad forgets": ("{n: v[n] + delta[n] ** 2", "{n: b2 * v[n] + delta[n] ** 2"),
    },
)
add(
    fedopt,
    lambda oracle: oracle.run(PARTIAL, "fedyogi", 0.3, 0.3, b2=0.9, tau=0.3),
    {
        "Yogi's sign": ("np.sign(v[n] - delta[n] ** 2)", "np.sign(delta[n] ** 2 - v[n])"),
        "Yogi without sign": (" * np.sign(v[n] - delta[n] ** 2)", ""),
    },
)
add(
    fedopt,
    lambda oracle: oracle.run(PARTIAL, "fedadam", 0.3, 0.05, tau=1e-2),
    {
        "v starts at 0": ("np.full_like(x[n], tau**2)", "np.zeros_like(x[n])"),
        "bias correction": ("if debias:", "if True:"),
        "tau in the root": ("(np.sqrt(v[n]) + tau)", "np.sqrt(v[n] + tau)"),
        "betas exchanged": ("b2 * v[n] + (1 - b2) *", "b1 * v[n] + (1 - b1) *"),
        "v updated twice": ("(np.sqrt(v[n]) + tau)", "(np.sqrt(v[n] + delta[n] ** 2) + tau)"),
    },
)
add(
    fedopt,
    lambda oracle: oracle.run(PARTIAL, "fedams", 0.3, 0.05, b2=0.3, eps=1e-2),
    {
        "no running maximum": ("np.maximum(np.maximum(v_hat[n], v[n]), eps)", "np.maximum(v[n], eps)"),
        "no floor": ("np.maximum(np.maximum(v_hat[n], v[n]), eps)", "np.maximum(v_hat[n], v[n])"),
    },
)
add(
    fedopt,
    lambda oracle: oracle.run(PARTIAL, "fedamsgrad", 0.3, 0.05, b2=0.3),
    {
        "no running maximum": ("v_hat = {n: np.maximum(v_hat[n], v[n]) for n in x}", "v_hat = v"),
    },
)
add(
    scaffold,
    lambda oracle: oracle.run(PARTIAL, 0.2, 1.7),
    {
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
    },
)
add(
    scaffold,
    lambda oracle: oracle.run(PARTIAL, 0.2, option=1),
    {
        "option I at y": ("c_plus = mean([grad(x, batch) for batch in batches])", "c_plus = grad(y, batches[-1])"),
    },
)
add(
    fedlamb,
    lambda oracle: oracle.run(PARTIAL, 2e-2, lamb=False, b1=0.5, b2=0.7, eps=1e-2, v0=0.1),
    {
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
    },
)
add(
    fedlamb,
    lambda oracle: oracle.run(PARTIAL, 3e-2, lamb=True, b1=0.5, b2=0.7, v0=1e-2, weight_decay=0.5),
    {
        "λ after the norm": (
            "u = {n: p[n] + weight_decay * theta[n] for n in members}",
            "u = {n: p[n] for n in members}",
        ),
        "norm of p alone": ("length = norm(u, members)", "length = norm(p, members)"),
        "‖θ‖ of the round's start": ("phi(norm(theta, members))", "phi(norm(theta_bar, members))"),
        "no φ": ("phi(norm(theta, members))", "1.0"),
        "one layer": ('name if layers == "tensor" else name.split("/")[0]', '""'),
        "modules": ('name if layers == "tensor" else', ""),
        "sum of absolutes": ("np.sqrt(sum(np.sum(tree[n] ** 2)", "(sum(np.sum(np.abs(tree[n]))"),
        "gradients at the round's start": ("grad(theta, batch)", "grad(theta_bar, batch)"),
        "m is reset": ("m, s = moments[i], taken[i]", "m, s = zeros(theta), 0"),
        "no clip": ("min(max(norm, 1e-3), 10.0)", "norm"),
    },
)
for lamb in (False, True):
    add(
        fedlamb,
        lambda oracle, lamb=lamb: oracle.run(
            PARTIAL, 1e-2, lamb, b2=0.9, v0=1e-2, weight_decay=0.5, bias_correction=True
        ),
        {
            "s starts again every round": ("m, s = moments[i], taken[i]", "m, s = moments[i], 0"),
            "compounding, as printed": (
                "p = {n: m[n] / correction /",
                "p = {n: (m := {**m, n: m[n] / correction})[n] /",
            ),
            "corrects v too": ("(np.sqrt(v_hat[n])", "(np.sqrt(v_hat[n] / (1 - b2**s))"),
        },
    )
for problem in (PARTIAL, EQUAL):
    add(
        fafed,
        lambda oracle, problem=problem: oracle.run(problem, 0.03, 0.4, 0.9, 0.3),
        {
            "A in round 0": ("at(lr, 0) * m_bar[n] for", "at(lr, 0) * m_bar[n] / a[n] for"),
            "v₀ the square of the mean": (
                "mean([{n: m[n] ** 2 for n in m} for m in hats], weights)",
                "{n: m_bar[n] ** 2 for n in m_bar}",
            ),
            "v₀ = 0": ("mean([{n: m[n] ** 2 for n in m} for m in hats], weights)", "zeros(x0)"),
            "one minibatch in round 0": (
                "mean([grad(x0, batch) for batch in problem.batches(0, i)])",
                "grad(x0, problem.batches(0, i)[0])",
            ),
            "A refreshed in the round": ("x_minus = x\n", "x_minus, a = x, diagonal(v)\n"),
            "A refreshed after the step": ("a = diagonal(v_bar)  # 10", "pass"),
            "no last step": ("x_mean[n] - at(lr, t) * m_bar[n] / a[n]", "x_mean[n]"),
            "gradients at the round's start": ("g = grad(x, batch)  # 6", "g = grad(x_bar, batch)"),
            "x_prev is the average": ("x_before[i] = x_minus", "pass"),
            "x_prev is the synchronised x": ("x_bar, m_bar, v_bar, x_before[i]", "x_bar, m_bar, v_bar, x_bar"),
            "another minibatch": ("grad(x_minus, batch)", "grad(x_minus, batches[0])"),
            "alpha for 1 − alpha": ("(1 - at(alpha, t)) * (m", "at(alpha, t) * (m"),
            "sign of g₋": ("(m[n] - g_minus[n])", "(m[n] + g_minus[n])"),
            "v starts at 0 every round": (
                "x_bar, m_bar, v_bar, x_before[i]",
                "x_bar, m_bar, zeros(v_bar), x_before[i]",
            ),
            "m is the client's": ("m_bar = mean(ms, weights)  # 11", "m_bar = ms[-1]"),
            "rho in the root": ("np.sqrt(v[n]) + rho if", "np.sqrt(v[n] + rho) if"),
            "v of m": ("(1 - beta) * g[n] ** 2", "(1 - beta) * m[n] ** 2"),
        },
    )
add(
    fafed,
    lambda oracle: oracle.run(EQUAL, *oracle.equation_5(0.1, 0.6, 1.5, 200.0), rho=0.1),
    {
        "t starts late": ("t = t0 + k", "t = t0 + k + 1"),
        "t of the round": ("t = t0 + k", "t = r"),
        "alpha of now": ("c * eta(t - 1) ** 2", "c * eta(t) ** 2"),
    },
)
add(
    fafed,
    lambda oracle: oracle.run_naive(PARTIAL, 0.03),
    {
        "v is not kept": ("second[i] = v", "pass"),
        "v starts at 1": ("y, v = x, second[i]", "y, v = x, {n: np.ones_like(x[n]) for n in x}"),
        "no root": ("np.sqrt(v[n]), where", "v[n], where"),
        "gradients at the round's start": ("g = grad(y, batch)  # 5", "g = grad(x, batch)"),
    },
)
add(
    mime,
    lambda oracle: oracle.run(PARTIAL, 0.02, "adam", False, b1=0.5, b2=0.9, eps=0.1),
    {
        "statistics updated in the round": ("ys.append(y)", "ys.append(y); m = {n: m[n] + g[n] for n in x}"),
        "gradients at the round's start": ("g = grad(y, batch)", "g = grad(x, batch)"),
        "statistics of the clients' last gradients": ("g = mean(full, weights)", "pass"),
        "m is not tracked": ("m = {n: (1 - b1) * g[n] + b1 * m[n] for n in x}  # V", "pass"),
        "v is not tracked": ("v = {n: (1 - b2) * g[n] ** 2 + b2 * v[n] for n in x}  # V", "pass"),
        "one minibatch for ∇f": ("for batch in problem.batches(r, i)])", "for batch in problem.batches(r, i)[:1]])"),
        "betas exchanged": ("(1 - b2) * g[n] ** 2 + b2 * v[n]", "(1 - b1) * g[n] ** 2 + b1 * v[n]"),
        "U without momentum": ("u = {n: (1 - b1) * g[n] + b1 * m[n] for n in x}", "u = {n: g[n] for n in x}"),
        "eps in the root": ("(np.sqrt(v[n]) + eps)", "np.sqrt(v[n] + eps)"),
    },
)
add(
    mime,
    lambda oracle: oracle.run(PARTIAL, 0.02, "adam", True, b1=0.5, b2=0.9, eps=0.1),
    {
        "statistics updated in the round": ("ys.append(y)", "ys.append(y); m = {n: m[n] + g[n] for n in x}"),
        "gradients at the round's start": ("g = grad(y, batch)", "g = grad(x, batch)"),
        "statistics of the clients' last gradients": ("g = mean(full, weights)", "pass"),
        "m is not tracked": ("m = {n: (1 - b1) * g[n] + b1 * m[n] for n in x}  # V", "pass"),
        "v is not tracked": ("v = {n: (1 - b2) * g[n] ** 2 + b2 * v[n] for n in x}  # V", "pass"),
        "one minibatch for ∇f": ("for batch in problem.batches(r, i)])", "for batch in problem.batches(r, i)[:1]])"),
        "betas exchanged": ("(1 - b2) * g[n] ** 2 + b2 * v[n]", "(1 - b1) * g[n] ** 2 + b1 * v[n]"),
        "U without momentum": ("u = {n: (1 - b1) * g[n] + b1 * m[n] for n in x}", "u = {n: g[n] for n in x}"),
        "eps in the root": ("(np.sqrt(v[n]) + eps)", "np.sqrt(v[n] + eps)"),
        "sign of the control": ("g[n] - g_x[n] + c[n]", "g[n] + g_x[n] - c[n]"),
        "c without g(x)": ("g[n] - g_x[n] + c[n]", "g[n] + c[n]"),
        "another minibatch": ("g_x = grad(x, batch)", "g_x = grad(x, problem.batches(r, i)[0])"),
    },
)
add(
    shared_state,
    lambda oracle: oracle.run_adaalter(PARTIAL, 0.1, 0.2, 0.2),
    {
        "t′ stays 1": ("b_square[n] + k * eps**2", "b_square[n] + eps**2"),
        "A² for B²": ("b_square[n] + k * eps**2", "a_square[n] + k * eps**2"),
        "t′ from 0": ("b_square[n] + k * eps**2", "b_square[n] + (k - 1) * eps**2"),
        "B² starts at b₀": ("np.full_like(x[n], b0**2)", "np.full_like(x[n], b0)"),
        "the last client's A²": ("b_square = mean(accumulators, weights)", "b_square = accumulators[-1]"),
        "gradients at the round's start": ("y[n] - at(lr, r) * g[n]", "y[n] - at(lr, r) * grad(x, batch)[n]"),
    },
)
add(
    shared_state,
    lambda oracle: oracle.run_lookahead(PARTIAL, 0.02, eps=1e-2),
    {
        "moments are not shared": ("m_bar, v_bar = mean(ms, weights), mean(vs, weights)", "pass"),
        "t starts again": ("fast, m, v, s = slow, m_bar, v_bar, count", "fast, m, v, s = slow, m_bar, v_bar, 0"),
        "no bias correction": ("* np.sqrt(1 - b2**s) / (1 - b1**s)", ""),
        "no slow step": ("alpha * (fast_bar[n] - slow[n])", "(fast_bar[n] - slow[n])"),
        "t counts rounds": ("counts.append(s)", "counts.append(r + 1)"),
    },
)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_changed_statement_is_seen(name: str) -> None:
    oracle, run, old, new = MUTANTS[name]
    assert_bites(run(mutant(oracle, old, new)), run(oracle))


def test_options_and_weights_are_seen() -> None:
    for one, other in (
        (fedopt.run(PARTIAL, "fedavg", 0.3), fedopt.run(PARTIAL, "fedavg", 0.3, weighting="uniform")),
        (scaffold.run(PARTIAL, 0.2, option=1), scaffold.run(PARTIAL, 0.2, option=2)),
        (scaffold.run(PARTIAL, 0.2), scaffold.run(PARTIAL, 0.2, mu=0.5)),
        (fafed.run(EQUAL, 0.01, rho=0.1), fafed.run(EQUAL, 0.01, rho=0.1, variant="released")),
        (mime.run(PARTIAL, 0.1), mime.run(PARTIAL, 0.1, control="previous")),
        (fedlamb.run(PARTIAL, 3e-2, lamb=True), fedlamb.run(PARTIAL, 3e-2, lamb=True, momentum="reset")),
    ):
        assert_bites(one, other)
