"""SCAFFOLD [Karimireddy et al. 2020b, Algorithm 1], line by line; `mu` adds FedProx's term.

`adam` is FedAdam's server in place of the step of line 17 [Reddi et al. 2021, Algorithm 2, lines 11, 14 and 15].
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from oracles.fedopt import Rate, at
from oracles.problem import Problem, Tree, grad, mean, zeros


class Adam(NamedTuple):
    """FedAdam's constants; `v0` is what v starts at, τ² where None."""

    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3
    debias: bool = False
    v0: float | None = None


def run(
    problem: Problem,
    client_lr: Rate,
    server_lr: Rate = 1.0,
    option: int = 2,
    weighting: str = "uniform",
    mu: float = 0.0,
    adam: Adam | None = None,
) -> Iterator[Tree]:
    """x after every round."""
    x, c = problem.params, zeros(problem.params)  # 1
    m, v = zeros(x), zeros(x)
    if adam and not adam.debias:
        v = {n: np.full_like(x[n], adam.tau**2 if adam.v0 is None else adam.v0) for n in x}
    controls = [zeros(x) for _ in range(problem.num_clients)]  # 2
    for r, cohort in enumerate(problem.cohorts):  # 3, 4
        eta_l = at(client_lr, r)
        delta_y, delta_c = [], []
        for i in cohort:  # 6
            c_i = controls[i]
            y = x  # 7
            batches = problem.batches(r, i)
            k = len(batches)  # K: the steps this client takes
            for batch in batches:  # 8
                g = grad(y, batch)  # 9
                g = {n: g[n] + mu * (y[n] - x[n]) for n in x}
                y = {n: y[n] - eta_l * (g[n] - c_i[n] + c[n]) for n in x}  # 10
            if option == 1:
                c_plus = mean([grad(x, batch) for batch in batches])  # 12, option I
            else:
                c_plus = {n: c_i[n] - c[n] + (x[n] - y[n]) / (k * eta_l) for n in x}  # 12, option II
            delta_y.append({n: y[n] - x[n] for n in x})  # 13
            delta_c.append({n: c_plus[n] - c_i[n] for n in x})  # 13
            controls[i] = c_plus  # 14
        weights = problem.weights(r, weighting)
        dx, dc = mean(delta_y, weights), mean(delta_c, weights)  # 16
        if adam is None:
            x = {n: x[n] + at(server_lr, r) * dx[n] for n in x}  # 17
        else:
            m = {n: adam.b1 * m[n] + (1 - adam.b1) * dx[n] for n in x}
            v = {n: adam.b2 * v[n] + (1 - adam.b2) * dx[n] ** 2 for n in x}
            eta = at(server_lr, r)
            if adam.debias:
                eta *= np.sqrt(1 - adam.b2 ** (r + 1)) / (1 - adam.b1 ** (r + 1))
            x = {n: x[n] + eta * m[n] / (np.sqrt(v[n]) + adam.tau) for n in x}
        c = {n: c[n] + len(cohort) / problem.num_clients * dc[n] for n in x}  # 17
        yield x
