"""What the theorems of the papers say, measured: results/theory.md.

    python benchmarks/theory.py [SECTION ...]

Most sections simulate an algorithm of the package on quadratics whose constants are known, with all clients in every
round, and compare the slope of a measured quantity, on logarithmic axes, with the exponent of the theorem. The last
section compares two readings on images, and takes the data set from FEDOPTAX_DATA. Minutes on two cores.
"""

import datetime
import math
import platform
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import fedoptax as fx
from attacks import commit, cpu
from fedoptax import tree
from fedoptax.algorithm import FedAlgorithm
from fedoptax.experiments.presets import find_setting
from fedoptax.schedules import inverse_sqrt

PAGE = Path(__file__).parent / "results" / "theory.md"
SEEDS, DIMENSION = 10, 16
HEAD = """# Theorems, measured

Made by `python benchmarks/theory.py`. Unless a section says otherwise: quadratics fᵢ = ½ (x − bᵢ)ᵀ Hᵢ (x − bᵢ) of
{dimension} coordinates, all clients in every round, {seeds} seeds; gradients have Gaussian noise. A slope is that of a
line through the logarithms, fitted for each seed; the interval is 95 percent (t) over the seeds. Theorems bound from
above: a rate that falls faster than its bound is reproduced too.
"""


class Quadratics(NamedTuple):
    """Clients' Hessians (N, d), which are diagonal, their optima (N, d), and the noise of a gradient's coordinate."""

    hessians: np.ndarray
    optima: np.ndarray
    noise: float

    def gradient(self, x: jax.Array, weights: jax.Array) -> jax.Array:
        """∇f, f the weighted mean of the clients' fᵢ."""
        return weights @ (self.hessians * (x - self.optima))


