"""What a run's config.json says: enough to repeat the run, and to report on it without the data."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import fedoptax
from fedoptax.algorithm import FedAlgorithm
from fedoptax.algorithms import ALGORITHMS
from fedoptax.data.heterogeneity import heterogeneity, measures
from fedoptax.engine.aggregation import MEAN
from fedoptax.engine.program import Program
from fedoptax.errors import RunError
from fedoptax.storage.folder import FORMAT, read_back
from fedoptax.tasks.task import Task

if TYPE_CHECKING:
    from fedoptax.experiments.run import Settings


def run_config(task: Task, settings: Settings, built: Program) -> dict[str, Any]:
    """The config of a run as plain data."""
    plan = settings.plan
    return {
        "format": FORMAT,
        "kind": "run",
        "fedoptax": fedoptax.__version__,
        "task": {"name": task.name, "description": task.description, **task.spec},
        "algorithm": {
            "name": settings.label,
            "hyperparameters": dict(settings.hyperparameters),
            "reference": reference(settings.label),
        },
        "rounds": settings.rounds,
        "cohort_size": plan.cohort_size,
        "batch_size": plan.work.batch_size,
        "local_epochs": plan.work.epochs,
        "local_steps": plan.work.steps,
        "weighting": plan.weighting,
        **robustness(settings),
        "seed": settings.seed,
        "eval_every": settings.eval_every,
        "client_states": plan.client_states,
        **({} if plan.client_loop == "auto" else {"client_loop": plan.client_loop}),
        "mesh": plan.mesh,
        **({"trackers": names} if (names := [t for t in settings.trackers if isinstance(t, str)]) else {}),
        "num_params": built.num_params,
        "bytes": {"down_per_client": built.bytes_down, "up_per_client": built.bytes_up},
        "primary_metric": None if task.primary_metric is None else f"test_{task.primary_metric}",
        "higher_is_better": task.higher_is_better,
        "partition": partition_record(task),
        "environment": environment(),
    }


def robustness(settings: Settings) -> dict[str, Any]:
    """Faults, aggregator and wrappers, as `fedoptax.run` takes them; what is not used is not named."""
    aggregate = settings.plan.aggregate
    record: dict[str, Any] = {} if settings.faults is None else {"faults": asdict(settings.faults)}
    record |= {"wrappers": dict(settings.wrappers)} if settings.wrappers else {}
    return record | ({} if aggregate == MEAN else {"aggregate": str(aggregate)})


def refuse_another(folder: Path, there: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Compares the config of a run to be continued with the one that is there.

    Raises:
      RunError: they differ in anything but the total of rounds, the rounds between evaluations, the environment, and
        how the same work is divided among devices.
    """
    wanted, free = read_back(config), {"rounds", "environment", "fedoptax", "eval_every", "client_states", "trackers"}
    free |= {"client_loop", "mesh"}
    its_task = there.get("task")
    if isinstance(its_task, dict) and "contents" not in its_task:  # of a file, which earlier versions did not tell
        wanted["task"].pop("contents", None)
    for name in sorted((wanted.keys() | {"faults", "aggregate", "wrappers"}) - free):
        its, given = there.get(name), wanted.get(name)
        if its != given:
            raise RunError(f"'{folder}' belongs to another experiment: its {name} is {its!r}, {given!r} given")


def partition_record(task: Task, most: int = 1000) -> dict[str, Any]:
    """Sizes of the clients, measures of their differences, and which classes the first `most` of them hold."""
    sizes, counts = task.clients.sizes, class_counts(task)
    return {
        "sizes": sizes.tolist(),
        "label_counts": None if counts is None else counts[:most].tolist(),
        "heterogeneity": None if counts is None else round(heterogeneity(counts), 4),
        "measures": {name: round(value, 4) for name, value in measures(counts, sizes).items()},
    }


def class_counts(task: Task) -> np.ndarray | None:
    """How many examples of each class every client holds, int64 (N, C); None for examples without a class."""
    labels = task.clients.examples.get(task.label) if task.label else None
    if labels is None or labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        return None
    clients, classes = task.clients.num_clients, int(labels.max()) + 1
    owner = np.repeat(np.arange(clients), task.clients.sizes)
    return np.bincount(owner * classes + labels, minlength=clients * classes).reshape(clients, classes)


def environment() -> dict[str, str]:
    """Versions and the device, for the reader who wants to know why numbers differ."""
    device = jax.devices()[0]
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "device": f"{device.platform}: {device.device_kind} x {jax.device_count()}",
        "system": f"{platform.system()} {platform.machine()}",
    }


def summary(constructor: Callable[..., FedAlgorithm]) -> str:
    """What an algorithm is: the first line of its constructor's docstring."""
    return (inspect.getdoc(constructor) or constructor.__name__).splitlines()[0]


def reference(name: str) -> str | None:
    """The paper of an algorithm: what its summary says before the colon; None for one that is not the package's."""
    constructor = ALGORITHMS.get(name)
    return summary(constructor).split(":")[0] if constructor else None
