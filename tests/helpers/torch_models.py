"""The oracles' network in PyTorch, with the names and shapes of its JAX twin; tests that import this need torch."""

from typing import Any

import jax
import numpy as np
import torch

import fedoptax as fx
import fedoptax.torch as ft
from oracles.compare import eager_rounds
from oracles.problem import Problem, make, nest
from small import small_task

torch.set_num_threads(1)


class Dense(torch.nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = torch.nn.Parameter(torch.sin(torch.arange(inputs * outputs) + 1.0).reshape(inputs, outputs))
        self.bias = torch.nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Any) -> Any:
        return x @ self.kernel + self.bias


class Net(torch.nn.Module):
    """`oracles.compare.log_probabilities` are of this network."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = Dense(4, 5), Dense(5, 3)

    def forward(self, x: Any) -> Any:
        return self.out(torch.tanh(self.hidden(x)))


class NormNet(torch.nn.Module):
    """With batch normalisation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm = Dense(4, 5), torch.nn.BatchNorm1d(5)
        self.drop, self.out = torch.nn.Dropout(), Dense(5, 3)

    def forward(self, x: Any) -> Any:
        return self.out(self.drop(torch.tanh(self.norm(self.hidden(x)))))


def cross_entropy(module: Any, batch: Any) -> Any:
    return torch.nn.functional.cross_entropy(module(batch["x"]), batch["y"].long())


def net(problem: Problem, dtype: str) -> Net:
    """The network with the problem's first parameters."""
    module = Net().to(getattr(torch, dtype))
    ft.load_params(module, jax.tree.map(lambda a: np.asarray(a, dtype), nest(problem.params)))
    return module


def rounds(algorithm: fx.FedAlgorithm, grad_fn: Any, problem: Problem, dtype: str) -> tuple[list[Any], ...]:
    """Eager rounds of the problem on NumPy's arrays, see `eager_rounds`."""

    def convert(batch: Any, dtype: str) -> Any:
        return {"x": batch["x"].astype(dtype), "y": batch["y"]}

    return eager_rounds(algorithm, grad_fn, problem, dtype, algorithm.weighting, convert)


def torch_task(module: Any = None) -> fx.Task:
    """The twin of `small.small_task` whose model is a module."""

    def nll(module: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(module(batch["x"]), batch["y"], reduction="none")

    module, twin = module or net(make(), "float32"), small_task()
    more = {"primary_metric": "nll", "higher_is_better": False}
    return ft.module_task("small", module, cross_entropy, {"nll": nll}, twin.clients, twin.test, **more)
