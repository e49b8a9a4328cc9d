"""The settings of a deployment: a flat table of plain values, the `[tool.flwr.app.config]` of the Flower app.

Server and clients read the same table, so they build the same task and the same algorithm.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from functools import partial
from typing import Any

from fedoptax.algorithm import FedAlgorithm
from fedoptax.deploy.options import NetworkOptions
from fedoptax.engine.options import TEXT, RoundOptions, RunOptions, of_algorithm, option, options_of, with_attributes
from fedoptax.engine.plan import CODED
from fedoptax.errors import UsageError, check_choice, check_flag, check_int
from fedoptax.experiments.build import WRAPPERS, build, import_function, with_secret_seed, wrap
from fedoptax.experiments.parsing import format_value
from fedoptax.experiments.presets import find_preset
from fedoptax.names import BASELINES
from fedoptax.tasks import load_task
from fedoptax.tasks.task import Task
from fedoptax.trackers import TRACKERS

Plain = str | int | float | bool
TABLE = "table"
"""The name of the task whose nodes have a table each, see `fedoptax.deploy.tables`."""
TABLES = ("hyperparameters", "task", "nodes")
"""The fields that are tables of their own."""


@with_attributes
@dataclass(frozen=True, kw_only=True)
class Deployment(NetworkOptions):
    """All that server and clients agree on.

    `task` has the `name` and options of a task of `load_task` (`partition_seed` is its seed), or
    `name = "MODULE:FUNCTION"`, see `build_task`. `hyperparameters` are the algorithm's. `nodes` says which key holds
    which partition: by partition the key's fingerprint and, after a space, its holder's name.
    """

    task: Mapping[str, Plain]
    hyperparameters: Mapping[str, Plain] = field(default_factory=dict)
    nodes: Mapping[str, Plain] = field(default_factory=dict)
    algorithm: str = of_algorithm(MISSING, "A name in ALGORITHMS, or MODULE:FUNCTION.", TEXT)
    personal: str = of_algorithm("", "Patterns of parameters that stay at the nodes; empty for none.", TEXT)
    privacy: str = of_algorithm("", "Differential privacy, as a text (see `fedoptax.experiments.build`); empty for "
        "none. The noise's seed is the server's own (seed=none): a number would go to every node.", TEXT)  # fmt: skip
    compress: str = of_algorithm("", "Codec of uploads, as a text; empty for none.", TEXT)
    evaluate: str = option("", "A run's folder, or a params.npz, on the server's machine: nothing is trained, the "
        "nodes (all, if eval_fraction is 0) evaluate this model, as one round. Empty for none.", TEXT,
        group="Evaluation")  # fmt: skip
    track: str = option("", "Trackers that run at the server, separated by commas.", TEXT)
    server_key: str = option("", "The public key of the server's orders, ssh-ed25519 …; nodes obey no other.", TEXT,
        group="Network")  # fmt: skip
    signing_key: str = option("keys/signing.key", "Its private half, a file on the server's machine; relative to the "
        "folder in which the SuperLink was started.", TEXT, group="Network")  # fmt: skip
    out: str = option("runs/deployment", "The server's folder for the results.", TEXT)
    resume: bool = option(False, "Continue the run in out.", check_flag)
    resume_round: int | None = option(None, "Continue from the checkpoint of this round, not the last.",
        partial(check_int, low=0), none=-1)  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.task.get("name"), str):
            raise UsageError(f"task must be a table with the task's name, got {dict(self.task)}")
        for name in self.tracker_names:
            check_choice("track", name, TRACKERS)
        if self.algorithm in BASELINES:
            raise UsageError(f"algorithm {self.algorithm} cannot be deployed: its server has no model to train")
        if self.evaluate and self.personal:
            raise UsageError("evaluate cannot be used with personal: the nodes' own parameters are of their run")
        if self.evaluate:
            for name, value in {"rounds": 1, "eval_fraction": self.eval_fraction or 1.0}.items():
                object.__setattr__(self, name, value)
        elif self.asynchronous is not None and self.eval_fraction:
            raise UsageError("eval_fraction cannot be used with asynchronous: nodes are training when a round ends")
        if self.secure_aggregation is not None and self.compress:
            raise UsageError(CODED)
        fingerprints = {str(entry).split(" ")[0] for entry in self.nodes.values()}
        if len(fingerprints) < len(self.nodes) or not all(partition.isdecimal() for partition in self.nodes):
            raise UsageError(f"nodes must have a different key for each partition, got {dict(self.nodes)}")
        if self.privacy:
            object.__setattr__(self, "privacy", with_secret_seed(self.privacy))

    @property
    def run_options(self) -> RunOptions:
        """The options of the rounds for the engine: a node is one device, and has its own state."""
        shared = {name: getattr(self, name) for name in options_of(RoundOptions)}
        return RunOptions(**shared, mesh=1, client_states="device", examples="device")

    @property
    def tracker_names(self) -> tuple[str, ...]:
        """The names of the trackers."""
        return tuple(filter(None, self.track.split(",")))

    @property
    def wrappers(self) -> dict[str, Any]:
        """The texts of the wrappers that are used, by name."""
        return {name: text for name in WRAPPERS if (text := getattr(self, name))}

    def build_algorithm(self, change: Callable[[FedAlgorithm], FedAlgorithm] | None = None) -> FedAlgorithm:
        """Build the algorithm with its wrappers; a `UsageError` if there is none, or a hyper-parameter is wrong.

        `change` is applied before privacy and compression are wrapped around the algorithm, to replace how a client
        trains (`fedoptax.torch`).
        """
        algorithm = build(self.algorithm, self.hyperparameters)
        return wrap(algorithm if change is None else change(algorithm), **self.wrappers)


def is_own_function(task_name: str) -> bool:
    """Return whether a task's examples are at the nodes alone: MODULE:FUNCTION, a function of the app, or a table."""
    return task_name == TABLE or (":" in task_name and not task_name.startswith(("file:", "text:")))


