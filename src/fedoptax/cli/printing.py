"""Output of commands. It imports JAX only when needed."""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedoptax.tasks.task import Task

LARGE_INCREASE = 2.0  # how many times its start a training loss is far above it


def print_summary(folder: Path, as_json: bool) -> None:
    """Print how the run in a folder ended."""
    from fedoptax._files import read_json
    from fedoptax.storage.folder import Status, read_summary

    summary = read_summary(folder)
    if as_json:
        print(json.dumps({"out": str(folder), "rounds": summary["rounds_done"], **summary}, indent=1))
        return
    majority = read_json(folder / "config.json").get("majority", {}) if (folder / "config.json").is_file() else {}
    chance = {f"{split}_accuracy": f" (commonest class {rate:.4g})" for split, rate in majority.items()}
    final = {name: value for name, value in summary["final"].items() if value is not None and "_confusion_" not in name}
    print(", ".join(f"{name} {value:.4g}{chance.get(name, '')}" for name, value in final.items()))
    if worst := summary.get("worst_client"):
        print("worst client: {client}, {metric} {value:.4g}".format(**worst))
    if absent := [name for name, value in summary["final"].items() if value is None]:
        print(f"metrics without a finite value: {', '.join(absent)}")
    if initial := summary.get("initial"):
        print("before the first round:", ", ".join(f"{n} {v:.4g}" for n, v in initial.items() if v is not None))
    if best := summary.get("best") if (folder / "best.npz").is_file() else None:
        print("saved as best.npz: round {round}, {metric} {value:.4g}".format(**best))
    if result := summary.get("personalized"):
        changes = []
        for name in ("mean", "spread", "worst_decile"):
            before, after = (math.nan if (x := result[when][name]) is None else x for when in ("before", "after"))
            changes.append(f"{name.replace('_', ' ')} {before:.4g} to {after:.4g}")
        print("{metric} over clients before and after {steps} local steps: ".format(**result) + ", ".join(changes))
    if summary["status"] == Status.STOPPED_EARLY:
        print(summary["message"])
    for absent in summary.get("left_out", ()):  # of a deployment
        print("left out of {rounds} rounds: partition {partition} (node {node}), latest: {reason}".format(**absent))
    print(f"results: {folder}")


def warn_if_loss_increased(task: "Task", losses: Mapping[str, float | None], options: Mapping[str, Any]) -> None:
    """Print a warning for each algorithm whose training loss at the end is far above the one before the first round."""
    from fedoptax.engine.evaluation import initial_loss

    start = initial_loss(task, options.get("seed", 0), options["batch_size"])
    for name, end in losses.items():
        if end is not None and 0 < start < end / LARGE_INCREASE:
            rise = f"ends with train_loss {end:.4g}, far above the {start:.4g} before the first round"
            print(f"warning: {name} {rise}: its learning rates may be too high", file=sys.stderr)


def print_table(rows: list[list[str]], left: bool = False) -> None:
    """Print rows in aligned columns, the first or all to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:{'<' if left or i == 0 else '>'}{width}}" for i, (cell, width) in enumerate(zip(row, widths)))
        print("  ".join(cells).rstrip())
