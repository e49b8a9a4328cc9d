"""Run folders as reports see them: loading, groups, labels, curves, partitions; and the samples of all report tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedoptax.errors import RunError
from fedoptax.report import final_table, group_runs, load_runs
from fedoptax.report.curves import curve, thin
from fedoptax.report.html import render
from fedoptax.report.partition import partition
from fedoptax.report.style import look

HOSTILE = "</script><img src=x onerror=alert(1)>"


def label_counts(clients: int, classes: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(8, 60, clients)
    shares = rng.dirichlet(np.full(classes, 0.3), clients)
    return [rng.multinomial(n, p).tolist() for n, p in zip(sizes, shares)]


def write_run(
    folder: Path,
    values: list[float | None],
    *,
    name: str = "fedadam",
    seed: int = 0,
    losses: list[float | None] | None = None,
    hyper: dict[str, Any] | None = None,
    status: str | None = "completed",
    message: str | None = None,
    counts: list[list[int]] | None = None,
    **config: Any,
) -> Path:
    """A run folder whose primary metric has these values, one a round."""
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
        "seed": seed, "eval_every": 1, "num_params": 12345,
        "bytes": {"down_per_client": 49380, "up_per_client": 49380},
        "primary_metric": "test_accuracy", "higher_is_better": True,
        "partition": {"sizes": np.sum(counts, 1).tolist(), "label_counts": counts, "heterogeneity": 0.55},
        "environment": {"python": "3.11.7", "jax": "0.10.2", "device": "cpu: cpu x 1"},
    } | config  # fmt: skip
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    rows = [
        {"round": r, "train_loss": losses[r - 1], "test_accuracy": values[r - 1],
         "test_loss": losses[r - 1], "bytes_up": 493800, "bytes_down": 493800, "seconds": 0.02}
        for r in range(1, len(values) + 1)
    ]  # fmt: skip
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if status is not None:
        summary = {"status": status, "rounds_done": len(values), "message": message, "seconds": 1.0}
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def write_comparison(folder: Path, algorithms: list[str], seeds: int = 3, rounds: int = 100) -> Path:
    """A comparison with curves that look like training."""
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
    compare = {"format": 1, "command": command, "algorithms": algorithms, "seeds": list(range(seeds))}
    (folder / "compare.json").write_text(json.dumps(compare), encoding="utf-8")
    return folder


def ramp(end: float, rounds: int = 20) -> list[float | None]:
    return [round(end * r / rounds, 6) for r in range(1, rounds + 1)]


# --- loading ---


def test_loads_a_comparison_in_its_own_order(tmp_path: Path):
    write_comparison(tmp_path, ["fedyogi", "fedavg"], seeds=2, rounds=5)
    runs = load_runs(tmp_path)
    assert [(run.config["algorithm"]["name"], run.config["seed"]) for run in runs] == [
        ("fedyogi", 0), ("fedyogi", 1), ("fedavg", 0), ("fedavg", 1)]  # fmt: skip
    assert all(run.command and run.command.startswith("fedoptax compare") for run in runs)
    assert list(runs[0].rows["round"]) == [1, 2, 3, 4, 5]


def test_seed_folders_are_in_numeric_order(tmp_path: Path):
    for seed in (10, 2, 1):
        write_run(tmp_path / f"seed-{seed}", ramp(0.9), seed=seed)
    assert [run.config["seed"] for run in load_runs(tmp_path)] == [1, 2, 10]


def test_loads_a_single_run_and_skips_what_is_inside_it(tmp_path: Path):
    write_run(tmp_path, ramp(0.9))
    write_run(tmp_path / "checkpoints" / "old", ramp(0.1))
    assert len(load_runs(tmp_path)) == 1


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_an_unfinished_last_line_is_ignored(tmp_path: Path, cut: int):
    write_run(tmp_path, ramp(0.9), status="running")
    path = tmp_path / "history.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert len(load_runs(tmp_path)[0].rows) == (20 if cut == 1 else 19)


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path):
    write_run(tmp_path, ramp(0.9))
    path = tmp_path / "history.jsonl"
    lines = path.read_text().splitlines()
    lines[4] = lines[4][:30]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=r"history\.jsonl' is damaged at line 5"):
        load_runs(tmp_path)


def test_rounds_out_of_order_are_an_error(tmp_path: Path):
    write_run(tmp_path, ramp(0.9, 2))
    path = tmp_path / "history.jsonl"
    path.write_text(path.read_text() * 2)
    with pytest.raises(RunError, match="line 3: round 1 after 2"):
        load_runs(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"format": 1', "cannot be read"),
        ("[1]", "a JSON object is expected"),
        ('{"format": 2}', "has format 2"),
        ('{"format": 1, "task": {"name": "a"}}', "'algorithm' is missing"),
        ('{"format": 1, "task": {}, "algorithm": {"name": "a"}, "rounds": 1, "seed": 0}', "'task.name' is missing"),
    ],
)
def test_a_damaged_config_is_one_clear_line(tmp_path: Path, text: str, complaint: str):
    write_run(tmp_path, ramp(0.9))
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RunError, match=complaint) as caught:
        load_runs(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_runs_and_no_folder_are_errors(tmp_path: Path):
    with pytest.raises(RunError, match="holds no run"):
        load_runs(tmp_path)
    with pytest.raises(RunError, match="is not a folder"):
        load_runs(tmp_path / "missing")


def test_values_that_are_not_finite_become_missing(tmp_path: Path):
    write_run(tmp_path, [0.5, None, 0.7], losses=[1.0, float("nan"), float("inf")])
    run = load_runs(tmp_path)[0]
    assert run.rows["train_loss"].isna().tolist() == [False, True, True]
    row = final_table([run]).iloc[0]
    assert row["final"] == 0.7
    assert row["train_loss"] == 1.0


# --- groups and labels ---


def test_labels_tell_only_what_differs(tmp_path: Path):
    write_run(tmp_path / "a", ramp(0.9), hyper={"client_lr": 0.1, "server_lr": 0.01})
    write_run(tmp_path / "b", ramp(0.9), hyper={"client_lr": 0.1, "server_lr": 0.03})
    write_run(tmp_path / "c", ramp(0.9), name="fedavg", hyper={"client_lr": 0.1})
    labels = [group.label for group in group_runs(load_runs(tmp_path))]
    assert labels == ["fedadam (server_lr=0.01)", "fedadam (server_lr=0.03)", "fedavg"]


def test_labels_tell_tasks_apart_and_seeds_make_no_group(tmp_path: Path):
    for alpha in (0.1, 1.0):
        for seed in (0, 1):
            task = {"name": "digits", "alpha": alpha, "seed": seed}
            write_run(tmp_path / f"{alpha}-{seed}", ramp(0.9), seed=seed, task=task)
    groups = group_runs(load_runs(tmp_path))
    assert [group.label for group in groups] == ["fedadam (alpha=0.1)", "fedadam (alpha=1)"]
    assert [len(group.runs) for group in groups] == [2, 2]
    assert groups[0].problem != groups[1].problem


def test_what_changes_no_result_parts_no_seeds(tmp_path: Path):
    for seed, place in enumerate(("device", "host")):
        free = {"mesh": seed + 1, "client_states": place, "client_loop": ("loop", "vmap")[seed]}
        deployment = {"experiment": f"{seed}abc", "quorum": 0.5}  # the first is drawn anew for each run
        write_run(tmp_path / str(seed), ramp(0.9), seed=seed, deployment=deployment, **free)
    write_run(tmp_path / "other", ramp(0.9), deployment={"experiment": "2abc", "quorum": 1.0})
    groups = group_runs(load_runs(tmp_path))
    assert [group.label for group in groups] == ["fedadam (quorum=0.5)", "fedadam (quorum=1)"]
    assert [len(group.runs) for group in groups] == [2, 1]


def test_the_same_run_twice_is_no_second_seed(tmp_path: Path):
    write_run(tmp_path / "a", ramp(0.9))
    write_run(tmp_path / "b", ramp(0.9))
    groups = group_runs(load_runs(tmp_path))
    assert [group.label for group in groups] == ["fedadam (copy=1)", "fedadam (copy=2)"]


# --- curves, partition, looks ---


def test_curve_mean_and_spread_stop_where_a_seed_stops(tmp_path: Path):
    write_run(tmp_path / "0", [0.2, 0.4, 0.6], seed=0)
    write_run(tmp_path / "1", [0.4, 0.6], seed=1, rounds=3, status="diverged")
    found = curve(group_runs(load_runs(tmp_path))[0], "test_accuracy")
    assert found is not None
    assert found.mean[:2].tolist() == pytest.approx([0.3, 0.5])
    assert np.isnan(found.mean[2])
    assert found.std[0] == pytest.approx(0.02**0.5)
    assert found.megabytes.tolist() == pytest.approx([0.9876, 1.9752, 2.9628])


def test_thinning_keeps_both_ends(tmp_path: Path):
    write_run(tmp_path, ramp(0.9, 5000))
    full = curve(group_runs(load_runs(tmp_path))[0], "test_accuracy")
    assert full is not None
    short = thin(full, 2000)
    assert len(short.rounds) == 2000
    assert (short.rounds[0], short.rounds[-1]) == (1, 5000)
    page = render(load_runs(tmp_path), "t")
    assert "drawn with 2,000 evenly spaced points" in page
    assert len(page) < 400_000


def test_partition_counts_every_client_in_the_histogram():
    counts = label_counts(3400, 62)
    sizes = np.sum(counts, 1).tolist()
    item = partition({"task": {"name": "emnist"}, "seed": 0, "partition": {"sizes": sizes, "label_counts": counts}})
    assert item is not None
    assert item.counts is not None
    assert item.counts.shape == (100, 62)
    assert item.bins.sum() == 3400


def test_looks_are_unique_up_to_21():
    assert len({(look(i).color, look(i).marker, look(i).dash) for i in range(21)}) == 21
