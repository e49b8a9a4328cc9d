"""FedExP, Δ-SGD, FedCM, FedDyn and FedNova, each from its paper's listing.

FedExP [Jhunjhunwala et al. 2023, Algorithm 1]; Δ-SGD [Kim et al. 2024, Algorithm 1]; FedCM [Xu et al.
2021]; FedDyn [Acar et al. 2021, Algorithm 1]; FedNova [Wang et al. 2020, Section 4].
"""

import itertools
from collections.abc import Iterator

import numpy as np

from oracles.fedopt import Rate, at, local_changes
from oracles.problem import Problem, Tree, grad, mean, zeros


def square(tree: Tree) -> float:
    """‖tree‖², all tensors together."""
    return float(sum(np.sum(a * a) for a in tree.values()))


def run_fedexp(problem: Problem, client_lr: Rate, eps: float = 1e-3, variant: str = "paper") -> list[Tree]:
    """x after every round; the authors' code evaluates (x_t + x_{t−1})/2 after the first."""
    x, iterates = problem.params, []
    for t, cohort in enumerate(problem.cohorts):
        deltas = [{n: -a for n, a in delta.items()} for delta in local_changes(problem, t, x, client_lr)]  # w − w_i
        d = mean(deltas)
        m = len(cohort)
        e = eps if variant == "paper" else m * eps * (0.998**2) ** (t + 1)
        eta_g = max(1.0, sum(square(d_i) for d_i in deltas) / (2 * m * (square(d) + e)))
        x = {n: x[n] - eta_g * d[n] for n in x}
        iterates.append(x)
    if variant == "paper":
        return iterates
    return [iterates[0], *(mean([a, b]) for a, b in itertools.pairwise(iterates))]


def run_delta_sgd(
    problem: Problem,
    gamma: float = 2.0,
    delta: float = 0.1,
    lr0: float = 0.2,
    theta0: float = 1.0,
    server_lr: float = 1.0,
    variant: str = "paper",
) -> Iterator[Tree]:
    """x after every round; η_k is found on the minibatch of step k + 1."""
    x = problem.params
    for t, cohort in enumerate(problem.cohorts):
        ys = []
        for i in cohort:
            y = [x]
            eta, theta = lr0, theta0
            for k, batch in enumerate(problem.batches(t, i)):
                g = grad(y[k], batch)
                if k > 0:  # η_k, θ_k of the step before
                    g_before = grad(y[k - 1], batch)
                    moved = np.sqrt(square({n: y[k][n] - y[k - 1][n] for n in x}))
                    changed = np.sqrt(square({n: g[n] - g_before[n] for n in x}))
                    new = min(gamma * moved / (2 * changed), np.sqrt(1 + delta * theta) * eta)
                    new += 1e-8 if variant == "released" else 0
                    eta, theta = new, new / eta
                elif variant == "released":
                    eta, theta = np.sqrt(1 + delta * theta) * eta, np.sqrt(1 + delta * theta)
                y.append({n: y[k][n] - eta * g[n] for n in x})
            ys.append(y[-1])
        y_bar = mean(ys)
        x = {n: x[n] + server_lr * (y_bar[n] - x[n]) for n in x}
        yield x


def run_fedcm(problem: Problem, client_lr: Rate, alpha: float = 0.1, server_lr: Rate = 1.0) -> Iterator[Tree]:
    """x after every round; Δ_t with the number of steps of the client that uses it."""
    x, total = problem.params, zeros(problem.params)
    for t, cohort in enumerate(problem.cohorts):
        eta_l, ys = at(client_lr, t), []
        for i in cohort:
            y, batches = x, problem.batches(t, i)
            delta_t = {n: total[n] / len(batches) for n in x}
            for batch in batches:
                g = grad(y, batch)
                v = {n: alpha * g[n] + (1 - alpha) * delta_t[n] for n in x}
                y = {n: y[n] - eta_l * v[n] for n in x}
            ys.append(y)
        y_bar = mean(ys)
        total = {n: (x[n] - y_bar[n]) / eta_l for n in x}  # K Δ_{t+1}
        x = {n: x[n] - at(server_lr, t) * eta_l * total[n] for n in x}
        yield x


def run_feddyn(problem: Problem, client_lr: Rate, alpha: float = 0.01) -> Iterator[Tree]:
    """θ after every round; the clients' argmin is K steps of SGD on the same objective."""
    theta, h = problem.params, zeros(problem.params)
    gradients = [zeros(theta) for _ in range(problem.num_clients)]  # ∇L_k(θ_k^0) = 0
    for t, cohort in enumerate(problem.cohorts):
        eta, thetas = at(client_lr, t), []
        for k in cohort:
            theta_k = theta
            for batch in problem.batches(t, k):
                g = grad(theta_k, batch)
                step = {n: g[n] - gradients[k][n] + alpha * (theta_k[n] - theta[n]) for n in theta}
                theta_k = {n: theta_k[n] - eta * step[n] for n in theta}
            gradients[k] = {n: gradients[k][n] - alpha * (theta_k[n] - theta[n]) for n in theta}
            thetas.append(theta_k)
        moved = {n: sum(theta_k[n] - theta[n] for theta_k in thetas) for n in theta}
        h = {n: h[n] - alpha / problem.num_clients * moved[n] for n in theta}
        bar = mean(thetas)
        theta = {n: bar[n] - h[n] / alpha for n in theta}
        yield theta


def run_fednova(
    problem: Problem, client_lr: Rate, server_lr: Rate = 1.0, momentum: float = 0.0, weighting: str = "examples"
) -> Iterator[Tree]:
    """x after every round, with a_i written out: how often step k's gradient is in the change."""
    x = problem.params
    for t, cohort in enumerate(problem.cohorts):
        eta, p = at(client_lr, t), problem.weights(t, weighting)
        directions, lengths = [], []
        for i in cohort:
            batches, y, gradients = problem.batches(t, i), x, []
            a_i = [sum(momentum**j for j in range(len(batches) - k)) for k in range(len(batches))]
            buffer = zeros(x)
            for batch in batches:
                gradients.append(grad(y, batch))
                buffer = {n: momentum * buffer[n] + gradients[-1][n] for n in x}
                y = {n: y[n] - eta * buffer[n] for n in x}
            directions.append({n: sum(a * g[n] for a, g in zip(a_i, gradients)) / sum(a_i) for n in x})  # G a/‖a‖₁
            lengths.append(sum(a_i))
        tau_eff = sum(p_i * a for p_i, a in zip(p, lengths))
        d = mean(directions, p)
        x = {n: x[n] - at(server_lr, t) * tau_eff * eta * d[n] for n in x}
        yield x
