"""Run folders, comparisons and searches written by hand, as reports and other readers meet them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Values = Sequence[float | None]


def label_counts(clients: int, classes: int, seed: int = 0) -> list[list[int]]:
    """Examples by client and class, unevenly divided."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(8, 60, clients)
    shares = rng.dirichlet(np.full(classes, 0.3), clients)
    return [rng.multinomial(n, p).tolist() for n, p in zip(sizes, shares)]


def ramp(end: float, rounds: int = 20) -> list[float]:
    """Values that rise evenly to `end`."""
    return [round(end * r / rounds, 6) for r in range(1, rounds + 1)]


def write_run(
    folder: Path,
    values: Values,
    *,
    name: str = "fedadam",
    seed: int = 0,
    losses: Values | None = None,
    hyper: Mapping[str, Any] | None = None,
    status: str | None = "completed",
    message: str | None = None,
    counts: list[list[int]] | None = None,
    notes: Mapping[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Write a run folder whose primary metric has these values, one per round."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = label_counts(12, 10, seed) if counts is None else counts
    losses = [2.0 / (r + 1) for r in range(len(values))] if losses is None else losses
    content = {
        "format": 1, "fedoptax": "0.1.0",
        "task": {"name": "digits", "description": "handwritten digits", "model": "mlp", "partition": "dirichlet",
                 "alpha": 0.3, "num_clients": len(counts)},
        "algorithm": {"name": name, "hyperparameters": {"client_lr": 0.1} if hyper is None else hyper,
                      "reference": "Reddi et al. 2021, Algorithm 2"},
        "rounds": len(values), "cohort_size": 10, "batch_size": 20, "local_epochs": 1, "weighting": "examples",
        "seed": seed, "eval_every": 1, "num_params": 12345, "higher_is_better": True,
        "bytes": {"down_per_client": 49380, "up_per_client": 49380}, "primary_metric": "test_accuracy",
        "partition": {"sizes": [*map(sum, counts)], "label_counts": counts, "measures": {"total_variation_mean": 0.55}},
        "environment": {"python": "3.11.7", "jax": "0.10.2", "device": "cpu: cpu x 1"},
    } | config  # fmt: skip
    write_json(folder / "config.json", content)
    rows = [
        {"round": r, "train_loss": losses[r - 1], "test_accuracy": values[r - 1],
         "test_loss": losses[r - 1], "bytes_up": 493800, "bytes_down": 493800, "seconds": 0.02}
        for r in range(1, len(values) + 1)
    ]  # fmt: skip
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if status is not None:
        summary = {"status": status, "rounds_done": len(values), "message": message, "seconds": 1.0, **(notes or {})}
        write_json(folder / "summary.json", summary)
    return folder


def write_comparison(folder: Path, algorithms: list[str], seeds: int = 2, rounds: int = 30) -> Path:
    """Write a comparison with curves that look like training."""
    for place, name in enumerate(algorithms):
        for seed in range(seeds):
            rng = np.random.default_rng([place, seed])
            r = np.arange(1, rounds + 1)
            top, speed = 0.96 - 0.012 * place, 6 + 2.5 * place
            accuracy = top - (top - 0.1) * np.exp(-r / speed) + rng.normal(0, 0.008, rounds)
            loss = 0.12 + 0.02 * place + 2.2 * np.exp(-r / speed) + np.abs(rng.normal(0, 0.02, rounds))
            write_run(folder / name / f"seed-{seed}", accuracy.round(4).tolist(), name=name, seed=seed,
                      losses=loss.round(5).tolist(), hyper={"client_lr": 0.1, "server_lr": 0.01 * (place + 1)},
                      counts=label_counts(50, 10, seed))  # fmt: skip
    command = f"fedoptax compare --task digits --algorithms {','.join(algorithms)} --seeds {seeds}"
    comparison = {"format": 1, "command": command, "algorithms": algorithms, "seeds": list(range(seeds))}
    write_json(folder / "compare.json", comparison)
    return folder


def write_search(
    folder: Path,
    ends: Mapping[tuple[Any, ...], float | None],
    grid: Mapping[str, list[Any]],
    *,
    algorithm: str = "fedadam",
    **changes: Any,
) -> Path:
    """Write a search whose points end at these accuracies (their losses at 1 less); None is one that diverged."""
    content = {
        "format": 1, "algorithm": algorithm, "grid": grid, "fixed": {"b1": 0.9}, "seed": 0, "search": "grid",
        "trials": 0, "command": "fedoptax tune", "task": {"name": "digits"}, "options": {"rounds": 4},
        "rule": {"metric": "train_loss", "last": 1, "higher_is_better": False},
    } | changes  # fmt: skip
    folder.mkdir(parents=True)
    write_json(folder / "tune.json", content)
    for number, (values, end) in enumerate(ends.items(), start=1):
        accuracies = [0.1, 0.2, 0.3, end] if end is not None else [0.1, 0.2]
        hyper, status = {"b1": 0.9, **dict(zip(grid, values))}, "completed" if end is not None else "diverged"
        losses = [1 - value for value in accuracies]
        place = folder / f"point-{number:03d}"
        write_run(place, accuracies, name=algorithm, hyper=hyper, losses=losses, status=status, rounds=4)
    return folder


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


HOSTILE = "</script><img src=x onerror=alert(1)>"


def write_named_run(folder: Path, text: str) -> Path:
    """Write a run in which everything that may be text is this text."""
    metric = f"test_{text}"
    texts: dict[str, Any] = dict.fromkeys(("name", "weighting", "command", "fedoptax", "status", "message"), text)
    texts["task"] = dict.fromkeys(("name", "description", "model", "partition", "alpha", text), text)
    texts |= {"hyper": {text: text, "lr": text}, "environment": {text: text, "python": text}, "primary_metric": metric}
    write_run(folder, ramp(0.9, 3), **texts)
    path = folder / "history.jsonl"
    path.write_text(path.read_text().replace('"test_accuracy"', json.dumps(metric)), encoding="utf-8")
    return folder
