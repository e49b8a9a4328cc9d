"""FedLion, FedAdamW, FedAda², FAdamGC, DiLoCo and MuLoCo, each from its paper's listing.

FedLion [Tang and Chang 2024, Algorithm 1]; FedAdamW [Liu et al. 2025]; FedAda² and
FedAda²++ [Lee et al. 2025] with SM3-II [Anil et al. 2019]; FAdamGC [Chen et al. 2025]; DiLoCo [Douillard et al. 2023,
Algorithm 1]; MuLoCo [Thérien et al. 2025, Algorithm 1] with Muon [Jordan et al. 2024].
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from oracles.fedopt import Rate, Server, at
from oracles.problem import Array, Problem, Tree, grad, mean, means, zeros


def run_fedlion(problem: Problem, lr: Rate, b1: float = 0.9, b2: float = 0.99) -> Iterator[Tree]:
    """x after every round."""
    x, m_bar = problem.params, zeros(problem.params)
    for t, cohort in enumerate(problem.cohorts):
        gamma, sent = at(lr, t), []
        for i in cohort:
            y, m = x, m_bar
            for batch in problem.batches(t, i):
                g = grad(y, batch)
                c = {n: b1 * m[n] + (1 - b1) * g[n] for n in x}
                y = {n: y[n] - gamma * np.sign(c[n]) for n in x}
                m = {n: b2 * m[n] + (1 - b2) * g[n] for n in x}
            sent.append(({n: np.rint((x[n] - y[n]) / gamma) for n in x}, m))
        delta, m_bar = means(sent)
        x = {n: x[n] - gamma * delta[n] for n in x}
        yield x


def run_fedadamw(
    problem: Problem,
    client_lr: Rate,
    alpha: float = 0.5,
    weight_decay: float = 0.01,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    second_moment: str = "mean",
) -> Iterator[Tree]:
    """x after every round; K Δ_G is remembered, and divided by the steps of the client that uses it."""
    x, total, v_bar, steps = problem.params, zeros(problem.params), zeros(problem.params), 0
    for r, cohort in enumerate(problem.cohorts):
        eta, deltas, vs, counts = at(client_lr, r), [], [], []
        for i in cohort:
            y, m, v, batches = x, zeros(x), v_bar, problem.batches(r, i)
            for k, batch in enumerate(batches, start=1):
                t = steps + k
                g = grad(y, batch)
                m = {n: b1 * m[n] + (1 - b1) * g[n] for n in x}
                v = {n: b2 * v[n] + (1 - b2) * g[n] ** 2 for n in x}
                theta = {n: m[n] / (1 - b1**k) / (np.sqrt(v[n] / (1 - b2**t)) + eps) for n in x}
                delta_g = {n: total[n] / len(batches) for n in x}
                y = {n: y[n] - eta * (theta[n] + alpha * delta_g[n] + weight_decay * y[n]) for n in x}
            deltas.append({n: y[n] - x[n] for n in x})
            vs.append({n: np.full_like(v[n], v[n].mean()) for n in x} if second_moment == "mean" else v)
            counts.append(len(batches))
        delta, v_bar = mean(deltas), mean(vs)
        total = {n: -delta[n] / eta for n in x}
        x = {n: x[n] + delta[n] for n in x}
        steps += round(float(np.mean(counts)))
        yield x


def sm3(g: Array, covers: dict[tuple[int, int], float]) -> Array:
    """v of one tensor by SM3-II, entry by entry; `covers` holds μ(r) of the sets r = (axis, index), and is updated."""
    v, new = np.zeros_like(g), dict.fromkeys(covers, 0.0)
    for place in np.ndindex(g.shape):
        sets = list(enumerate(place))
        v[place] = min(covers.get(r, 0.0) for r in sets) + g[place] ** 2
        for r in sets:
            new[r] = max(new.get(r, 0.0), v[place])
    covers.clear()
    covers.update(new)
    return v


def run_fedada2(
    problem: Problem,
    client_lr: Rate,
    server_lr: Rate,
    client: str = "adagrad",
    server: str = "adagrad",
    b1: float = 0.9,
    b2: float = 0.99,
    tau: float = 1e-3,
    eps: float = 1e-3,
) -> Iterator[Tree]:
    """x after every round."""
    x, outer = problem.params, Server(f"fed{server}", server_lr, b1=b1, b2=b2, tau=tau)
    for t, cohort in enumerate(problem.cohorts):
        deltas = []
        for i in cohort:
            y, v = x, zeros(x)
            covers: dict[str, Any] = {n: {} for n in x}
            for batch in problem.batches(t, i):
                g = grad(y, batch)
                v = {n: v[n] + g[n] ** 2 if client == "adagrad" else sm3(g[n], covers[n]) for n in x}
                y = {n: y[n] - at(client_lr, t) * g[n] / (np.sqrt(v[n]) + eps) for n in x}
            deltas.append({n: y[n] - x[n] for n in x})
        x = outer.step(x, mean(deltas), t)
        yield x


def run_fadamgc(
    problem: Problem,
    client_lr: Rate,
    server_lr: Rate = 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    moments: str = "persist",
) -> Iterator[Tree]:
    """x after every round."""
    x, y = problem.params, zeros(problem.params)
    ys = [zeros(x) for _ in range(problem.num_clients)]
    states = [(zeros(x), zeros(x), zeros(x)) for _ in range(problem.num_clients)]
    for t, cohort in enumerate(problem.cohorts):
        x_sum, y_sum = zeros(x), zeros(x)
        for i in cohort:
            x_i, (m, v, v_hat), gradients = x, states[i], []
            for batch in problem.batches(t, i):
                g = grad(x_i, batch)
                gradients.append(g)
                g_hat = {n: g[n] + y[n] - ys[i][n] for n in x}
                m = {n: b1 * m[n] + (1 - b1) * g_hat[n] for n in x}
                v = {n: b2 * v[n] + (1 - b2) * g_hat[n] ** 2 for n in x}
                v_hat = {n: np.maximum(v_hat[n], v[n]) for n in x}
                x_i = {n: x_i[n] - at(client_lr, t) * m[n] / (np.sqrt(v_hat[n]) + eps) for n in x}
            states[i] = (m, v, v_hat) if moments == "persist" else states[i]
            new = mean(gradients)
            x_sum = {n: x_sum[n] + x_i[n] - x[n] for n in x}
            y_sum = {n: y_sum[n] + new[n] - ys[i][n] for n in x}
            ys[i] = new
        x = {n: x[n] + at(server_lr, t) * x_sum[n] / len(cohort) for n in x}
        y = {n: y[n] + y_sum[n] / problem.num_clients for n in x}
        yield x


def newton_schulz(m: Array) -> Array:
    """Muon's matrix of a momentum, by its singular values, which five odd polynomials send near 1."""
    left, values, right = np.linalg.svd(m, full_matrices=False)
    values = values / (np.sqrt(np.sum(values**2)) + 1e-7)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    inputs, outputs = m.shape
    return (left * values) @ right * np.sqrt(max(1.0, outputs / inputs))


