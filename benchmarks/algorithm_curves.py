"""The measured curves of docs/algorithms: the algorithms of `PAGES` on digits, and Theorem 1's counter-example.

    python benchmarks/algorithm_curves.py                  # everything, about 6 minutes on 2 busy cores
    python benchmarks/algorithm_curves.py --only theorem1  # or the name of a page: fedavg, fedadam, mime, ...

Writes docs/algorithms/images/*.png, and, in a full run, docs/algorithms/measured.md; `--only` leaves the table alone.
Setting: task digits (50 clients, Dirichlet 0.3, MLP), 3 seeds, 100 rounds, 10 clients a round, batch 10, 1 local epoch,
each algorithm with its preset and the weighting of its paper. `--out FOLDER` writes elsewhere.
"""

import argparse
import datetime
import io
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import fedoptax as fx
from fedoptax.experiments.presets import PRESETS
from fedoptax.experiments.result import DivergedError

DOCS = Path(__file__).parents[1] / "docs" / "algorithms"
SEEDS, ROUNDS, COHORT, BATCH, TARGET = (0, 1, 2), 100, 10, 10, 0.9
# A page, and the algorithms drawn on it beside FedAvg.
PAGES = {
    "fedavg": ("fedavg",),
    "fedavgm": ("fedavgm",),
    "fedadam": ("fedadagrad", "fedyogi", "fedadam"),
    "fedams": ("fedams", "fedamsgrad"),
    "fedprox": ("fedprox",),
    "scaffold": ("scaffold",),
    "local-amsgrad": ("local_amsgrad",),
    "fedlamb": ("fedlamb", "local_amsgrad"),
    "stem": ("stem",),
    "fafed": ("fafed", "stem"),
    "naive-adaptive": ("naive_adaptive",),
    "local-adaalter": ("local_adaalter",),
    "lookahead": ("lookahead",),
    "mime": ("mimelite", "mime"),
    "fedexp": ("fedexp",),
    "delta-sgd": ("delta_sgd",),
    "fedcm": ("fedcm",),
    "feddyn": ("feddyn",),
    "fednova": ("fednova",),
    "fedlion": ("fedlion", "fafed"),
    "fedadamw": ("fedadamw",),
    "fedada2": ("fedada2", "fedadagrad"),
    "fadamgc": ("fadamgc", "scaffold"),
    "diloco": ("diloco",),
    "muloco": ("muloco", "diloco"),
}
PLAIN = "fedavg, server_lr 1"
COLORS = ("#0068b0", "#cf5300", "#00997a", "#a8327f")
GREY, INK = "#6a7079", "#24292f"


HEAD = """# Measured

Made by `python benchmarks/algorithm_curves.py`, together with the images of the pages.

- Task `digits`: {clients} clients of {low} to {high} examples, Dirichlet 0.3, the task's MLP, 359 test examples.
- {seeds} seeds, {rounds} rounds, {cohort} clients per round sampled at random, batch {batch}, 1 local epoch, the
  weights of each paper, the hyper-parameters of `src/fedoptax/experiments/presets.toml` (and once `fedavg` with a
  server step of 1).
- Test accuracy is that of the last synchronised model; ± is the standard deviation over the seeds (n − 1 below). A seed
  decides the initial model, the cohorts and the order of examples, and is the same for all algorithms; the partition is
  the same for all seeds.
- Bytes are those of all clients of a round, down and up together. *Rounds to 0.9* lists the first round with test
  accuracy of at least 0.9, one number per seed; a dash means never within the run.
- Hardware: {cores} CPU cores, no GPU. Versions: fedoptax {fedoptax}, jax {jax}, numpy {numpy}, Python {python}.
- Date: {date}.

The presets are tuned on this one small task (grids: [LOG.md](../../LOG.md)), and with 3 seeds a hundredth of last
accuracy is within the spread; the order on another task may differ. FAFED, STEM, DiLoCo and MuLoCo are defined for full
participation; here, as everything else, they see {cohort} of {clients} clients per round.

| algorithm | hyper-parameters | last accuracy | mean of last 10 rounds | rounds to 0.9 | bytes per round |
|---|---|---|---|---|---|"""


class Curves(NamedTuple):
    """Test accuracy (seeds, rounds), NaN after a divergence; bytes of a round, both ways, all clients."""

    accuracy: np.ndarray
    bytes_per_round: int
    hyperparameters: Mapping[str, Any]


def measure(task: fx.Task, name: str, hyperparameters: Mapping[str, Any]) -> Curves:
    algorithm = fx.ALGORITHMS[name](**hyperparameters)
    accuracy, sent = np.full((len(SEEDS), ROUNDS), np.nan), 0
    for i, seed in enumerate(SEEDS):
        try:
            result = fx.run(task, algorithm, rounds=ROUNDS, cohort_size=COHORT, batch_size=BATCH, seed=seed, label=name)
        except DivergedError as error:
            result = error.result
        rows = list(result.history)
        accuracy[i, : len(rows)] = [row["test_accuracy"] for row in rows]
        sent = rows[0]["bytes_up"] + rows[0]["bytes_down"] if rows else sent
    return Curves(accuracy, sent, hyperparameters)


def rounds_to(accuracy: np.ndarray, target: float) -> int | None:
    """The first round (from 1) whose accuracy reaches the target."""
    reached = np.flatnonzero(accuracy >= target)
    return int(reached[0]) + 1 if reached.size else None