def build_task(deployment: Deployment, partition: int | None = None, data_dir: str | None = None) -> Task:
    """Build the deployment's task, as the server (`partition=None`) or one client sees it.

    A named task is the whole federation everywhere. A function `MODULE:FUNCTION` of the app folder is called with the
    partition (None at the server) and returns a `Task`; at a client its `clients` may hold that client's examples
    alone.

    Raises:
      UsageError: there is no such task or function, or an option is wrong.
      DataError: data are missing or damaged.
    """
    name = str(deployment.task["name"])
    if not is_own_function(name):
        options: dict[str, Any] = dict(deployment.task)
        seed = options.pop("partition_seed", 0)
        del options["name"]
        return load_task(name, seed=seed, data_dir=data_dir, **options)
    task = import_function("task", name)(partition)
    if not isinstance(task, Task):
        raise UsageError(f"task '{name}' must return a Task, got {type(task).__name__}")
    return task


def to_table(deployment: Deployment) -> dict[str, Any]:
    """Return the table for `pyproject.toml`: kebab-case names, with `TABLES` inside."""
    table: dict[str, Any] = {name: dict(getattr(deployment, name)) for name in TABLES}
    for name, content in table.items():
        for key, item in content.items():
            if not isinstance(item, str | int | float):
                raise UsageError(f"{name} must be text, numbers, true or false, got {key}={item!r}")
    table["hyperparameters"] = {deployment.algorithm: table["hyperparameters"]}
    for name, about in options_of(Deployment).items():
        value = getattr(deployment, name)
        table[name.replace("_", "-")] = about.none if value is None else str(value) if name == "aggregate" else value
    return table


def from_table(table: Mapping[str, Any]) -> Deployment:
    """Return the deployment of a table in Flower's flat form, with the keys of inner tables after a dot.

    Hyper-parameters are in a table of their algorithm's name. Those of other algorithms are left out; where there are
    none of this one, the task's preset is taken. A name that is unknown or missing, or a value of a wrong type or
    range, is a `UsageError`.
    """
    options = options_of(Deployment)
    tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
    values: dict[str, Any] = {}
    for key, value in table.items():
        outer, dot, inner = key.partition(".")
        name = outer.replace("-", "_")
        check_choice("config", name, [*options, *TABLES])
        if bool(dot) != (name in TABLES):
            raise UsageError(f"config: '{key}' must {'not ' if dot else ''}be a table")
        if dot:
            tables[name][inner] = value
        else:
            values[name] = None if value == options[name].none else value
    if (algorithm := values.get("algorithm")) is None:
        raise UsageError("config: algorithm is missing")
    if loose := [key for key in tables["hyperparameters"] if "." not in key]:
        raise UsageError(f"config: '{loose[0]}' must be in a table of its algorithm, [hyperparameters.{algorithm}]")
    pairs = [(key.rpartition("."), value) for key, value in tables["hyperparameters"].items()]
    hyperparameters = {name: value for (owner, _, name), value in pairs if owner == algorithm}
    task = tables["task"]
    preset, _ = find_preset(str(task.get("name")), algorithm, task.get("model"))
    return Deployment(**values | tables | {"hyperparameters": hyperparameters or preset})


def simulation_command(deployment: Deployment) -> str | None:
    """Return the command of the simulation that a deployment equals; None if there is none.

    There is none for examples at nodes alone, `evaluate`, nor asynchronous rounds: who is late is not known.
    """
    task = dict(deployment.task)
    name = str(task.pop("name"))
    if is_own_function(name) or deployment.evaluate or deployment.asynchronous:
        return None
    seed, work = task.pop("partition_seed", 0), "local_steps" if deployment.local_steps is None else "local_epochs"
    options = [("task", name), ("preset", "none"), ("algorithm", deployment.algorithm), ("partition_seed", seed)]
    options += [("task_set", f"{key}={format_value(value)}") for key, value in task.items()]
    options += [("set", f"{key}={format_value(value)}") for key, value in deployment.hyperparameters.items()]
    shared = [key for key, about in options_of(RoundOptions).items() if key != work and not about.needs]
    options += [(key, getattr(deployment, key)) for key in shared]
    options += deployment.wrappers.items()
    words = [(f"--{key.replace('_', '-')}", str(value)) for key, value in options if value is not None]
    return shlex.join(["fedoptax", "run", *(word for pair in words for word in pair)])
