"""A comparison: several algorithms on one task over several seeds, in one folder, and its continuation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedoptax._progress import bar
from fedoptax.errors import RunError
from fedoptax.experiments.build import build
from fedoptax.experiments.result import DivergedError, Interrupted, RunResult
from fedoptax.experiments.run import run
from fedoptax.experiments.tuning import AllDiverged, Tuning, carry_out
from fedoptax.experiments.wrapping import wrap_as
from fedoptax.storage import folder as storage
from fedoptax.storage.checkpoint import rounds_of
from fedoptax.storage.finished import is_whole
from fedoptax.storage.stored import check_comparison
from fedoptax.tasks.task import Task


@dataclass(frozen=True)
class Comparison:
    """What is compared, as compare.json keeps it.

    Attributes:
      algorithms: their names.
      hyperparameters: by algorithm; of those that are tuned first, what was found, as soon as it is.
      seeds: each run by every algorithm.
      task: name and options of the task.
      options: keyword arguments of `fedoptax.run`.
      command: that made it.
      tunings: by algorithm, the search that comes first; empty for none.
    """

    algorithms: list[str]
    hyperparameters: dict[str, dict[str, Any]]
    seeds: list[int]
    task: dict[str, Any]
    options: dict[str, Any]
    command: str = ""
    tunings: dict[str, Tuning] = field(default_factory=dict)

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
            tunings = {name: Tuning.of(tuning) for name, tuning in stored.pop("tunings", {}).items()}
            return cls(**stored, tunings=tunings)
        except TypeError as error:
            raise RunError(f"'{folder / 'compare.json'}' is damaged: {error}") from error


def compare(
    task: Task, comparison: Comparison, out: Path, progress: bool | None = None, new: bool = False
) -> tuple[list[RunResult], list[RunError]]:
    """Runs what is not yet completed in `out`: every algorithm's search, if there is one, then all over every seed.

    All algorithms of one seed start from the same parameters and see the same cohorts. One that diverges is kept up to
    its last finite state and the others go on, also without one of whose search every point diverged. With `new` there
    must be no results in `out` yet.

    Returns:
      The results that were computed now, and the errors of those that diverged.

    Raises:
      RunError: another process holds `out` or has filled it, or a run there cannot be continued.
    """
    results: list[RunResult] = []
    diverged: list[RunError] = []
    with storage.locked(out, new):
        comparison.save(out)
        if comparison.tunings:
            comparison, lost = _tuned(task, comparison, out, progress)
            diverged += lost
        for name, seed, folder in runs(comparison, out):
            if is_whole(folder):
                if (summary := storage.read_json(folder / "summary.json")).get("status") == "diverged":
                    diverged.append(RunError(str(summary.get("message"))))  # before an interruption
                continue
            try:
                results.append(_run_one(task, comparison, name, seed, folder, progress))
            except DivergedError as error:
                diverged.append(error)
                results.append(error.result)
            if results[-1].signal:  # it came in the last round or after it
                raise Interrupted(replace(results[-1], message=f"stopped after {name}, seed {seed}"))
    return results, diverged


def _tuned(task: Task, comparison: Comparison, out: Path, progress: bool | None) -> tuple[Comparison, list[RunError]]:
    """The comparison with what every search found, without the algorithms of which no point came to its end."""
    found, lost = dict(comparison.hyperparameters), list[RunError]()
    for name, tuning in comparison.tunings.items():
        total = tuning.size * int(tuning.options["rounds"])
        try:
            with bar(f"{name}: {tuning.size} points", total, enabled=progress) as update:
                found[name] = carry_out(task, tuning, search_folder(out, name), update).hyperparameters
        except AllDiverged as error:
            lost.append(error)
    replace(comparison, hyperparameters=found).save(out)
    gone = {error.algorithm for error in lost if isinstance(error, AllDiverged)}
    kept = [name for name in comparison.algorithms if name not in gone]
    return replace(comparison, hyperparameters=found, algorithms=kept), lost


def search_folder(out: Path, name: str) -> Path:
    """Where the search for an algorithm's hyper-parameters is."""
    return out / "tuning" / name.replace(":", ".")


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
