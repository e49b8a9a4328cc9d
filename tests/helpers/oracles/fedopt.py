"""Adaptive Federated Optimization [Reddi et al. 2021]: Algorithms 1, 2 and 5, line by line, and FedProx.

FedAvgM is Algorithm 1 with server momentum (Hsu et al. 2019); FedAMS is Algorithm 1 of Wang, Lin and Chen
(2022) and FedAMSGrad its option 2. "A1:n" and "A2:n" are line n of Algorithm 1 and 2.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracles.problem import Problem, Tree, grad, mean, zeros

Rate = float | Callable[[int], float]


def at(rate: Rate, t: int) -> float:
    """η_t: "we also allow η and η_l to depend on the round t"; t = 0 in the first round (A1:2)."""
    return rate(t) if callable(rate) else rate


def local_changes(problem: Problem, t: int, x: Tree, client_lr: Rate, mu: float = 0.0) -> list[Tree]:
    """Δᵢ of the clients of round t, after plain steps from x."""
    deltas = []
    for i in problem.cohorts[t]:  # A2:5
        y = x  # A2:4
        for batch in problem.batches(t, i):  # A2:6
            g = grad(y, batch)  # A2:7
            g = {n: g[n] + mu * (y[n] - x[n]) for n in x}  # FedProx: ∇[f + μ/2 ‖y − x‖²]
            y = {n: y[n] - at(client_lr, t) * g[n] for n in x}  # A2:8
        deltas.append({n: y[n] - x[n] for n in x})  # A2:9
    return deltas


@dataclass
class Server:
    """The server of Algorithm 1 and 2: what it makes of Δ_t by a rule, which is an algorithm's name.

    `v0` is what v starts at, where that is neither τ² (Algorithm 2) nor, with a bias correction, 0.
    """

    rule: str
    server_lr: Rate = 1.0
    momentum: float = 0.9
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3
    eps: float = 1e-3
    debias: bool = False
    final_lr: float = 0.1
    gamma: float = 1e-3
    decay: bool = True
    v0: float | None = None
    moments: tuple[Tree, ...] = ()

    def step(self, x: Tree, delta: Tree, t: int) -> Tree:
        """x_{t+1}."""
        rule, b1, b2, eta = self.rule, self.b1, self.b2, at(self.server_lr, t)
        if not self.moments:  # A2:1  v₋₁ = τ²
            from_0 = rule in ("fedadabound", "fedams", "fedamsgrad") or self.debias
            v0 = self.v0 if self.v0 is not None else 0.0 if from_0 else self.tau**2
            self.moments = zeros(x), {n: np.full_like(x[n], v0) for n in x}, zeros(x)
        m, v, v_hat = self.moments
        if rule in ("fedavg", "fedavgm"):
            m = {n: (self.momentum if rule == "fedavgm" else 0) * m[n] + delta[n] for n in x}
            step = m  # A1:11 with SGD
        else:
            m = {n: b1 * m[n] + (1 - b1) * delta[n] for n in x}  # A2:11
            if rule == "fedadagrad":
                v = {n: v[n] + delta[n] ** 2 for n in x}  # A2:12
            elif rule == "fedyogi":
                v = {n: v[n] - (1 - b2) * delta[n] ** 2 * np.sign(v[n] - delta[n] ** 2) for n in x}  # A2:13
            else:
                v = {n: b2 * v[n] + (1 - b2) * delta[n] ** 2 for n in x}  # A2:14
            v_hat = {n: np.maximum(v_hat[n], v[n]) for n in x}
            if rule == "fedadabound":  # Luo et al. 2019, Algorithm 2: η̂ = Clip(α/√V, η_l(t), η_u(t)), η = η̂/√t
                s = t + 1
                low, high = self.final_lr * (1 - 1 / (self.gamma * s + 1)), self.final_lr * (1 + 1 / (self.gamma * s))
                rate = {n: np.clip(eta / np.sqrt(v[n]), low, high) / (np.sqrt(s) if self.decay else 1) for n in x}
                step, eta = {n: rate[n] * m[n] for n in x}, 1.0
            elif rule == "fedams":
                v_hat = {n: np.maximum(v_hat[n], self.eps) for n in x}
                step = {n: m[n] / np.sqrt(v_hat[n]) for n in x}
            elif rule == "fedamsgrad":
                step = {n: m[n] / (np.sqrt(v_hat[n]) + self.eps) for n in x}
            else:
                if self.debias:  # Kingma, Ba (2015), section 2, last paragraph
                    eta = eta * np.sqrt(1 - b2 ** (t + 1)) / (1 - b1 ** (t + 1))
                step = {n: m[n] / (np.sqrt(v[n]) + self.tau) for n in x}  # A2:15
        self.moments = m, v, v_hat
        return {n: x[n] + eta * step[n] for n in x}


def run(
    problem: Problem,
    rule: str,
    client_lr: Rate,
    server_lr: Rate = 1.0,
    weighting: str = "examples",
    mu: float = 0.0,
    **options: Any,
) -> Iterator[Tree]:
    """x_1, x_2, …: the global model after every round."""
    x, server = problem.params, Server(rule, server_lr, **options)  # A2:1
    for t in range(len(problem.cohorts)):  # A2:2, A2:3
        deltas = local_changes(problem, t, x, client_lr, mu)
        x = server.step(x, mean(deltas, problem.weights(t, weighting)), t)  # A2:10, Algorithm 5 for weights
        yield x
