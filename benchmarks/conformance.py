"""How far nine code bases' FedAdam and FedYogi are from Algorithm 2 of "Adaptive Federated Optimization".

    python benchmarks/conformance.py          # prints the tables of docs/conformance.md

Each rule is transcribed, in float64 NumPy, from what docs/conformance.md says of its source; the clients' work is the
same for all. The problem: softmax regression on scikit-learn's digits, ten clients with two digits each, all of them in
every round, five full-batch steps of 0.5.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits

Array = np.ndarray
SETTING = {"lr": 0.03, "b1": 0.9, "b2": 0.99, "tau": 1e-3}
"""What all rules get in the first table; β₁ is 0.9 in all defaults too."""


def start_at_zero(tau: float) -> float:
    return 0.0


def correct_nothing(b1: float, b2: float, t: int) -> float:
    return 1.0


def correct_both(b1: float, b2: float, t: int) -> float:
    """√(1−β₂ᵗ)/(1−β₁ᵗ)."""
    return np.sqrt(1 - b2**t) / (1 - b1**t)


def add_tau(root: Array, tau: float, b2: float, t: int) -> Array:
    return root + tau


class Rule(NamedTuple):
    """A server's update: what v starts at, what it accumulates, and the step; t is 1 in the first round."""

    v0: Callable[[float], float] = start_at_zero
    correction: Callable[[float, float, int], float] = correct_nothing
    denominator: Callable[[Array, float, float, int], Array] = add_tau  # of √v
    is_yogi: bool = False
    squares_m: bool = False


def square(tau: float) -> float:
    return tau**2


RULES = {
    "Algorithm 2, APPFL": Rule(square),
    "google-research": Rule(correction=correct_both),
    "Flower": Rule(correction=lambda b1, b2, t: correct_both(b1, b2, t + 1)),
    "FedLab, FL-bench, FL-Simulator": Rule(),
    "OpenFL": Rule(  # ε is added to the corrected root
        correction=correct_both, denominator=lambda root, tau, b2, t: root + tau * np.sqrt(1 - b2**t)
    ),
    "FedExP": Rule(  # m/(1−β₁) / √(v/(1−β₂) + ε)
        correction=lambda b1, b2, t: np.sqrt(1 - b2) / (1 - b1),
        denominator=lambda root, tau, b2, t: np.sqrt(root**2 + (1 - b2) * tau),
        squares_m=True,
    ),
    "Yogi: Algorithm 2, APPFL": Rule(square, is_yogi=True),
    "Yogi: google-research": Rule(correction=correct_both, is_yogi=True),
    "Yogi: Flower, FedLab, FL-bench": Rule(is_yogi=True),
    "Yogi: FedScale": Rule(lambda tau: tau, is_yogi=True),
}
DEFAULTS = {
    "Flower": ("Flower", SETTING | {"lr": 0.1}),
    "FL-bench": ("FedLab, FL-bench, FL-Simulator", SETTING | {"lr": 0.1, "b2": 0.999}),
    "FL-Simulator": ("FedLab, FL-bench, FL-Simulator", SETTING | {"lr": 1.0, "tau": 0.01}),
    "OpenFL": ("OpenFL", SETTING | {"lr": 0.01, "b2": 0.999, "tau": 1e-8}),
    "FedExP, CIFAR": ("FedExP", SETTING | {"lr": 0.1, "tau": 0.01}),
    "Flower's Yogi": ("Yogi: Flower, FedLab, FL-bench", SETTING | {"lr": 0.01}),
    "FedScale": ("Yogi: FedScale", SETTING | {"lr": 3e-3, "tau": 1e-8}),
}
"""What a code base runs with if nothing is set, where it says so of η, β₁, β₂ and τ."""


class Server:
    """A server that follows a rule: `step` takes the mean Δ of a round and returns the change of x."""

    def __init__(self, rule: Rule, lr: float, b1: float, b2: float, tau: float) -> None:
        self.rule, self.lr, self.b1, self.b2, self.tau, self.t = rule, lr, b1, b2, tau, 0
        self.m, self.v = 0.0, rule.v0(tau)

    def step(self, delta: Array) -> Array:
        rule, self.t = self.rule, self.t + 1
        self.m = self.b1 * self.m + (1 - self.b1) * delta
        squares = np.square(self.m if rule.squares_m else delta)
        if rule.is_yogi:
            self.v = self.v - (1 - self.b2) * squares * np.sign(self.v - squares)
        else:
            self.v = self.b2 * self.v + (1 - self.b2) * squares
        step = self.lr * rule.correction(self.b1, self.b2, self.t) * self.m
        return step / rule.denominator(np.sqrt(self.v), self.tau, self.b2, self.t)


def make_clients() -> list[tuple[Array, Array]]:
    """Digits and one-hot labels of ten clients; client i has the even examples of digit i and the odd ones of i + 1."""
    x, y = load_digits(return_X_y=True)
    x, first = np.hstack([x / 16, np.ones((len(x), 1))]), np.arange(len(x)) % 2 == 0
    shares = [((y == i) & first) | ((y == (i + 1) % 10) & ~first) for i in range(10)]
    return [(x[share], np.eye(10)[y[share]]) for share in shares]


def loss_and_gradient(w: Array, x: Array, y: Array) -> tuple[float, Array]:
    logits = x @ w
    logits -= logits.max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return float(-(y * log_p).sum(axis=1).mean()), x.T @ (np.exp(log_p) - y) / len(x)


def run(rule: Rule, setting: dict[str, float], rounds: int = 100) -> tuple[list[Array], float]:
    """x after every round, x₀ first, and the clients' mean loss at the end."""
    clients, server = make_clients(), Server(rule, **setting)
    path = [np.zeros((65, 10))]
    for _ in range(rounds):
        deltas = []
        for x, y in clients:
            w = path[-1]
            for _ in range(5):
                w = w - 0.5 * loss_and_gradient(w, x, y)[1]
            deltas.append(w - path[-1])
        path.append(path[-1] + server.step(np.mean(deltas, axis=0)))
    return path, float(np.mean([loss_and_gradient(path[-1], x, y)[0] for x, y in clients]))


def tables() -> str:
    """The distances ‖x − x of Algorithm 2‖ / ‖x of Algorithm 2 − x₀‖, and the defaults, as Markdown."""
    lines = [
        "| rule, with the same η, β and τ | difference after 2 rounds | after 100 | loss after 100 |",
        "|---|---|---|---|",
    ]
    reference: list[Array] = []
    for name, rule in RULES.items():
        path, loss = run(rule, SETTING)
        if "Algorithm 2" in name:
            reference = path
        apart = [np.linalg.norm(path[r] - reference[r]) / np.linalg.norm(reference[r] - path[0]) for r in (2, 100)]
        lines.append(f"| {name} | {apart[0]:.0%} | {apart[1]:.0%} | {loss:.2g} |")
    lines += ["", "| code, with its own defaults | η | β₂ | τ | loss after 100 |", "|---|---|---|---|---|"]
    for name, (rule_name, own) in DEFAULTS.items():
        loss = run(RULES[rule_name], own)[1]
        lines.append(f"| {name} | {own['lr']:g} | {own['b2']:g} | {own['tau']:g} | {loss:.2g} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(tables(), end="")
