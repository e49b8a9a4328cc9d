"""Mime and MimeLite [Karimireddy et al. 2020a, Algorithm 1, Table of base algorithms (U, V)], line by line.

∇f_i(x), "the full local-batch gradient", is the mean of the round's minibatch gradients at x.
"""

from collections.abc import Iterator

import numpy as np

from oracles.fedopt import Rate, at
from oracles.problem import Problem, Tree, grad, mean, zeros


def run(
    problem: Problem,
    lr: Rate,
    base: str = "sgdm",
    mime: bool = True,
    b1: float = 0.9,
    b2: float = 0.99,
    eps: float = 1e-3,
    weighting: str = "uniform",
    control: str = "cohort",
) -> Iterator[Tree]:
    """x after every round.

    `control="cohort"` is the paper: c is the mean gradient at x of the very cohort that trains, which takes a
    second exchange within the round. `control="previous"` is what one exchange a round allows: c is the mean
    gradient that the previous cohort uploaded, at the previous x, and 0 in the first round.
    """
    x = problem.params
    m, v = zeros(x), zeros(x)  # s
    c_before = zeros(x)
    for r, cohort in enumerate(problem.cohorts):
        eta = at(lr, r)
        weights = problem.weights(r, weighting)
        full = [mean([grad(x, batch) for batch in problem.batches(r, i)]) for i in cohort]  # ∇f_i(x)
        c = mean(full, weights) if control == "cohort" else c_before  # "communicate c"
        ys = []
        for i in cohort:
            y = x
            for batch in problem.batches(r, i):
                g = grad(y, batch)
                if mime:
                    g_x = grad(x, batch)
                    g = {n: g[n] - g_x[n] + c[n] for n in x}  # Mime
                u = {n: (1 - b1) * g[n] + b1 * m[n] for n in x}  # U, SGDm; s is not updated
                if base == "adam":
                    u = {n: u[n] / (np.sqrt(v[n]) + eps) for n in x}  # U, Adam
                y = {n: y[n] - eta * u[n] for n in x}
            ys.append(y)
        g = mean(full, weights)
        m = {n: (1 - b1) * g[n] + b1 * m[n] for n in x}  # V
        v = {n: (1 - b2) * g[n] ** 2 + b2 * v[n] for n in x}  # V
        x = mean(ys, weights)
        c_before = g
        yield x