def figure_of_page(page: str, measured: Mapping[str, Curves]) -> Figure:
    figure, axes = blank("Round", "Test accuracy")
    baseline = {"fedavg": measured["fedavg"], **({PLAIN: measured[PLAIN]} if page == "fedavg" else {})}
    drawn = {name: measured[name] for name in PAGES[page] if name != "fedavg"}
    rounds = np.arange(1, ROUNDS + 1)
    for i, (name, curves) in enumerate({**baseline, **drawn}.items()):
        color = INK if i == 0 else COLORS[i - 1]
        mean, std = curves.accuracy.mean(axis=0), curves.accuracy.std(axis=0, ddof=1)
        axes.fill_between(rounds, mean - std, mean + std, color=color, alpha=0.15, linewidth=0)
        axes.plot(rounds, mean, color=color, linewidth=1.5, linestyle="--" if i == 0 else "-", label=name)
    axes.set_ylim(0.4, 1.0)
    axes.set_xlim(0, ROUNDS)
    axes.set_title(
        f"digits, {len(SEEDS)} seeds, mean ± standard deviation", loc="right", fontsize=8.5, color=GREY, pad=5
    )
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    return figure


def figure_of_theorem_1(rounds: int = 300) -> Figure:
    """x after each round of the 3-client problem with one step a round, from x = 10; the optimum is 0."""
    figure, axes = blank("Round", "|x|, distance to the optimum")
    task = fx.load_task("counterexample")
    naive = {(lr, b2): fx.naive_adaptive(lr, b2) for lr, b2 in ((0.1, 0.5), (0.1, 0.99), (0.03, 0.5), (0.03, 0.99))}
    runs = [
        (f"naive_adaptive, lr {lr:g}, b2 {b2:g}", algorithm, COLORS[1] if lr == 0.1 else COLORS[3], b2 == 0.99)
        for (lr, b2), algorithm in naive.items()
    ]
    runs.append(("fafed, lr 0.5, rho 1", fx.fafed(0.5, rho=1.0), COLORS[0], False))
    runs.append(("fedadam, client_lr 0.01, server_lr 0.1", fx.fedadam(0.01, 0.1), COLORS[2], False))
    for label, algorithm, color, dashed in runs:
        result = fx.run(task, algorithm, rounds=rounds, cohort_size=3, batch_size=1, label=label)
        x = [10.0, *(row["test_distance"] for row in result.history)]
        axes.plot(range(rounds + 1), x, color=color, linewidth=1.5, linestyle="--" if dashed else "-", label=label)
        print(
            f"theorem 1: {label:40} |x| after 1, 2, 10, {rounds} rounds:", *(f"{x[r]:.6f}" for r in (1, 2, 10, rounds))
        )
    axes.axhline(10.0, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_ylim(0.0, 36.0)
    axes.set_xlim(0, rounds)
    axes.set_title("Theorem 1's problem, 3 clients, 1 step a round", loc="right", fontsize=8.5, color=GREY, pad=5)
    axes.legend(loc="upper left", ncols=2, frameon=False, fontsize=8)
    return figure


def blank(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 3.6), dpi=100, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel, fontsize=9.5, color=INK)
    axes.set_ylabel(ylabel, fontsize=9.5, color=INK)
    axes.tick_params(colors=GREY, labelsize=8.5)
    axes.grid(color="#e6e8eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9aa1aa")
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < 60_000, path


def number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def table(measured: Mapping[str, Curves], data: fx.FederatedData) -> str:
    sizes = np.asarray(data.sizes)
    lines = [
        HEAD.format(
            clients=data.num_clients,
            low=sizes.min(),
            high=sizes.max(),
            seeds=len(SEEDS),
            rounds=ROUNDS,
            cohort=COHORT,
            batch=BATCH,
            cores=os.cpu_count(),
            fedoptax=fx.__version__,
            jax=jax.__version__,
            numpy=np.__version__,
            python=platform.python_version(),
            date=datetime.date.today().isoformat(),
        )
    ]
    for name, curves in measured.items():
        given = ", ".join(f"{key} {number(value)}" for key, value in curves.hyperparameters.items())
        last, tail = curves.accuracy[:, -1], curves.accuracy[:, -10:].mean(axis=1)
        reached = ", ".join(str(rounds_to(row, TARGET) or "-") for row in curves.accuracy)
        lines.append(
            f"| `{name.partition(',')[0]}` | {given} | {last.mean():.3f} ± {last.std(ddof=1):.3f} | "
            f"{tail.mean():.3f} ± {tail.std(ddof=1):.3f} | {reached} | {curves.bytes_per_round:,} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=[*PAGES, "theorem1"], help="one image, without the table")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of measured.md and images/")
    options = parser.parse_args(arguments)
    if options.only in (None, "theorem1"):
        save(figure_of_theorem_1(), options.out / "images" / "naive-adaptive-theorem-1.png")
    if options.only == "theorem1":
        return
    task, presets = fx.load_task("digits"), PRESETS["digits"]
    wanted = list(fx.ALGORITHMS) if options.only is None else list(dict.fromkeys(["fedavg", *PAGES[options.only]]))
    measured: dict[str, Curves] = {}
    for name in wanted:
        measured[name] = measure(task, name, presets[name])
        if name == "fedavg" and options.only in (None, "fedavg"):
            measured[PLAIN] = measure(task, name, {**presets[name], "server_lr": 1.0})
        accuracy = measured[name].accuracy[:, -1]
        print(f"{name:16} {accuracy.mean():.4f} ± {accuracy.std(ddof=1):.4f}", flush=True)
    for page in PAGES if options.only is None else [options.only]:
        save(figure_of_page(page, measured), options.out / "images" / f"{page}.png")
    if options.only is None:
        (options.out / "measured.md").write_text(table(measured, task.clients), encoding="utf-8")


if __name__ == "__main__":
    main()