def quadratics(num_clients: int, noise: float = 1.0, spread: float = 0.0, uneven: float = 0.0) -> Quadratics:
    """Hessians from 0.2 to 1 (L = 1), optima in pairs on both sides of 0, Hessians `uneven` between clients."""
    rng = np.random.default_rng(0)
    half = spread * rng.normal(size=(-(-num_clients // 2), DIMENSION))
    optima = np.stack([half, -half], axis=1).reshape(-1, DIMENSION)[:num_clients]
    factors = np.exp(uneven * rng.uniform(-1, 1, (num_clients, DIMENSION)))
    return Quadratics(np.linspace(0.2, 1.0, DIMENSION) * factors / factors.max(0), optima, noise)


def simulation(
    make: Callable[..., FedAlgorithm], problem: Quadratics, rounds: int, measure: Callable[..., Any], layers: int = 1
) -> Callable[..., np.ndarray]:
    """Make `(steps, clients, **hypers) -> measures`, (seeds, rounds, …), one program for all numbers.

    The first `clients` take part in every round, with `steps` local steps; the parameters are `layers` equal parts of
    x; a measure is `measure(server, uploads, x, weights, **hypers)` after a round of `make(**hypers)`.
    """
    count = len(problem.optima)

    def split(x: jax.Array) -> Any:
        return {f"layer{i:02d}": part for i, part in enumerate(jnp.split(x, layers))}

    def grad_fn(params: Any, batch: Any) -> Any:
        (client, key), x = batch, joined(params)
        noise = problem.noise * jax.random.normal(key, x.shape)
        return jnp.zeros(()), split(hessians[client] * (x - optima[client]) + noise)

    hessians, optima = (jnp.asarray(a, jnp.float32) for a in problem[:2])

    @jax.jit
    def run_all(steps: Any, clients: Any, hypers: Any) -> Any:
        algorithm, weights = make(**hypers), jnp.where(jnp.arange(count) < clients, 1 / clients, 0.0)

        def a_round(state: Any, key: jax.Array) -> Any:
            server, states = state
            message, keys = algorithm.broadcast(server), jax.random.split(key, count)

            def train(state: Any, i: jax.Array, key: jax.Array) -> Any:
                batches = fx.Batches(steps, lambda k: (i, jax.random.fold_in(key, k)))
                return algorithm.client_update(grad_fn, message, state, batches)

            uploads, states, _ = jax.vmap(train)(states, jnp.arange(count), keys)
            parts = jax.vmap(tree.accumulate)(tree.accumulate_zero(uploads), weights, uploads)
            total = jax.tree.map(lambda a: jnp.sum(a, axis=0), parts)
            mean = tree.accumulate_result(total, tree.take(uploads, 0))
            server = algorithm.server_update(server, mean, fx.Cohort(count, count))
            return (server, states), measure(server, uploads, joined(algorithm.params(server)), weights, **hypers)

        def run(key: jax.Array) -> Any:
            params = split(jnp.full(DIMENSION, 2.0))
            states = jax.vmap(lambda _: algorithm.init_client(params))(jnp.arange(count))
            return jax.lax.scan(a_round, (algorithm.init(params), states), jax.random.split(key, rounds))[1]

        return jax.vmap(run)(jax.random.split(jax.random.key(0), SEEDS))

    def simulate(steps: int, clients: int, **hypers: Any) -> np.ndarray:
        return np.asarray(run_all(jnp.int32(steps), jnp.float32(clients), jax.tree.map(jnp.float32, hypers)))

    return simulate


def joined(params: Any) -> jax.Array:
    """The layers as one vector, also of stacked parameters."""
    return jnp.concatenate([params[name] for name in sorted(params)], axis=-1)


def interval(slopes: Sequence[float]) -> tuple[float, float]:
    """The mean of slopes, and half of its 95 percent interval."""
    half = stats.t.ppf(0.975, len(slopes) - 1) * np.std(slopes, ddof=1) / math.sqrt(len(slopes))
    return float(np.mean(slopes)), float(half)


class Row(NamedTuple):
    """A theorem's exponent and what was measured; `values` has a row for each place and a column for each seed."""

    what: str
    line: str
    axis: str
    places: Sequence[float]
    values: np.ndarray
    claim: float
    grows: bool = False

    def text(self) -> str:
        """The row of a table: slope, interval and verdict."""
        slope, half = interval([np.polyfit(np.log(self.places), np.log(column), 1)[0] for column in self.values.T])
        better = f"{'slower' if self.grows else 'faster'} than the bound"
        verdict = f"reproduced: {'as the bound' if abs(slope - self.claim) <= half else better}"
        verdict = verdict if slope <= self.claim + half else "not reproduced: above the bound's exponent"
        shown = ", ".join(f"{value:.3g}" for value in self.values.mean(axis=1))
        at = f"{self.axis} = {', '.join(f'{place:g}' for place in self.places)}"
        fitted = f"{slope:.2f} [{slope - half:.2f}, {slope + half:.2f}]"
        return f"| {self.what} | {self.line} | {at} | {shown} | {self.claim:.2f} | {fitted} | {verdict} |\n"


def table(rows: Sequence[Row]) -> str:
    """The table of some rows."""
    head = "| quantity | theorem | at | measured (mean) | exponent | slope | verdict |\n|---|---|---|---|---|---|---|\n"
    return head + "".join(row.text() for row in rows)


def square(x: jax.Array) -> jax.Array:
    return jnp.sum(x * x)


def layered(layers: int, problem: Quadratics, rounds: int) -> Callable[..., np.ndarray]:
    """Fed-LAMB on x in some layers: after each round the largest ‖θ̄ − θᵢ‖², the largest ‖∇fᵢ‖ and ‖∇f/v̂^¼‖²."""

    def measure(server: Any, uploads: Any, x: jax.Array, weights: jax.Array, lr: Any) -> jax.Array:
        thetas = joined(uploads.params)
        gap = jnp.max(jnp.sum((thetas - x) ** 2, axis=1))
        norm = jnp.max(jnp.linalg.norm(problem.hessians * (thetas - problem.optima), axis=1))
        return jnp.stack([gap, norm, square(problem.gradient(x, weights) / joined(server.shared) ** 0.25)])

    return simulation(lambda lr: fx.fedlamb(lr, v0=V0), problem, rounds, measure, layers)


V0 = 1e-2


def fedlamb() -> str:
    """Lemma 1, the consensus bound and its growth in T; Corollary 1, the rate in the layers h and the rounds R."""
    problem, alpha, steps = quadratics(8, spread=1.0), 0.01, (1, 2, 4, 8, 16, 32)
    layers, rounds = (1, 2, 4, 8, 16), (50, 100, 200, 400)
    runs = {h: layered(h, problem, rounds[-1]) for h in layers}
    largest = np.stack([runs[4](count, 8, lr=alpha)[..., :2].max(axis=1) for count in steps])
    gaps, m = largest[..., 0], largest[0, :, 1].max() + 3 * problem.noise * math.sqrt(DIMENSION)
    bound = alpha**2 * m**2 * 10**2 * (1 - 0.999) * DIMENSION / V0
    verdict = "holds (reproduced)" if gaps[0].max() <= bound else "is exceeded (not reproduced)"

    def mean_norm(h: int, r: int) -> np.ndarray:
        return runs[h](5, 8, lr=1 / math.sqrt(h * r))[:, :r, 2].mean(axis=1)

    by_layers, by_rounds = np.stack([mean_norm(h, 200) for h in layers]), np.stack([mean_norm(4, r) for r in rounds])
    rows = [
        Row("max ‖θ̄ − θᵢ‖²", "(25), 001:597–599, (T − 1)²", "T − 1", steps, gaps, 2.0, grows=True),
        Row("mean ‖∇f/v̂^¼‖²", "Corollary 1, 003:179–181", "h", layers, by_layers, -0.5),
        Row("the same", "Corollary 1, 003:179–181", "R", rounds, by_rounds, -0.5),
    ]
    return (
        f"## Fed-LAMB\n\nLemma 1 (003:149–153), T = 1: the bound α² M² φ_M² (1 − β₂) p/v₀ = {bound:.3g} (α = {alpha}, "
        f"M = {m:.3g}, φ_M = 10, β₂ = 0.999, p = {DIMENSION}, v₀ = {V0}) {verdict}: the largest distance of all "
        f"rounds, clients and seeds is {gaps[0].max():.3g}. It has no ‖u‖ in it, by which Fed-LAMB divides: a step is "
        "α φ(‖θ‖) whatever the gradient. Corollary 1 with α = 1/√(hR), T = 5. A step's length is α (Σ φ(‖θ^ℓ‖)²)^½ = "
        "α‖θ‖, however many layers there are: α shrinks with h, the descent slows, and the quantity grows. The growth "
        "with T − 1 is that of the distance after as many local steps.\n\n" + table(rows)
    )


def afo_rates() -> str:
    """Corollary 1: min E‖∇f‖² in m, K and T, with η_l = 0.06/(K L √T), η = √(K m), τ = G/L."""
    clients, steps, rounds = (2, 4, 8, 16, 32), (1, 2, 4, 8, 16), (3200, 6400, 12800, 25600, 51200)

    def simulated(problem: Quadratics, bound: float, last: int) -> Callable[..., np.ndarray]:
        """Make `(m, K, T) -> the smallest mean over the seeds`, (seeds,), for T up to `last`; G is the bound."""
        make = partial(fx.fedadagrad, tau=bound)
        run = simulation(make, problem, last, lambda s, u, x, w, **_: square(problem.gradient(x, w)))

        def smallest(m: int, k: int, t: int) -> np.ndarray:
            client_lr, server_lr = 0.06 / (k * math.sqrt(t)), math.sqrt(k * m)
            check_conditions(client_lr, server_lr, k, t, bound)
            norms = run(k, m, client_lr=client_lr, server_lr=server_lr)[:, :t]
            return norms[:, norms.mean(axis=0).argmin()]  # min E, not E min, which noise makes smaller

        return smallest

    bound, problem = 4.0, quadratics(32, noise=1.0, spread=0.3)
    short, long = simulated(problem, bound, rounds[0]), simulated(problem, bound, rounds[-1])
    line = "Corollary 1, 004:133"
    rows = [
        Row("min E‖∇f‖²", line, "m", clients, np.stack([short(m, 4, rounds[0]) for m in clients]), -0.5),
        Row("the same", line, "K", steps, np.stack([short(8, k, rounds[0]) for k in steps]), -0.5),
        Row("the same", line, "T", rounds, np.stack([long(8, 4, t) for t in rounds]), -0.5),
    ]
    bound, problem, last = 16.0, quadratics(8, noise=1.0, spread=4.0, uneven=1.0), 1600
    optimum = (problem.hessians * problem.optima).mean(0) / problem.hessians.mean(0)
    variance = np.square(problem.hessians * (optimum - problem.optima)).sum(1).mean()
    limit, smallest = last * DIMENSION * problem.noise**2 / variance, simulated(problem, bound, last)
    for name, steps, exponent in (("up to", (64, 128, 256, 512), -0.5), ("beyond", (1024, 2048), 0.0)):
        found = np.stack([smallest(8, k, last) for k in steps])
        rows.append(Row(f"the same, {name} K = T σ_l²/σ_g²", line, "K", steps, found, exponent))
    text = (
        f"FedAdagrad, η_l = 0.06/(K L √T), η = √(Km), τ = G/L with G = 4, which bounds the exact gradients at the "
        f"start (no number bounds Gaussian noise); with these rates all points meet both "
        f"conditions of Theorem 1 (004:109–119). m = 8, K = 4, T = {rounds[0]} where they do not vary. The last two "
        f"rows have clients that differ more (G = {bound:g}, T = {last}): T σ_l²/σ_g² = {limit:.3g}, with σ_g² at the "
        "optimum, and beyond it the bound falls no further with K."
    )
    return f"## Adaptive Federated Optimization, Corollary 1 (004:131–133)\n\n{text}\n\n" + table(rows)


def check_conditions(client_lr: float, server_lr: float, k: int, t: int, bound: float) -> None:
    """Check conditions I and II of Theorem 1 (004:109–119) with L = 1 and τ = G."""
    one = min(1, t ** (-1 / 6) * 120 ** (-1 / 3))
    two = min(server_lr / (2 * bound), bound / (4 * server_lr), t**-0.25 * math.sqrt(bound / server_lr))
    assert client_lr <= min(one, two) / (16 * k), (client_lr, server_lr, k, t)


def afo_decay() -> str:
    """Discussion (ii): η_l must decay, η need not: the floor of ‖∇f‖² where clients differ."""
    rounds = (200, 400, 800, 1600)
    finals: dict[str, float] = {}
    lines = ["| clients | rates | mean ‖∇f‖² | last | slope of the last two | verdict |\n" + "|---" * 6 + "|\n"]
    for place, norms_of, server_lr in (("quadratics", on_quadratics, 0.3), ("synthetic(1, 1)", on_synthetic, 0.1)):
        for name, rates in {
            f"η_l = 0.1, η = {server_lr}": (0.1, server_lr),
            f"η_l = 0.1/√t, η = {server_lr}": (inverse_sqrt(0.1), server_lr),
            f"η_l = 0.1, η = {10 * server_lr:g}/√t": (0.1, inverse_sqrt(10 * server_lr)),
        }.items():
            norms = norms_of(fx.fedadagrad(*rates, tau=0.01), rounds[-1])
            every = rounds[-1] // norms.shape[1]
            late = np.stack([norms[:, t // 2 // every : t // every].mean(axis=1) for t in rounds])
            slope, half = interval(np.log2(late[-1] / late[-2]).tolist())
            shown = ", ".join(f"{value:.3g}" for value in late.mean(axis=1))
            share = late[-1].mean() / finals.setdefault(place, late[-1].mean())
            verdict = "falls" if slope + half < 0 else "a floor stays"
            verdict += ": reproduced" if (verdict == "falls") == ("0.1/" in name) else ": not reproduced"
            fitted = f"{slope:.2f} [{slope - half:.2f}, {slope + half:.2f}]"
            lines.append(f"| {place} | {name} | {shown} | {share:.2g} | {fitted} | {verdict} |\n")
    return (
        '## "One must decay η_l, not the server learning rate η" (004:173)\n\nFedAdagrad, K = 10, on quadratics of '
        "unequal Hessians and on synthetic(1, 1) of FedProx (30 clients of uneven size, all in every round, batches of "
        f"10, weights by examples); mean ‖∇f‖² over the second half of T = {', '.join(map(str, rounds))} rounds, on "
        "synthetic of every tenth round; the last of them also as a multiple of that with constant rates. A floor "
        "stays where the interval of the slope reaches 0; by the text none with a decaying η_l.\n\n" + "".join(lines)
    )


def on_quadratics(algorithm: FedAlgorithm, rounds: int) -> np.ndarray:
    """Return ‖∇f‖² after each round, (seeds, rounds)."""
    problem = quadratics(8, noise=0.1, spread=2.0, uneven=1.0)
    return simulation(lambda: algorithm, problem, rounds, lambda s, u, x, w: square(problem.gradient(x, w)))(10, 8)


def on_synthetic(algorithm: FedAlgorithm, rounds: int) -> np.ndarray:
    """Return ‖∇f‖² after every tenth round, of all training examples, (seeds, rounds / 10)."""
    task, key = fx.load_task("synthetic"), jax.random.key(0)

    def metrics(params: Any, batch: Any) -> dict[str, fx.metrics.Metric]:
        def gradient(x: jax.Array, y: jax.Array) -> Any:
            return jax.grad(task.loss)(params, {"x": x[None], "y": y[None]}, key)

        rows = jax.vmap(gradient)(batch["x"], batch["y"]), jnp.ones(len(batch["y"]))
        return {"norm": fx.metrics.Metric(rows, lambda s: tree.square_norm(s[0]) / s[1] ** 2, higher_is_better=False)}

    options: Any = {"rounds": rounds, "cohort_size": 30, "batch_size": 10, "local_steps": 10, "eval_every": 10}
    measured = replace(task, metrics=metrics, primary_metric="norm", higher_is_better=False, test=task.clients.examples)
    options |= {"weighting": "examples", "progress": False}
    runs = [fx.run(measured, algorithm, seed=seed, **options) for seed in range(SEEDS)]
    return np.array([[a for a in run.history.column("test_norm") if a is not None] for run in runs])


def convergence_measure(server: Any, gradient: Callable[[jax.Array], jax.Array], lr: Any, rho: float) -> jax.Array:
    """FAFED's M_t, equation (4), at a synchronisation: x̄_t is x̄_{t+1} + η m̄/A, as line 12 steps.

    `server` is `fafed`'s state after a round of η_t = `lr`, `gradient` ∇f of the parameters as one vector.
    """
    x, m, v = (joined(part) for part in server[:3])
    moved = m / (jnp.sqrt(v) + rho)
    return square(moved) / 4 + square(gradient(x + lr * moved) - m) / (4 * rho**2)


def fafed() -> str:
    """Theorem 2: the mean of M_t in T and N with its constants and q = (T/N²)^{1/3}."""
    rho, problem, longest = 1.0, quadratics(8, noise=1.0, spread=0.3), 8000
    clients, iterations = (1, 2, 4, 8), (500, 1000, 2000, 4000, 8000)

    def advised(n: int, t: int) -> int:
        return max(1, round((t / n**2) ** (1 / 3)))

    def make(lr: Any, alpha: Any) -> FedAlgorithm:
        return fx.fafed(lambda t: lr[t], lambda t: alpha[t], rho=rho)

    rounds = max(t // advised(n, t) for n, t in [(4, t) for t in iterations] + [(n, 2000) for n in clients])

    def measure(server: Any, uploads: Any, x: jax.Array, weights: jax.Array, lr: Any, alpha: Any) -> jax.Array:
        return convergence_measure(server, lambda x: problem.gradient(x, weights), lr[server.t - 1], rho)

    run = simulation(make, problem, rounds, measure)

    def mean_measure(n: int, t: int, is_literal: bool = False) -> np.ndarray:
        q = advised(n, t)
        lr, alpha, _ = fx.fafed_theory(1.0, n, t if is_literal else q, t // q, rho=rho)
        times = jnp.arange(longest + 100)
        return run(q, n, lr=np.asarray(lr(times)), alpha=np.asarray(jax.vmap(alpha)(times)))[:, 1 : t // q].mean(axis=1)

    by_iterations, bounds = np.stack([mean_measure(4, t) for t in iterations]), np.log(iterations) + 1
    bounds /= np.power(iterations, 2 / 3)

    def exponent(places: Sequence[float]) -> float:
        return float(np.polyfit(np.log(places), np.log(bounds), 1)[0])

    by_clients, exchanges = np.stack([mean_measure(n, 2000) for n in clients]), [t // advised(4, t) for t in iterations]
    literal = np.stack([mean_measure(4, t, is_literal=True) for t in iterations])
    theorem = "Theorem 2, 002:217–223, (ln T + 1)/(NT)^{2/3}"
    rows = [
        Row("mean M_t", theorem, "T", iterations, by_iterations, exponent(iterations)),
        Row("the same", "Remark 1, 002:227, linear speed-up", "N", clients, by_clients, -2 / 3),
        Row("the same", "Remark 1, 002:227, Õ(ε⁻²) rounds", "T/q", exchanges, by_iterations, exponent(exchanges)),
        Row("the same, T as printed", theorem, "T", iterations, literal, exponent(iterations)),
    ]
    return (
        "## FAFED, Theorem 2 and Remark 1\n\nM_t of equation (4) (002:189) at the synchronisations, with the η_t and "
        "α_t of `fafed_theory`, and q = (T/N²)^{1/3}: T/q = (NT)^{2/3} rounds. It reads q for the T in c and w, as the "
        "bound's 12 L q/(ρ T) has it; the last row has T, as printed. The theorem is about a uniformly random iterate; "
        "a run's parameters are the last.\n\n" + table(rows)
    )


def fedams() -> str:
    """Two readings of FedAMS's τ = .01 in FAFED's experiments, on Fashion-MNIST."""
    setting: Any = find_setting("fashion-mnist", "paper:fafed-low")
    task, finals = fx.load_task("fashion-mnist", **setting.task), []
    for changes in ({}, {"eps": 0.01}):
        algorithm = fx.fedams(**setting.hyperparameters["fedams"] | changes)
        options = setting.run | {"rounds": 30, "eval_every": 30, "progress": False}
        finals.append([fx.run(task, algorithm, seed=seed, **options).history[-1]["test_accuracy"] for seed in range(3)])
    ahead, half = interval(100 * np.subtract(*finals))
    return (
        "## FedAMS's τ = .01 in FAFED's experiments (002:251)\n\nTest accuracy in percent after 30 rounds of "
        f"`paper:fafed-low` on Fashion-MNIST, 3 seeds: {100 * np.mean(finals[0]):.1f} with √ε, the least denominator, "
        f"equal to τ, as in the presets; {100 * np.mean(finals[1]):.1f} with ε, under the root, equal to τ, a "
        f"denominator of 0.1; the difference is {ahead:.1f} [{ahead - half:.1f}, {ahead + half:.1f}] points.\n"
    )


SECTIONS = (fedlamb, afo_rates, afo_decay, fafed, fedams)


def main() -> None:
    """Run the sections that are named, or all; the page keeps the others as they were."""
    names = sys.argv[1:] or [section.__name__ for section in SECTIONS]
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    texts = dict(re.findall(r"<!-- (\w+) -->\n(.*?)(?=\n<!-- |\Z)", old, re.DOTALL))
    versions = f"fedoptax {fx.__version__}, jax {jax.__version__}, Python {platform.python_version()}, {cpu()}"
    for section in [section for section in SECTIONS if section.__name__ in names]:
        texts[section.__name__] = f"{section()}\nMeasured {datetime.date.today()}, commit {commit()}, {versions}.\n"
        texts = {one.__name__: texts.get(one.__name__, f"Not run yet: {one.__name__}.\n") for one in SECTIONS}
        parts = [f"<!-- {one} -->\n{text}" for one, text in texts.items()]
        PAGE.write_text("\n".join([HEAD.format(dimension=DIMENSION, seeds=SEEDS), *parts]), encoding="utf-8")


if __name__ == "__main__":
    main()
