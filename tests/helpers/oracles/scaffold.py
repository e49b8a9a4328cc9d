"""SCAFFOLD [Karimireddy et al. 2020b, Algorithm 1], line by line; `mu` adds FedProx's term.

The step of line 17 on x is that of a server by `rule` [Reddi et al. 2021, Algorithm 2], by default SGD's.
"""

from collections.abc import Iterator
from typing import Any

from oracles.fedopt import Rate, Server, at
from oracles.problem import Problem, Tree, grad, mean, zeros


def run(
    problem: Problem,
    client_lr: Rate,
    server_lr: Rate = 1.0,
    option: int = 2,
    weighting: str = "uniform",
    mu: float = 0.0,
    rule: str = "fedavg",
    **options: Any,
) -> Iterator[Tree]:
    """x after every round."""
    x, c, server = problem.params, zeros(problem.params), Server(rule, server_lr, **options)  # 1
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
        x = server.step(x, dx, r)  # 17
        c = {n: c[n] + len(cohort) / problem.num_clients * dc[n] for n in x}  # 17
        yield x
