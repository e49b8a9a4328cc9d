"""Client optimizers whose state is averaged and broadcast with x [004_*, Section 1, "Related work"].

Local AdaAlter is Algorithm 4 of Xie et al. (2019); Lookahead follows Zhang et al. (2019b), Algorithm 1.
"""

from collections.abc import Iterator

import numpy as np

from oracles.fedopt import Rate, at
from oracles.problem import Problem, Tree, grad, means, zeros


def run_momentum(
    problem: Problem,
    client_lr: float,
    server_lr: float,
    decay: float,
    client_state: str,
    weighting: str = "examples",
    server_decay: float = 0.0,
) -> Iterator[Tree]:
    """FedOpt (Algorithm 1) with heavy-ball clients, z ← μ z + g, y ← y − η_l z, and a heavy-ball server.

    With `client_state="server"` every local step starts from the server's z.
    """
    x, z_bar, z_server = problem.params, zeros(problem.params), zeros(problem.params)
    for r, cohort in enumerate(problem.cohorts):
        sent = []
        for i in cohort:
            y, z = x, z_bar
            for batch in problem.batches(r, i):
                g = grad(y, batch)
                z = {n: decay * (z_server if client_state == "server" else z)[n] + g[n] for n in x}
                y = {n: y[n] - client_lr * z[n] for n in x}
            sent.append((y, z))
        y_bar, z_mean = means(sent, problem.weights(r, weighting))
        z_server = {n: server_decay * z_server[n] + x[n] - y_bar[n] for n in x}
        x = {n: x[n] - server_lr * z_server[n] for n in x}
        z_bar = z_mean if client_state == "average" else z_bar
        yield x


def run_adaalter(
    problem: Problem, lr: Rate, eps: float = 1.0, b0: float = 1.0, server_lr: float = 1.0, weighting: str = "examples"
) -> Iterator[Tree]:
    """Local AdaAlter: B² is fixed between synchronisations, t' ε² stands for the squares not yet in it."""
    x = problem.params
    b_square = {n: np.full_like(x[n], b0**2) for n in x}  # B₀² = b₀² 1
    for r, cohort in enumerate(problem.cohorts):
        sent = []
        for i in cohort:
            y, a_square = x, b_square
            for k, batch in enumerate(problem.batches(r, i), start=1):  # t' = mod(t − 1, H) + 1
                g = grad(y, batch)
                y = {n: y[n] - at(lr, r) * g[n] / np.sqrt(b_square[n] + k * eps**2) for n in x}
                a_square = {n: a_square[n] + g[n] ** 2 for n in x}
            sent.append((y, a_square))
        y_bar, b_square = means(sent, problem.weights(r, weighting))  # A² = B² = mean A²
        x = {n: x[n] + server_lr * (y_bar[n] - x[n]) for n in x}
        yield x


def run_lookahead(
    problem: Problem,
    client_lr: Rate,
    alpha: float = 0.5,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weighting: str = "examples",
) -> Iterator[Tree]:
    """Lookahead with Adam inside: fast weights θ at the clients, slow weights φ at the server.

    Adam is Kingma and Ba (2015), section 2, in the order of its last paragraph (ε beside the uncorrected √v).
    The moments and their number of steps are averaged, the number rounded.
    """
    slow = problem.params
    m_bar, v_bar, count = zeros(slow), zeros(slow), 0
    for r, cohort in enumerate(problem.cohorts):
        sent, counts = [], []
        for i in cohort:
            fast, m, v, s = slow, m_bar, v_bar, count  # θ_{t,0} = φ_{t−1}
            for batch in problem.batches(r, i):
                g = grad(fast, batch)
                s = s + 1
                m = {n: b1 * m[n] + (1 - b1) * g[n] for n in g}
                v = {n: b2 * v[n] + (1 - b2) * g[n] ** 2 for n in g}
                size = at(client_lr, r) * np.sqrt(1 - b2**s) / (1 - b1**s)
                fast = {n: fast[n] - size * m[n] / (np.sqrt(v[n]) + eps) for n in g}  # θ = θ + A(L, θ, d)
            sent.append((fast, m, v))
            counts.append(s)
        weights = problem.weights(r, weighting)
        fast_bar, m_bar, v_bar = means(sent, weights)
        slow = {n: slow[n] + alpha * (fast_bar[n] - slow[n]) for n in slow}  # φ_t = φ_{t−1} + α(θ_{t,k} − φ_{t−1})
        count = round(sum(w * s for w, s in zip(weights, counts)))
        yield slow
