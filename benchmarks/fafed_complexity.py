"""How FAFED's rounds depend on the number of clients and on the accuracy wanted: results/fafed-complexity.md.

    python benchmarks/fafed_complexity.py

Wu, Huang, Hu, Huang 2023, *Faster Adaptive Federated Learning*, Remark 1, claim Õ(N⁻¹ ε⁻³) iterations (a linear
speed-up in the clients N) and Õ(ε⁻²) rounds until ‖∇f‖ ≤ ε. Here the same examples are shared out among any N, so f
stays, and a step takes so few of them that noise decides. For each N and ε the step is the best of a grid. A file per
problem, method and N keeps what was measured, in results/fafed-complexity, and is not measured again; the page is
written once all are there.
"""

import argparse
import datetime
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import fedoptax as fx
from attacks import commit, cpu
from fedoptax._files import read_json, write_json
from fedoptax.algorithm import FedAlgorithm
from fedoptax.data.federated import FederatedData
from fedoptax.tasks.analytic import quadratic

RESULTS = Path(__file__).parent / "results"
HEAD = """# FAFED: rounds by clients and by accuracy

Made by `python benchmarks/fafed_complexity.py`. The claim (Wu et al. 2023, Remark 1): Õ(N⁻¹ ε⁻³) iterations, that is
gradients per client, until ‖∇f‖ ≤ ε: N times the clients, an Nth of the iterations. And Õ(ε⁻²) rounds, where the
paper's Table 1 gives FedAvg Õ(ε⁻⁴). All clients take part, q steps a round on batches of b; the same examples are
shared out iid among any N, so f stays. M_t and the constants of Theorem 2: [theory.md](theory.md).

A number is the first round after which the mean of ‖∇f‖ over {seeds} seeds is at most ε, at the best step of the grid
(each twice the one before; FAFED with α of {alphas} and ρ = 1); – is never. A slope is that of a line through the
logarithms, with its 95 percent interval: −1 in N is a linear speed-up.
Date: {date}. Machine: {cores} CPU cores ({cpu}), beside other work. Versions: fedoptax {fedoptax}, jax {jax},
Python {python}. Commit {commit}.
"""


class Problem(NamedTuple):
    """A task for any number of clients, and how it is run; `targets` are values of ε, `rates` of steps by method."""

    title: str
    make: Any
    rounds: int
    steps: int
    batch: int
    clients: tuple[int, ...]
    targets: tuple[float, ...]
    rates: dict[str, tuple[float, ...]]
    every: int


def noisy_quadratic(num_clients: int) -> fx.Task:
    """One quadratic, and examples of which each is mostly noise."""
    task = quadratic(1, dimension=20, examples=SHARED, noise=5.0, heterogeneity=0.0)
    parts = np.array_split(np.arange(SHARED), num_clients)
    task = replace(task, clients=FederatedData.from_parts(task.clients.client(0), parts))
    matrix, optimum = jnp.asarray(task.test["H"][0]), jnp.asarray(task.test["optimum"][0])
    return with_gradient_norm(task, {}, lambda params, batch: matrix @ (params["x"] - optimum))


def fashion_mnist(num_clients: int) -> fx.Task:
    """Fashion-MNIST and FAFED's CNN."""
    task = load_fashion_mnist(num_clients)

    def gradient(params: Any, batch: Any) -> Any:
        return jax.grad(task.loss)(params, batch | {"mask": jnp.ones(SAMPLE)}, jax.random.key(0))

    return with_gradient_norm(task, fashion_mnist_sample(), gradient)


@cache
def load_fashion_mnist(num_clients: int) -> fx.Task:
    return fx.load_task("fashion-mnist", partition="iid", model="fafed_fmnist_cnn", num_clients=num_clients)


@cache
def fashion_mnist_sample() -> dict[str, np.ndarray]:
    """Training examples, the same for every number of clients."""
    return {name: array[:SAMPLE] for name, array in load_fashion_mnist(20).clients.client(0).items()}


def with_gradient_norm(task: fx.Task, sample: dict[str, np.ndarray], gradient: Any) -> fx.Task:
    """Return `task` with ‖∇f‖ as its only metric, of `gradient(params, sample)`."""

    def norm(params: Any, batch: Any) -> dict[str, jax.Array]:
        of_sample = {name: array[0] for name, array in batch.items() if name in sample}
        return {"gradient_norm": jnp.linalg.norm(ravel_pytree(gradient(params, of_sample))[0])[None]}

    return replace(
        task,
        test={name: array[None] for name, array in sample.items()} or {"row": np.zeros(1, np.float32)},
        metrics=norm,
        test_owners=None,
        predict=None,
        primary_metric="gradient_norm",
        higher_is_better=False,
    )


def rates(low: float, high: float) -> tuple[float, ...]:
    """Return rates from `low` to `high`, each twice the one before."""
    return tuple(low * 2**i for i in range(round(math.log2(high / low)) + 1))


PROBLEMS = {
    "quadratic": Problem(
        "A quadratic, d = 20, noise 5", noisy_quadratic, 400, 10, 1, (1, 2, 4, 8, 16, 32), (0.7, 0.5, 0.35, 0.25),
        {"fafed": rates(0.004, 2.048), "fedavg": rates(0.002, 0.512)}, 2,
    ),
    "fashion-mnist": Problem(
        "Fashion-MNIST, a CNN, clients iid", fashion_mnist, 300, 10, 5, (1, 2, 4, 8, 16),
        (0.4, 0.3, 0.25, 0.2), {"fafed": rates(0.008, 0.128), "fedavg": rates(0.032, 0.512)}, 5,
    ),
}  # fmt: skip
ALPHAS, SEEDS = (0.01, 0.1), (0, 1, 2, 3)
SHARED, SAMPLE = 32_000, 1_000  # examples of the quadratic, and of Fashion-MNIST's gradient


