"""The problem the oracles and the library are both run on: ragged, heterogeneous, partially participating.

A tanh network with a softmax loss on seven clients. Every client has its own number of minibatches (1 to 6),
its own batch sizes and its own labelling, so that means over steps, examples and clients all differ.
Trees of the oracles are flat dictionaries, "module/tensor" -> float64 array; `nest` makes the library's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray
Tree = dict[str, Array]
Batch = dict[str, Array]

INPUTS, HIDDEN, OUTPUTS = 4, 5, 3
STEPS = (4, 1, 3, 6, 2, 5, 3)
"""Minibatches of each client in a round."""
PARTIAL = ((0, 2, 5), (1, 2, 6), (5, 0, 3), (4, 1, 2), (6, 3, 0))
"""Three of seven, not sorted; client 4 is first drawn in round 3, client 6 comes back after gaps."""
FULL = (tuple(range(7)),) * 5


@dataclass(frozen=True)
class Problem:
    """Initial parameters, each client's minibatches, and the cohort of every round."""

    params: Tree
    data: tuple[tuple[Batch, ...], ...]
    cohorts: tuple[tuple[int, ...], ...]

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.data)

    def batches(self, r: int, i: int) -> list[Batch]:
        """Client i's minibatches in round r, in order: the same ones, started at another one every round."""
        own = self.data[i]
        return [own[(k + r) % len(own)] for k in range(len(own))]

    def examples(self, i: int) -> int:
        """The number of examples of client i."""
        return sum(len(batch["y"]) for batch in self.data[i])

    def weights(self, r: int, weighting: str) -> list[float]:
        """Weights over round r's cohort that sum to 1."""
        raw = [1.0 if weighting == "uniform" else float(self.examples(i)) for i in self.cohorts[r]]
        return [w / sum(raw) for w in raw]


def make(cohorts: Sequence[tuple[int, ...]] = PARTIAL, steps: Sequence[int] = STEPS, seed: int = 3) -> Problem:
    """The problem, with its cohorts and its number of steps a client."""
    rng = np.random.default_rng(seed)
    params = {
        "hidden/bias": np.zeros(HIDDEN),  # zero on purpose: a layer whose norm is 0
        "hidden/kernel": rng.normal(size=(INPUTS, HIDDEN)) / 2,
        "out/bias": rng.normal(size=OUTPUTS) / 4,
        "out/kernel": rng.normal(size=(HIDDEN, OUTPUTS)) / 2,
    }
    data = []
    for i, count in enumerate(steps):
        truth = rng.normal(size=(INPUTS, OUTPUTS)) * 2  # its own labelling
        shift = rng.normal(size=INPUTS) / 2
        batches = []
        for k in range(count):
            size = 2 + (i + 2 * k + i * k) % 3  # 2 to 4 examples
            x = rng.normal(size=(size, INPUTS)) + shift
            y = np.argmax(x @ truth + rng.normal(size=(size, OUTPUTS)), axis=1)
            batches.append({"x": x, "y": y.astype(np.int32)})
        data.append(tuple(batches))
    return Problem(params, tuple(data), tuple(cohorts))


def full(problem: Problem) -> Problem:
    """The same data with everyone taking part."""
    return replace(problem, cohorts=FULL)


def loss_and_grad(params: Tree, batch: Batch) -> tuple[float, Tree]:
    """Mean cross-entropy over the batch and its gradient, by hand."""
    x, y = batch["x"], batch["y"]
    h = np.tanh(x @ params["hidden/kernel"] + params["hidden/bias"])
    logits = h @ params["out/kernel"] + params["out/bias"]
    shifted = logits - logits.max(axis=1, keepdims=True)
    logp = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(len(y))
    loss = -logp[rows, y].mean()
    d_logits = np.exp(logp)
    d_logits[rows, y] -= 1.0
    d_logits /= len(y)
    d_h = d_logits @ params["out/kernel"].T
    d_pre = d_h * (1.0 - h**2)
    return float(loss), {
        "hidden/bias": d_pre.sum(axis=0),
        "hidden/kernel": x.T @ d_pre,
        "out/bias": d_logits.sum(axis=0),
        "out/kernel": h.T @ d_logits,
    }


def grad(params: Tree, batch: Batch) -> Tree:
    """g(y; ξ)."""
    return loss_and_grad(params, batch)[1]


def zeros(like: Tree) -> Tree:
    """A tree of zeros."""
    return {n: np.zeros_like(like[n]) for n in like}


def mean(trees: Sequence[Tree], weights: Sequence[float] | None = None) -> Tree:
    """Σ wᵢ treeᵢ with weights that sum to 1; uniform without weights."""
    w = [1.0 / len(trees)] * len(trees) if weights is None else weights
    return {n: sum((wi * tree[n] for wi, tree in zip(w, trees)), np.zeros_like(trees[0][n])) for n in trees[0]}


def means(sent: Sequence[Sequence[Tree]], weights: Sequence[float] | None = None) -> list[Tree]:
    """The mean of each of the trees that every client sent."""
    return [mean(trees, weights) for trees in zip(*sent, strict=True)]


def nest(tree: Tree) -> dict[str, dict[str, Array]]:
    """{"hidden/kernel": a} -> {"hidden": {"kernel": a}}, the library's parameters."""
    out: dict[str, dict[str, Array]] = {}
    for name, leaf in tree.items():
        module, tensor = name.split("/")
        out.setdefault(module, {})[tensor] = leaf
    return out


def flatten(tree: Mapping[str, Mapping[str, Any]]) -> Tree:
    """The inverse of `nest`, in float64."""
    return {f"{m}/{t}": np.asarray(leaf, np.float64) for m, sub in tree.items() for t, leaf in sub.items()}
