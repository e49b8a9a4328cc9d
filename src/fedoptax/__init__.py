"""fedoptax: adaptive federated optimization in JAX.

Names are loaded when first used, so that `import fedoptax` and `fedoptax --help` are quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "fedoptax.algorithm": (
        "Batches", "Cohort", "FedAlgorithm", "local_steps", "nbytes", "num_steps", "weighted_mean",
    ),
    "fedoptax.algorithms": (
        "ALGORITHMS", "fafed", "fafed_schedule", "fedadagrad", "fedadam", "fedams", "fedamsgrad", "fedavg", "fedavgm",
        "fedlamb", "fedopt", "fedprox", "fedyogi", "local_adaalter", "local_amsgrad", "lookahead", "mime", "mimelite",
        "naive_adaptive", "scaffold", "stem", "with_prox",
    ),
    "fedoptax.data.federated": ("FederatedData",),
    "fedoptax.engine.aggregation": ("Krum", "Median", "NormClipping", "TrimmedMean"),
    "fedoptax.engine.program": ("Point",),
    "fedoptax.engine.evaluation": ("evaluate_clients",),
    "fedoptax.engine.faults": ("Faults",),
    "fedoptax.experiments.comparison": ("Compared", "compare"),
    "fedoptax.experiments.sweep": ("sweep",),
    "fedoptax.errors": ("DataError", "RunError", "UsageError"),
    "fedoptax.experiments.run": ("run",),
    "fedoptax.experiments.result": ("RunResult",),
    "fedoptax.tasks.task": ("Task", "masked_mean", "with_compute_dtype"),
    "fedoptax.tasks": ("TASKS", "load_task"),
    "fedoptax.experiments.tuning": ("Tuned", "tune"),
    "fedoptax.wrappers": ("with_clipping", "with_compression", "with_privacy"),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {
    "algorithm": "algorithm", "algorithms": "algorithms", "analytic": "tasks.analytic",
    "codecs": "wrappers.codecs", "data": "data", "eager": "engine.eager", "engine": "engine", "errors": "errors",
    "models": "models", "papers": "experiments.presets", "report": "report", "schedules": "schedules", "tasks": "tasks",
    "torch": "torch", "transforms": "algorithms.optimizers",
}  # fmt: skip

__all__ = [*_HOME, "eager"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"fedoptax.{_MODULES[name]}")
    raise AttributeError(f"module 'fedoptax' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_MODULES])
