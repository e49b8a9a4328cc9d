"""What training in bfloat16 does to accuracy: the table of docs/performance.md.

    python benchmarks/precision.py        # a few minutes on 2 cores

Writes benchmarks/results/precision-HARDWARE-DATE.md.

Each algorithm runs with its preset, the same seeds, cohorts and rounds in both types; evaluation is in float32.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

import fedoptax as fx
from fedoptax.engine.cores import use_cores
from fedoptax.experiments.presets import PRESETS

ROOT = Path(__file__).parents[1]
ALGORITHMS = ("fedavg", "fedadam", "scaffold", "fedlamb", "fafed")
SEEDS = (0, 1, 2)
ROUNDS = {"digits": 100, "mnist": 30}
COHORT, BATCH = 10, 20


def main() -> None:
    use_cores()
    os.environ.setdefault("FEDOPTAX_DATA", str(ROOT.parent / "shared" / "data"))
    rows = ["| task | algorithm | float32 | bfloat16 | difference |", "| --- | --- | --- | --- | --- |"]
    for name, rounds in ROUNDS.items():
        tasks = [fx.with_compute_dtype(fx.load_task(name), dtype) for dtype in ("float32", "bfloat16")]
        for algorithm in ALGORITHMS:
            made = fx.ALGORITHMS[algorithm](**PRESETS[name][algorithm])
            accuracies = [100 * np.array([accuracy(task, made, rounds, seed) for seed in SEEDS]) for task in tasks]
            told = [f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" for values in accuracies]
            rows.append(
                f"| {name} | {algorithm} | {' | '.join(told)} | {np.mean(accuracies[1] - accuracies[0]):+.2f} |"
            )
            print(rows[-1], flush=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    place = (
        ROOT
        / "benchmarks/results"
        / f"precision-{os.cpu_count()}cpu-{platform.machine()}-{time.strftime('%Y-%m-%d')}.md"
    )
    place.write_text(
        f"# Training in bfloat16, {time.strftime('%Y-%m-%d')}\n\n`python benchmarks/precision.py`, commit "
        f"{commit.stdout.strip()}, jax {version('jax')}, {os.cpu_count()} cores.\n\nTest accuracy in percent, mean ± "
        f"standard deviation over seeds {', '.join(map(str, SEEDS))}; {COHORT} clients a round, batch {BATCH}, one "
        f"local epoch, {' and '.join(f'{n} rounds of {t}' for t, n in ROUNDS.items())}, presets.\n\n"
        + "\n".join(rows)
        + "\n",
        encoding="utf-8",
    )
    print(place)


def accuracy(task: fx.Task, algorithm: fx.FedAlgorithm, rounds: int, seed: int) -> float:
    options = {"rounds": rounds, "cohort_size": COHORT, "batch_size": BATCH, "seed": seed, "eval_every": rounds}
    return float(fx.run(task, algorithm, **options).history.rows[-1]["test_accuracy"])


if __name__ == "__main__":
    main()
