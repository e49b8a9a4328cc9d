"""Fed-LAMB and Fed-AMS, that is Local AMSGrad [Karimi, Li, Li; Algorithm 1 of 000_* and 003_*], line by line.

Line numbers are those of 003_*; 001_* lacks its line 6 and has one gradient per round. The defaults are the
specification's readings; the others are arguments.
"""

from collections.abc import Callable, Iterator

import numpy as np

from oracles.fedopt import Rate, at
from oracles.problem import Problem, Tree, grad, means, zeros


def identity(norm: float) -> float:
    """φ of the papers' experiments."""
    return norm


def clipped(norm: float) -> float:
    """φ with assumption H4: 0 < φ_m <= φ <= φ_M."""
    return min(max(norm, 1e-3), 10.0)


def groups(names: list[str], layers: str) -> dict[str, list[str]]:
    """The layers ℓ: one tensor each, or the tensors of a module together."""
    out: dict[str, list[str]] = {}
    for name in names:
        out.setdefault(name if layers == "tensor" else name.split("/")[0], []).append(name)
    return out


def norm(tree: Tree, members: list[str]) -> float:
    """‖·‖ of a layer."""
    return float(np.sqrt(sum(np.sum(tree[n] ** 2) for n in members)))


def run(
    problem: Problem,
    lr: Rate,
    lamb: bool,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    v0: float = 1e-4,
    weight_decay: float = 0.0,
    phi: Callable[[float], float] = clipped,
    layers: str = "tensor",
    momentum: str = "persist",
    bias_correction: str | bool = False,
    second_moment: str = "server",
    gradient: str = "current",
    weighting: str = "uniform",
) -> Iterator[Tree]:
    """θ̄ after every round; `lamb=False` is Fed-AMS: line 12 without layers, θ ← θ − α p."""
    theta_bar = problem.params  # 2
    v_hat = {n: np.full_like(theta_bar[n], v0) for n in theta_bar}  # 2
    moments = [zeros(theta_bar) for _ in range(problem.num_clients)]  # m_i⁰ = 0, a device's own
    taken = [0] * problem.num_clients  # steps since m was last zero
    own_v = [v_hat] * problem.num_clients  # v_{0,i} = v_0, 001 line 9
    for r, cohort in enumerate(problem.cohorts):  # 3
        alpha = at(lr, r)
        sent = []
        for i in cohort:  # 4
            theta = theta_bar  # 5
            v = v_hat if second_moment == "server" else own_v[i]  # 6
            m, s = moments[i], taken[i]
            if momentum == "reset":
                m, s = zeros(theta), 0
            batches = problem.batches(r, i)
            for t, batch in enumerate(batches, start=1):  # 7
                point = theta if gradient == "current" else theta_bar
                g = grad(point, batches[0] if gradient == "once" else batch)  # 8
                m = {n: b1 * m[n] + (1 - b1) * g[n] for n in g}  # 9
                v = {n: b2 * v[n] + (1 - b2) * g[n] ** 2 for n in g}  # 10
                s = s + 1
                ratio = m
                if bias_correction:
                    ratio = {n: m[n] / (1 - b1 ** (t if bias_correction == "both" else s)) for n in g}  # 9
                if bias_correction == "both":  # 9 and 10: overwritten
                    m, v = ratio, {n: v[n] / (1 - b2**t) for n in g}
                p = {n: ratio[n] / (np.sqrt(v_hat[n]) + eps) for n in g}  # 11
                if not lamb:
                    theta = {n: theta[n] - alpha * p[n] for n in g}
                    continue
                new = {}
                for members in groups(list(g), layers).values():  # 12
                    u = {n: p[n] + weight_decay * theta[n] for n in members}
                    length = norm(u, members)
                    scale = phi(norm(theta, members)) / length if length > 0 else 0.0
                    for n in members:
                        new[n] = theta[n] - alpha * scale * u[n]
                theta = new
            moments[i], taken[i], own_v[i] = m, s, v
            sent.append((theta, v))  # 14
        theta_bar, v_bar = means(sent, problem.weights(r, weighting))  # 16
        v_hat = {n: np.maximum(v_hat[n], v_bar[n]) for n in v_hat}  # 16
        yield theta_bar
