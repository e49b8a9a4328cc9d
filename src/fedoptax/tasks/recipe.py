"""What a named task is made of, and what may be asked of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedoptax.errors import UsageError, unknown
from fedoptax.tasks.precision import DTYPES
from fedoptax.tasks.task import Task


class Options(NamedTuple):
    """What was asked of `load_task`, see there; None where nothing was."""

    partition: str | None = None
    alpha: float | None = None
    alpha_fine: float | None = None
    beta: float | None = None
    classes: int | None = None
    shards: int | None = None
    similarity: float | None = None
    sigma: float | None = None
    exponent: float | None = None
    num_clients: int | None = None
    devices: int | None = None
    model: str | None = None
    augment: str | None = None
    client_column: str | None = None
    label_column: str | None = None
    test_fraction: float | None = None
    image_size: int | None = None
    compute_dtype: str | None = None
    seed: int = 0
    data_dir: str | Path | None = None


OPTIONS = tuple(name for name in Options._fields if name not in ("seed", "data_dir"))
"""The options that a task may or may not have; every task takes `seed` and `data_dir`."""


@dataclass(frozen=True)
class Recipe:
    """A named task and its defaults.

    Attributes:
      make: builds the task from the options that were given.
      summary: one line for `fedoptax list tasks`.
      model: the default model.
      num_clients: how many there are by default; 0 where the data tell.
      models: allowed models, the default among them.
      options: the options of `load_task` that apply, apart from those of a partition.
      partitions: allowed ways of dividing the examples, the default first; none if the task has its clients by nature.
      defaults: defaults of a run (rounds, cohort_size, batch_size, local_epochs, eval_every).
    """

    make: Callable[[str, Recipe, Options], Task]
    summary: str
    model: str
    num_clients: int
    models: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def allowed(self) -> tuple[str, ...]:
        """All options of `load_task` that the task has."""
        from fedoptax.tasks.division import PARTITION_OPTIONS

        of_partitions = {option for name in self.partitions for option in PARTITION_OPTIONS[name]}
        choices = (*(["partition"] if self.partitions else []), *(["model"] if self.models else []))
        return (*choices, *self.options, *sorted(of_partitions), "compute_dtype")


def check_options(name: str, recipe: Recipe, given: Options) -> None:
    """Checks that what was asked of a task is something it has.

    Raises:
      UsageError: an option the task does not have, an unknown partition or model, or a value of another type.
    """
    _check_types(given)
    allowed = recipe.allowed()
    for option in OPTIONS:
        value = getattr(given, option)
        if value is not None and option not in allowed:
            listed = ", ".join(allowed) or "none of them"
            raise UsageError(f"{option}: {value!r} given, task '{name}' has no such option (allowed: {listed})")
    if given.partition is not None and given.partition not in recipe.partitions:
        unknown(f"partition of task '{name}'", given.partition, recipe.partitions)
    if given.model is not None and given.model not in recipe.models:
        unknown(f"model of task '{name}'", given.model, recipe.models)
    if given.augment is not None:
        from fedoptax.tasks.augmentation import AUGMENTATIONS

        if given.augment not in AUGMENTATIONS:
            unknown("augment", given.augment, AUGMENTATIONS)
    if given.compute_dtype is not None and given.compute_dtype not in DTYPES:
        unknown("compute_dtype", given.compute_dtype, DTYPES)


def _check_types(given: Options) -> None:
    """Checks what neither a command line nor a type checker has seen: a config may hold anything."""
    for option in (*OPTIONS, "seed"):
        value = getattr(given, option)
        kind = "text" if option in _TEXTS else "number" if option in _NUMBERS else "whole"
        if value is not None and not _is_of(kind, value):
            raise UsageError(f"{option}: {value!r} given, allowed is {_KINDS[kind]}")
    if given.seed < 0:
        raise UsageError(f"seed of the partition: {given.seed} given, allowed is a whole number from 0 to 2^63 - 1")


_TEXTS = ("partition", "model", "augment", "client_column", "label_column", "compute_dtype")
_NUMBERS = ("alpha", "alpha_fine", "beta", "similarity", "sigma", "exponent", "test_fraction")
_KINDS = {"text": "a text", "whole": "a whole number within 64 bits", "number": "a finite number"}


def _is_of(kind: str, value: Any) -> bool:
    if kind == "text" or isinstance(value, bool):
        return kind == "text" and isinstance(value, str)
    if isinstance(value, int | np.integer):
        return -(2**63) <= int(value) < 2**63
    return kind == "number" and isinstance(value, float | np.floating) and math.isfinite(float(value))