def algorithms(name: str) -> list[Any]:
    if name == "fedavg":
        return [lambda rate: fx.fedavg(rate)]
    return [partial(make_fafed, alpha) for alpha in ALPHAS]


def make_fafed(alpha: float, rate: Any) -> FedAlgorithm:
    return fx.fafed(rate, alpha, rho=1.0)


def measure(problem: Problem, name: str, num_clients: int) -> dict[str, Any]:
    """Return the gradient norms, (settings, rounds), each a mean over seeds; infinite from where a seed diverged."""
    task, curves = problem.make(num_clients), []
    for make in algorithms(name):
        by_seed = []
        for seed in SEEDS:
            found = fx.sweep(
                task, make, {"rate": problem.rates[name]}, rounds=problem.rounds, cohort_size=num_clients,
                local_steps=problem.steps, batch_size=problem.batch, seed=seed, eval_every=problem.every,
                progress=False,
            )  # fmt: skip
            by_seed.append([_norms(result.history, problem) for result in found])
        curves += np.mean(by_seed, axis=0).tolist()
    return {"norms": [[float(f"{min(norm, 1e9):.4g}") for norm in curve] for curve in curves]}


def _norms(history: Any, problem: Problem) -> np.ndarray:
    norms = np.full(problem.rounds // problem.every, np.inf)
    for row in history:
        if row["round"] % problem.every == 0 and row["test_gradient_norm"] is not None:
            norms[row["round"] // problem.every - 1] = row["test_gradient_norm"]
    return norms


def rounds_to(found: dict[str, Any], target: float, problem: Problem) -> int | None:
    """Return the first round of the best setting after which the norm is at most `target`."""
    below = np.asarray(found["norms"]) <= target
    first = [int(np.argmax(curve)) for curve in below if curve.any()]
    return (min(first) + 1) * problem.every if first else None


def slope(x: Sequence[float], y: Sequence[int | None]) -> tuple[float, float]:
    """Return the slope of log y over log x and the half width of its 95 percent interval, NaN of fewer than 3 pairs."""
    from scipy import stats

    known = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if b is not None]
    if len(known) < 3:
        return math.nan, math.nan
    line = stats.linregress(*zip(*known, strict=True))
    return line.slope, stats.t.ppf(0.975, len(known) - 2) * line.stderr


def show(line: tuple[float, float]) -> str:
    """Write a slope with the half width of its interval."""
    return "–" if math.isnan(line[0]) else "{:.2f} ± {:.2f}".format(*line)


def judge(lines: Sequence[tuple[float, float]], bound: float) -> str:
    """Say of how many slopes the interval reaches the bound or what is below it."""
    known = [line for line in lines if not math.isnan(line[0])]
    met = sum(middle - half <= bound for middle, half in known)
    word = "reproduced" if met == len(known) else "partly" if met else "not reproduced"
    return f"{word} ({met} of {len(known)} intervals reach {bound:g} or less)"


def section(problem: Problem, found: dict[tuple[str, int], dict[str, Any]]) -> str:
    """Return the tables of a problem: rounds by N and ε, and the slopes in both."""
    lines = [f"\n## {problem.title}: q = {problem.steps}, b = {problem.batch}, {problem.rounds} rounds\n"]
    for name in ("fafed", "fedavg"):
        table = {n: [rounds_to(found[name, n], target, problem) for target in problem.targets] for n in problem.clients}
        lines.append(f"| {name}: N | {' | '.join(f'ε = {e:g}' for e in problem.targets)} | slope in 1/ε |")
        lines.append("|" + " --- |" * (len(problem.targets) + 2))
        inverse = [1 / target for target in problem.targets]
        by_accuracy = [slope(inverse, row) for row in table.values()]
        for (n, row), line in zip(table.items(), by_accuracy, strict=True):
            cells = ["–" if cell is None else str(cell) for cell in row]
            lines.append(f"| {n} | {' | '.join(cells)} | {show(line)} |")
        by_clients = [slope(problem.clients, [row[i] for row in table.values()]) for i in range(len(problem.targets))]
        lines += [f"| slope in N | {' | '.join(map(show, by_clients))} | |", ""]
        if name == "fafed":
            lines += [f"Linear speed-up in N: {judge(by_clients, -1)}. Õ(ε⁻²) rounds: {judge(by_accuracy, 2)}.", ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=RESULTS / "fafed-complexity", help="folder for what was measured")
    work, sections = parser.parse_args(arguments).work, []
    for key, problem in PROBLEMS.items():
        found = {}
        for name in ("fafed", "fedavg"):
            for n in problem.clients:
                file = work / f"{key}-{name}-{n}.json"
                if not file.is_file():
                    write_json(file, measure(problem, name, n))
                found[name, n] = read_json(file)
                reached = [rounds_to(found[name, n], target, problem) for target in problem.targets]
                print(key, name, n, reached, flush=True)
        sections.append(section(problem, found))
    head = HEAD.format(
        seeds=len(SEEDS), alphas=" and ".join(map(str, ALPHAS)),
        date=datetime.date.today().isoformat(), cores=os.cpu_count(), cpu=cpu(), fedoptax=fx.__version__,
        jax=jax.__version__, python=platform.python_version(), commit=commit(),
    )  # fmt: skip
    (RESULTS / "fafed-complexity.md").write_text(head + "".join(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