def run_diloco(
    problem: Problem,
    client_lr: Rate,
    server_lr: Rate = 0.7,
    momentum: float = 0.9,
    weight_decay: float = 0.1,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    beta: float | None = None,
    adamw: str = "none",
) -> Iterator[Tree]:
    """θ after every round; with β that of Muon, for kernels not named by `adamw`, it is MuLoCo."""
    theta, buffer = problem.params, zeros(problem.params)
    states: list[Any] = [(zeros(theta), zeros(theta), zeros(theta), 0) for _ in range(problem.num_clients)]
    for r, cohort in enumerate(problem.cohorts):
        eta, outer = at(client_lr, r), []
        for i in cohort:
            y, (m, v, muon, t) = theta, states[i]
            for batch in problem.batches(r, i):
                g, t = grad(y, batch), t + 1
                m = {n: b1 * m[n] + (1 - b1) * g[n] for n in y}
                v = {n: b2 * v[n] + (1 - b2) * g[n] ** 2 for n in y}
                u = {n: m[n] / (1 - b1**t) / (np.sqrt(v[n] / (1 - b2**t)) + eps) for n in y}
                if beta is not None:
                    kernels = [n for n in y if n.endswith("kernel") and adamw not in n]
                    muon = {n: beta * muon[n] + g[n] for n in y}
                    u |= {n: newton_schulz(g[n] + beta * muon[n]) for n in kernels}
                y = {n: (1 - eta * weight_decay) * y[n] - eta * u[n] for n in y}
            states[i] = (m, v, muon, t)
            outer.append({n: theta[n] - y[n] for n in y})
        d = mean(outer)
        buffer = {n: momentum * buffer[n] + d[n] for n in d}
        theta = {n: theta[n] - at(server_lr, r) * (d[n] + momentum * buffer[n]) for n in d}
        yield theta
