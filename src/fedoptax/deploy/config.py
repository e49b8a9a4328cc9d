"""What a deployment is: one flat table of plain values, the `[tool.flwr.app.config]` of the Flower app.

Server and clients read the same table, so they build the same task and the same algorithm.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.aggregation import as_aggregator
from fedoptax.engine.plan import WEIGHTINGS, RunOptions
from fedoptax.errors import UsageError
from fedoptax.experiments.build import build, with_secret_seed, wrap
from fedoptax.tasks.task import Task

Plain = str | int | float | bool
NAMELESS = ("hyperparameters", "task")  # written as tables of their own


@dataclass(frozen=True)
class Deployment:
    """All that server and clients agree on.

    Attributes:
      task: `name` and options of a task of `load_task` (`partition_seed` is its seed); or `name = "MODULE:FUNCTION"`,
        see `build_task`.
      algorithm: a name in `ALGORITHMS`, or `MODULE:FUNCTION`.
      hyperparameters: of the algorithm.
      rounds, cohort_size, batch_size, local_epochs, local_steps, weighting, seed, eval_every: as in `fedoptax.run`;
        `local_steps = 0` means none, `weighting = ""` the algorithm's own.
      aggregate: as in `fedoptax.run`, as a text.
      privacy, compress: how the algorithm is wrapped, as texts (`fedoptax.experiments.build`); "" is not at all. The
        noise's seed is the server's own (`seed=none`): a number would go to every node.
      quorum: the part of the cohort, in (0, 1], whose replies are enough for a round; the round waits for all until
        `round_timeout` all the same.
      round_timeout: seconds that a round waits for the replies of the nodes that are there.
      wait_limit: seconds that a round waits for a quorum altogether, and the first one for all nodes; then the run
        stops.
      max_examples: the most examples that a client is believed to have; 0 is that of the server's own task.
      checkpoint_every: rounds between checkpoints.
      out: the server's folder for the results.
      resume: continue the run in `out`.
    """

    task: Mapping[str, Plain]
    algorithm: str
    hyperparameters: Mapping[str, Plain] = field(default_factory=dict)
    rounds: int = 100
    cohort_size: int = 10
    batch_size: int = 20
    local_epochs: int = 1
    local_steps: int = 0
    weighting: str = ""
    seed: int = 0
    eval_every: int = 1
    aggregate: str = "mean"
    privacy: str = ""
    compress: str = ""
    quorum: float = 0.5
    round_timeout: float = 600.0
    wait_limit: float = 600.0
    max_examples: int = 0
    checkpoint_every: int = 1
    out: str = "runs/deployment"
    resume: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.task.get("name"), str):
            raise UsageError(f"task: {dict(self.task)} given, allowed is a table with the task's name")
        for name, low in (("local_steps", 0), ("max_examples", 0), ("checkpoint_every", 1)):
            if getattr(self, name) < low:
                raise UsageError(f"{name}: {getattr(self, name)} given, allowed is a whole number >= {low}")
        for name in ("round_timeout", "wait_limit"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name}: {getattr(self, name)} given, allowed is a number of seconds above 0")
        if not 0 < self.quorum <= 1:
            raise UsageError(f"quorum: {self.quorum} given, allowed is a part of the cohort above 0 and at most 1")
        as_aggregator(self.aggregate)
        if self.weighting not in ("", *WEIGHTINGS):
            raise UsageError(f"weighting: '{self.weighting}' given, allowed is one of {', '.join(WEIGHTINGS)}")
        if self.privacy:
            object.__setattr__(self, "privacy", with_secret_seed(self.privacy))

    @property
    def options(self) -> RunOptions:
        """What is run, as options of a simulation: one device, whatever there is."""
        return RunOptions(
            rounds=self.rounds,
            cohort_size=self.cohort_size,
            batch_size=self.batch_size,
            local_epochs=self.local_epochs,
            local_steps=self.local_steps or None,
            weighting=self.weighting or None,
            seed=self.seed,
            eval_every=self.eval_every,
            mesh=1,
            client_states="device",
            examples="device",
            aggregate=self.aggregate,
        )

    def build_algorithm(self, change: Callable[[FedAlgorithm], FedAlgorithm] | None = None) -> FedAlgorithm:
        """Build the algorithm with its wrappers.

        Args:
          change: applied before privacy and compression are wrapped around the algorithm, to replace how a client
            trains (`fedoptax.torch`).

        Raises:
          UsageError: there is none of the name, or a hyper-parameter is wrong.
        """
        algorithm = build(self.algorithm, self.hyperparameters)
        return wrap(algorithm if change is None else change(algorithm), self.privacy or None, self.compress or None)


def build_task(deployment: Deployment, partition: int | None = None, data_dir: str | None = None) -> Task:
    """The deployment's task, as the server (`partition=None`) or one client sees it.

    A named task is whole everywhere. A function `MODULE:FUNCTION` of the app folder is called with the partition (None
    at the server) and returns a `Task`; at a client its `clients` may hold that client's examples alone.

    Raises:
      UsageError: there is no such task or function, or an option is wrong.
      DataError: data are missing or broken.
    """
    name = str(deployment.task["name"])
    if ":" in name and not name.startswith("file:"):
        module, _, attribute = name.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), attribute)):
            raise UsageError(f"task: '{name}' given, allowed is MODULE:FUNCTION")
        try:
            function = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(f"task: '{name}' given, allowed is MODULE:FUNCTION ({error})") from error
        task = function(partition)
        if not isinstance(task, Task):
            raise UsageError(f"task: '{name}' returned {type(task).__name__}, allowed is a Task")
        return task
    from fedoptax.tasks import load_task

    options: dict[str, Any] = {key: value for key, value in deployment.task.items() if key not in ("name", *_SEED)}
    seed = int(deployment.task.get("partition_seed", 0))
    try:
        return load_task(name, seed=seed, data_dir=data_dir, **options)
    except TypeError as error:
        raise UsageError(f"task: {options} given, allowed are the options of load_task ({error})") from error


def to_table(deployment: Deployment) -> dict[str, Any]:
    """The deployment as the table that goes into `pyproject.toml`: kebab-case names, two tables inside."""
    table = {
        f.name.replace("_", "-"): getattr(deployment, f.name) for f in fields(deployment) if f.name not in NAMELESS
    }
    for name in NAMELESS:
        table[name] = dict(getattr(deployment, name))
        for key, value in table[name].items():
            if not isinstance(value, str | int | float):
                raise UsageError(f"{name}: {key}={value!r} given, allowed are texts, numbers, true and false")
    return table


def from_table(table: Mapping[str, Any]) -> Deployment:
    """The deployment of a table as Flower gives it: flat, the keys of the tables inside with a dot.

    Raises:
      UsageError: a name is unknown or missing, or a value has the wrong type or range.
    """
    known = {f.name: f for f in fields(Deployment)}
    given: dict[str, Any] = {name: {} for name in NAMELESS}
    for key, value in table.items():
        outer, dot, inner = key.partition(".")
        name = outer.replace("-", "_")
        if name not in known or bool(dot) != (name in NAMELESS):
            raise UsageError(f"config: '{key}' given, allowed are {', '.join(sorted(known))}")
        if dot:
            given[name][inner] = value
        else:
            given[name] = _typed(key, value, str(known[name].type))
    if "algorithm" not in given:
        raise UsageError("config: no algorithm given, one is needed")
    return Deployment(**given)


def _typed(key: str, value: Any, kind: str) -> Any:
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    allowed = {"str": str, "int": int, "float": float, "bool": bool}[kind]
    if not isinstance(value, allowed) or (kind == "int" and isinstance(value, bool)):
        raise UsageError(f"config: {key} = {value!r} given, allowed is a value of type {kind}")
    return value


_SEED = ("partition_seed", "description")
