"""Faster Adaptive Federated Learning [Wu, Huang, Hu, Huang 2023], Algorithms 1 and 2; STEM is A ≡ 1.

Algorithm 2 runs over iterations t and their synchronisations: iteration 0 is round 0 (lines 2 and 3),
and every later round is as many iterations as the client has minibatches.
"""

from collections.abc import Iterator

import numpy as np

from oracles.fedopt import Rate, at
from oracles.problem import Problem, Tree, grad, mean, means, zeros


def run_naive(problem: Problem, lr: float, b2: float = 0.5, weighting: str = "uniform") -> Iterator[Tree]:
    """Algorithm 1: the average x̄ after every q steps."""
    x = problem.params  # 2
    second = [zeros(x) for _ in range(problem.num_clients)]  # 1  v_{0,i} = 0 (Theorem 1)
    for r, cohort in enumerate(problem.cohorts):
        locals_ = []
        for i in cohort:  # 4
            y, v = x, second[i]
            for batch in problem.batches(r, i):  # 3
                g = grad(y, batch)  # 5
                v = {n: b2 * v[n] + (1 - b2) * g[n] ** 2 for n in x}  # 6
                step = {n: np.divide(g[n], np.sqrt(v[n]), where=v[n] > 0, out=np.zeros_like(v[n])) for n in x}
                y = {n: y[n] - lr * step[n] for n in x}  # 10, and the inner part of 8
            second[i] = v
            locals_.append(y)
        x = mean(locals_, problem.weights(r, weighting))  # 8
        yield x


def equation_5(rho: float, h: float, w: float, c: float) -> tuple[Rate, Rate]:
    """(5): η_t = ρ h / (w + t)^{1/3}; Theorem 2: α_{t+1} = c η_t², so α_t = c η_{t−1}²."""

    def eta(t: int) -> float:
        return rho * h / (w + t) ** (1 / 3)

    def alpha(t: int) -> float:
        return c * eta(t - 1) ** 2

    return eta, alpha


def theorem_2(smoothness: float, n: int, q: int, b: int, rho: float) -> tuple[Rate, Rate]:
    """Theorem 2's η_t and α_t, uncut; q where the text prints T in w and c."""
    h = n ** (2 / 3) / smoothness
    c = 1 / (12 * smoothness * q * h**3 * rho**2) + 60 * smoothness**2 / (b * n * rho**2)

    def eta(t: int) -> float:
        w = max(1.5, 1728 * smoothness**3 * q**3 * h**3 - t)
        return rho * h / (w + t) ** (1 / 3)

    return eta, lambda t: c * eta(t - 1) ** 2


def run(
    problem: Problem,
    lr: Rate,
    alpha: Rate = 0.1,
    beta: float = 0.9,
    rho: float = 0.01,
    variant: str = "paper",
    adaptive: str | bool = "adam",
    initial_batches: int | None = None,
    weighting: str = "uniform",
) -> Iterator[Tree]:
    """Algorithm 2: x̄ after round 0 and after every synchronisation; `adaptive=False` is STEM.

    With unequal minibatches the iteration counter of a synchronisation is the mean of the participants', rounded.
    """

    def power(g: Tree) -> Tree:
        if adaptive in ("global", "adagrad_norm"):  # one number, here repeated for every coordinate
            return {n: np.full_like(g[n], sum(np.sum(a**2) for a in g.values())) for n in g}
        return {n: g[n] ** 2 for n in g}

    def diagonal(v: Tree) -> Tree:
        return {n: np.sqrt(v[n]) + rho if adaptive else np.ones_like(v[n]) for n in v}

    x0 = problem.params
    x_before = [x0] * problem.num_clients  # x_{t−1,i} of a client that has not taken part yet
    hats = []
    for i in problem.cohorts[0]:
        hats.append(mean([grad(x0, batch) for batch in problem.batches(0, i)[:initial_batches]]))  # 2  ∇f(x₀; B₀)
    weights = problem.weights(0, weighting)
    m_bar = mean(hats, weights)  # 2
    v_bar = mean([power(m) for m in hats], weights)  # 2  mean of squares
    a = diagonal(v_bar)  # 2
    x_bar = {n: x0[n] - at(lr, 0) * m_bar[n] for n in x0}  # 3  without A
    t0 = 0
    yield x_bar
    for r, cohort in enumerate(problem.cohorts[1:], start=1):
        weights = problem.weights(r, weighting)
        sent, ts = [], []
        for i in cohort:  # 5
            x, m, v, x_minus = x_bar, m_bar, v_bar, x_before[i]
            batches = problem.batches(r, i)
            for k, batch in enumerate(batches, start=1):  # 4
                t = t0 + k
                g = grad(x, batch)  # 6
                g_minus = grad(x_minus, batch)  # 6, the same minibatch
                m = {n: g[n] + (1 - at(alpha, t)) * (m[n] - g_minus[n]) for n in x}  # 7
                decay, share = (1, 1) if adaptive == "adagrad_norm" else (beta, 1 - beta)
                v = {n: decay * v[n] + share * power(g)[n] for n in x}  # 8
                x_minus = x
                if k < len(batches) or variant == "released":  # 9, 13
                    x = {n: x[n] - at(lr, t) * m[n] / a[n] for n in x}  # 14, 15
            x_before[i] = x_minus
            sent.append((x, m, v))
            ts.append(t0 + len(batches))
        t = round(sum(w * ti for w, ti in zip(weights, ts)))
        x_bar, m_bar, v_bar = means(sent, weights)  # 10, 11
        a = diagonal(v_bar)  # 10
        if variant == "paper":
            x_bar = {n: x_bar[n] - at(lr, t) * m_bar[n] / a[n] for n in x_bar}  # 12
        t0 = t
        yield x_bar
