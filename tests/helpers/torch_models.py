"""The oracles' network in PyTorch, with the names and shapes of its JAX twin; tests that import this need torch."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import fedoptax as fx
import fedoptax.torch as ft
from oracles.problem import Problem, flatten, nest

torch.set_num_threads(1)


class Dense(torch.nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = torch.nn.Parameter(torch.sin(torch.arange(inputs * outputs) + 1.0).reshape(inputs, outputs))
        self.bias = torch.nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Any) -> Any:
        return x @ self.kernel + self.bias


class Net(torch.nn.Module):
    """`oracles.compare.loss` and `small.log_probabilities` are of this network."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = Dense(4, 5), Dense(5, 3)

    def forward(self, x: Any) -> Any:
        return self.out(torch.tanh(self.hidden(x)))


class NormNet(torch.nn.Module):
    """With batch normalisation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.drop, self.out = (
            Dense(4, 5),
            torch.nn.BatchNorm1d(5),
            torch.nn.Dropout(),
            Dense(5, 3),
        )

    def forward(self, x: Any) -> Any:
        return self.out(self.drop(torch.tanh(self.norm(self.hidden(x)))))


def cross_entropy(module: Any, batch: Any) -> Any:
    return torch.nn.functional.cross_entropy(module(batch["x"]), batch["y"].long())


def net(problem: Problem, dtype: str) -> Net:
    """The network with the problem's first parameters."""
    module = Net().to(getattr(torch, dtype))
    ft.load_params(module, jax.tree.map(lambda a: np.asarray(a, dtype), nest(problem.params)))
    return module


def assert_close(got: Any, want: Any, rtol: float, atol: float) -> None:
    """The leaves of two trees are close."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def rounds(
    algorithm: fx.FedAlgorithm, grad_fn: Any, problem: Problem, dtype: str
) -> tuple[list[dict[str, np.ndarray]], list[float], Sequence[Any]]:
    """Eager rounds of the problem: parameters and training loss after each, client states after the last."""
    params = jax.tree.map(lambda a: jnp.asarray(a, dtype), nest(problem.params))
    server, states = algorithm.init(params), [algorithm.init_client(params) for _ in problem.data]
    path, losses = [], []
    for r, cohort in enumerate(problem.cohorts):
        batches = [[{"x": b["x"].astype(dtype), "y": b["y"]} for b in problem.batches(r, i)] for i in cohort]
        weights = None if algorithm.weighting == "uniform" else [problem.examples(i) for i in cohort]
        old = [states[i] for i in cohort]
        server, new, info = fx.eager.run_round(algorithm, grad_fn, server, old, batches, weights, problem.num_clients)
        for i, state in zip(cohort, new):
            states[i] = state
        path.append(flatten(jax.tree.map(np.asarray, algorithm.params(server))))
        losses.append(float(info.train_loss))
    return path, losses, states
