"""A comparison: several algorithms on one task over several seeds, in one folder, and its continuation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedoptax import storage
from fedoptax.checkpoint import rounds_of
from fedoptax.errors import RunError
from fedoptax.experiment import DivergedError, Interrupted, RunResult, run
from fedoptax.history_file import check_mark
from fedoptax.naming import build
from fedoptax.stored import check_comparison
from fedoptax.task import Task
from fedoptax.wrapping import wrap_as


@dataclass(frozen=True)
class Comparison:
    """What is compared. `hyperparameters` by algorithm; `options` are keyword arguments of `fedoptax.run`."""

    algorithms: list[str]
    hyperparameters: dict[str, dict[str, Any]]
    seeds: list[int]
    task: dict[str, Any]
    options: dict[str, Any]
    command: str = ""

    def save(self, folder: Path) -> None:
        """Writes compare.json."""
        storage.write_json(folder / "compare.json", {"format": storage.FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Comparison:
        """Reads compare.json.

        Raises:
          RunError: it is missing, damaged or of another format.
        """
        stored = storage.read_json(folder / "compare.json")
        if stored.pop("format", None) != storage.FORMAT:
            raise RunError(f"'{folder / 'compare.json'}' is not of format {storage.FORMAT}")
        check_comparison(folder / "compare.json", stored)
        try:
            return cls(**stored)
        except TypeError as error:
            raise RunError(f"'{folder / 'compare.json'}' is damaged: {error}") from error


def compare(
    task: Task, comparison: Comparison, out: Path, progress: bool | None = None, new: bool = False
) -> tuple[list[RunResult], list[DivergedError]]:
    """Runs what is not yet completed in `out`: every algorithm over every seed.

    All algorithms of one seed start from the same parameters and see the same cohorts. One that diverges is kept up to
    its last finite state and the others go on. With `new` there must be no results in `out` yet.

    Returns:
      The results that were computed now, and the errors of those that diverged.

    Raises:
      RunError: another process holds `out` or has filled it, or a run there cannot be continued.
    """
    results: list[RunResult] = []
    diverged: list[DivergedError] = []
    with storage.locked(out, new):
        comparison.save(out)
        for name, seed, folder in runs(comparison, out):
            if _is_whole(folder):
                continue
            try:
                results.append(_run_one(task, comparison, name, seed, folder, progress))
            except DivergedError as error:
                diverged.append(error)
                results.append(error.result)
            if results[-1].signal:  # it came in the last round
                raise Interrupted(replace(results[-1], message=f"stopped after {name}, seed {seed}"))
    return results, diverged


def _run_one(
    task: Task, comparison: Comparison, name: str, seed: int, folder: Path, progress: bool | None
) -> RunResult:
    source = folder if rounds_of(folder) else None
    return run(
        task,
        wrap_as(build(name, comparison.hyperparameters[name]), comparison.options.get("wrappers") or {}),
        seed=seed,
        label=name,
        description=f"{name}, seed {seed}",
        hyperparameters=comparison.hyperparameters[name],
        out=folder,
        overwrite=source is None,
        resume_from=source,
        progress=progress,
        **comparison.options,
    )


def runs(comparison: Comparison, out: Path) -> Sequence[tuple[str, int, Path]]:
    """Algorithm, seed and folder of every run of the comparison, algorithm after algorithm."""
    return [
        (name, seed, out / name.replace(":", ".") / f"seed-{seed}")
        for name in comparison.algorithms
        for seed in comparison.seeds
    ]


def _is_whole(folder: Path) -> bool:
    """Whether a run is at its end, and its results are what it wrote; else it is continued from its checkpoint."""
    try:
        summary = storage.read_json(folder / "summary.json")
        if summary.get("status") not in ("completed", "diverged"):
            return False
        if summary.get("history"):
            check_mark(folder, summary["history"])
        storage.check_params(folder / "params.npz")
    except (RunError, ValueError):
        return False
    return True
