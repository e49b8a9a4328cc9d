"""fedoptax: adaptive federated optimization in JAX.

Names are loaded when first used, so that `import fedoptax` and `fedoptax --help` are quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "fedoptax.algorithm": (
        "Batches", "Cohort", "FedAlgorithm", "local_steps", "nbytes", "num_steps", "weighted_mean",
    ),
    "fedoptax.algorithms": (
        "ALGORITHMS", "fafed", "fafed_schedule", "fedadagrad", "fedadam", "fedams", "fedamsgrad", "fedavg", "fedavgm",
        "fedlamb", "fedopt", "fedprox", "fedyogi", "local_adaalter", "local_amsgrad", "lookahead", "mime", "mimelite",
        "naive_adaptive", "scaffold", "stem",
    ),
    "fedoptax.data.federated": ("FederatedData",),
    "fedoptax.engine.aggregation": ("Krum", "Median", "NormClipping", "TrimmedMean"),
    "fedoptax.engine.compiled": ("Point",),
    "fedoptax.engine.evaluation": ("evaluate_clients",),
    "fedoptax.engine.faults": ("Faults",),
    "fedoptax.engine.sweep": ("sweep",),
    "fedoptax.precision": ("with_compute_dtype",),
    "fedoptax.errors": ("DataError", "RunError", "UsageError"),
    "fedoptax.experiment": ("run",),
    "fedoptax.outcome": ("RunResult",),
    "fedoptax.task": ("Task", "masked_mean"),
    "fedoptax.tasks": ("TASKS", "load_task"),
    "fedoptax.tuning": ("Tuned", "tune"),
    "fedoptax.wrappers": ("with_clipping", "with_compression", "with_privacy", "with_prox"),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = (
    "algorithm", "algorithms", "analytic", "codecs", "data", "engine", "errors", "models", "papers", "report",
    "schedules", "tasks", "torch", "transforms", "tree",
)  # fmt: skip

if TYPE_CHECKING:
    from fedoptax.algorithm import *  # noqa: F403
    from fedoptax.algorithms import *  # noqa: F403
    from fedoptax.data.federated import FederatedData as FederatedData
    from fedoptax.engine import eager as eager
    from fedoptax.engine.aggregation import Krum as Krum
    from fedoptax.engine.aggregation import Median as Median
    from fedoptax.engine.aggregation import NormClipping as NormClipping
    from fedoptax.engine.aggregation import TrimmedMean as TrimmedMean
    from fedoptax.engine.compiled import Point as Point
    from fedoptax.engine.evaluation import evaluate_clients as evaluate_clients
    from fedoptax.engine.faults import Faults as Faults
    from fedoptax.engine.sweep import sweep as sweep
    from fedoptax.errors import DataError as DataError
    from fedoptax.errors import RunError as RunError
    from fedoptax.errors import UsageError as UsageError
    from fedoptax.experiment import run as run
    from fedoptax.outcome import RunResult as RunResult
    from fedoptax.precision import with_compute_dtype as with_compute_dtype
    from fedoptax.task import Task as Task
    from fedoptax.task import masked_mean as masked_mean
    from fedoptax.tasks import TASKS as TASKS
    from fedoptax.tasks import load_task as load_task
    from fedoptax.tuning import Tuned as Tuned
    from fedoptax.tuning import tune as tune
    from fedoptax.wrappers import with_clipping as with_clipping
    from fedoptax.wrappers import with_compression as with_compression
    from fedoptax.wrappers import with_privacy as with_privacy
    from fedoptax.wrappers import with_prox as with_prox

__all__ = [*_HOME, "eager"]


def __getattr__(name: str) -> Any:
    if name == "eager":
        return import_module("fedoptax.engine.eager")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"fedoptax.{name}")
    raise AttributeError(f"module 'fedoptax' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_MODULES])
