"""A comparison: several algorithms on one task over several seeds, in one folder, and its continuation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedoptax import storage
from fedoptax.errors import RunError
from fedoptax.experiment import DivergedError, RunResult, run
from fedoptax.naming import build
from fedoptax.stored import check_comparison
from fedoptax.task import Task


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
    task: Task, comparison: Comparison, out: Path, progress: bool | None = None
) -> tuple[list[RunResult], list[DivergedError]]:
    """Runs what is not yet completed in `out`: every algorithm over every seed.

    All algorithms of one seed start from the same parameters and see the same cohorts. One that diverges is kept up to
    its last finite state and the others go on.

    Returns:
      The results that were computed now, and the errors of those that diverged.
    """
    algorithms = {name: build(name, comparison.hyperparameters[name]) for name in comparison.algorithms}
    comparison.save(out)
    results, diverged = [], []
    for name, seed, folder in runs(comparison, out):
        if _status(folder) in ("completed", "diverged"):
            continue
        source = folder if _status(folder) is not None and (folder / "checkpoints").is_dir() else None
        try:
            result = run(
                task,
                algorithms[name],
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
            results.append(result)
        except DivergedError as error:
            diverged.append(error)
            results.append(error.result)
    return results, diverged


def runs(comparison: Comparison, out: Path) -> Sequence[tuple[str, int, Path]]:
    """Algorithm, seed and folder of every run of the comparison, algorithm after algorithm."""
    return [
        (name, seed, out / name.replace(":", ".") / f"seed-{seed}")
        for name in comparison.algorithms
        for seed in comparison.seeds
    ]


def _status(folder: Path) -> str | None:
    if not (folder / "summary.json").is_file():
        return None
    summary: Mapping[str, Any] = storage.read_json(folder / "summary.json")
    return summary.get("status")
