"""What a deployment is: one flat table of plain values, the `[tool.flwr.app.config]` of the Flower app.

Server and clients read the same table, so they build the same task and the same algorithm.
"""

import importlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fedoptax.algorithm import FedAlgorithm
from fedoptax.deploy.server import UPLOAD_BOUND
from fedoptax.engine.plan import CODED, RunOptions
from fedoptax.errors import UsageError, check_choice, check_flag, check_int, check_number
from fedoptax.experiments.build import build, preset, with_secret_seed, wrap
from fedoptax.tasks import load_task
from fedoptax.tasks.task import Task

Plain = str | int | float | bool
TABLES = ("hyperparameters", "task", "nodes")
"""The fields that are tables of their own."""
LOCAL = (
    "client_loop", "mesh", "client_states", "examples", "engine", "faults", "keep", "stop_after", "personalize",
    "client_metrics", "speeds",
)  # fmt: skip
"""Options of a simulation that mean nothing on a network."""
NOT_GIVEN = {"local_steps": 0, "weighting": "", "resume_round": -1, "secure_aggregation": 0.0, "asynchronous": 0}
"""How the table writes None, which TOML does not have."""
TASK_NAMES = (
    "model", "partition", "alpha", "num_clients", "client_column", "label_column", "validation_fraction",
    "partition_seed",
)  # fmt: skip
"""Options of a task that have an option of the command line each."""


@dataclass(frozen=True, kw_only=True)
class Deployment(RunOptions):
    """All that server and clients agree on, besides the options of every run.

    Attributes:
      task: `name` and options of a task of `load_task` (`partition_seed` is its seed); or `name = "MODULE:FUNCTION"`,
        see `build_task`.
      algorithm: a name in `ALGORITHMS`, or `MODULE:FUNCTION`.
      hyperparameters: of the algorithm.
      privacy, compress: how the algorithm is wrapped, as texts (`fedoptax.experiments.build`); "" means not at all.
        The noise's seed is the server's own (`seed=none`): a number would go to every node.
      quorum: the fraction of the cohort, in (0, 1], whose replies are enough for a round; the round still waits for all
        until `round_timeout`.
      round_timeout: seconds that a round waits for replies once it has a quorum; with `asynchronous`, that a node may
        work.
      wait_limit: seconds that a round waits for a quorum, and the first round for all nodes; then the run stops. With
        `asynchronous`: that it waits for `cohort_size` replies; then a quorum of them is enough, or the run stops.
      max_examples: the most examples that a client is believed to have; 0 means as many as in the server's own task.
      eval_fraction: the fraction of all nodes, in [0, 1], that evaluate the model on their own test examples; 0 is off.
      evaluate: a run's folder, or a `params.npz`, on the server's machine: nothing is trained, the nodes (all, if
        `eval_fraction` is 0) evaluate this model, as one round. "" means off.
      eval_min_nodes: at least so many are asked then, and without as many answers there is no metric.
      upload_bound: how many times larger than the run has shown an upload may be, see `UploadBound`; 0 means any.
      loss_bound: how many times the untrained model's loss (or 1) the test loss may be; more, and the round is not
        kept. 0 means any.
      checkpoint_every: seconds between checkpoints; 0 means one after every round.
      track: names of trackers, separated by commas (`fedoptax.trackers`); they run at the server.
      server_key: the public key of the server's orders, `ssh-ed25519 …`; nodes obey no other.
      signing_key: its private half, a file on the server's machine; relative to the folder in which the SuperLink was
        started.
      nodes: which key holds which partition: by partition the key's fingerprint and, after a space, its holder's name.
      out: the server's folder for the results.
      resume: continue the run in `out`.
      resume_round: from the checkpoint of this round, not the last.

    Raises:
      UsageError: a value is outside its range.
    """

    task: Mapping[str, Plain]
    algorithm: str
    hyperparameters: Mapping[str, Plain] = field(default_factory=dict)
    privacy: str = ""
    compress: str = ""
    quorum: float = 0.5
    round_timeout: float = 600.0
    wait_limit: float = 600.0
    max_examples: int = 0
    eval_fraction: float = 0.0
    eval_min_nodes: int = 1
    evaluate: str = ""
    upload_bound: float = UPLOAD_BOUND
    loss_bound: float = 100.0
    checkpoint_every: float = 0.0
    track: str = ""
    server_key: str = ""
    signing_key: str = "keys/signing.key"
    nodes: Mapping[str, Plain] = field(default_factory=dict)
    out: str = "runs/deployment"
    resume: bool = False
    resume_round: int | None = None
    mesh: int | None = 1
    client_states: str = "device"
    examples: str = "device"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("algorithm", "privacy", "compress", "track", "out", "evaluate", "server_key", "signing_key"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"{name} must be text, got {getattr(self, name)!r}")
        if not isinstance(self.task.get("name"), str):
            raise UsageError(f"task must be a table with the task's name, got {dict(self.task)}")
        check_number("quorum", self.quorum, 0, 1, open_low=True, open_high=False)
        check_number("round_timeout", self.round_timeout, 0, open_low=True)
        check_number("wait_limit", self.wait_limit, 0, open_low=True)
        check_int("max_examples", self.max_examples, 0)
        check_number("eval_fraction", self.eval_fraction, 0, 1, open_high=False)
        check_int("eval_min_nodes", self.eval_min_nodes)
        if self.evaluate:
            for name, value in {"rounds": 1, "eval_fraction": self.eval_fraction or 1.0}.items():
                object.__setattr__(self, name, value)
        elif self.asynchronous is not None and self.eval_fraction:
            raise UsageError("eval_fraction cannot be used with asynchronous: nodes are at work when a round ends")
        for name in ("checkpoint_every", "upload_bound", "loss_bound"):
            check_number(name, getattr(self, name), 0)
        if self.secure_aggregation is not None and self.compress:
            raise UsageError(CODED)
        if self.resume_round is not None:
            check_int("resume_round", self.resume_round, 0)
        check_flag("resume", self.resume)
        fingerprints = {str(entry).split(" ")[0] for entry in self.nodes.values()}
        if len(fingerprints) < len(self.nodes) or not all(partition.isdecimal() for partition in self.nodes):
            raise UsageError(f"nodes must give each partition a key of its own, got {dict(self.nodes)}")
        if self.privacy:
            object.__setattr__(self, "privacy", with_secret_seed(self.privacy))

    @property
    def tracker_names(self) -> tuple[str, ...]:
        """The names of the trackers."""
        return tuple(self.track.split(",")) if self.track else ()

    @property
    def wrappers(self) -> dict[str, str]:
        """The texts of the wrappers that are used, by name."""
        return {name: text for name in ("privacy", "compress") if (text := getattr(self, name))}

    def build_algorithm(self, change: Callable[[FedAlgorithm], FedAlgorithm] | None = None) -> FedAlgorithm:
        """Build the algorithm with its wrappers.

        Args:
          change: applied before privacy and compression are wrapped around the algorithm, to replace how a client
            trains (`fedoptax.torch`).

        Raises:
          UsageError: there is no such algorithm, or a hyper-parameter is wrong.
        """
        algorithm = build(self.algorithm, self.hyperparameters)
        return wrap(algorithm if change is None else change(algorithm), **self.wrappers)


def is_own_function(task_name: str) -> bool:
    """Return whether a task's name is MODULE:FUNCTION, a function of the app."""
    return ":" in task_name and not task_name.startswith("file:")


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
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"task must be MODULE:FUNCTION, got '{name}' ({error})") from error
    task = function(partition)
    if not isinstance(task, Task):
        raise UsageError(f"task '{name}' must return a Task, got {type(task).__name__}")
    return task


def to_table(deployment: Deployment) -> dict[str, Any]:
    """Return the table that stands in `pyproject.toml`: kebab-case names, with two tables inside."""
    table: dict[str, Any] = {}
    for f in fields(deployment):
        value = getattr(deployment, f.name)
        if f.name in TABLES:
            for key, item in value.items():
                if not isinstance(item, str | int | float):
                    raise UsageError(f"{f.name} must be text, numbers, true or false, got {key}={item!r}")
            table[f.name] = {deployment.algorithm: dict(value)} if f.name == "hyperparameters" else dict(value)
        elif f.name not in LOCAL:
            plain = str(value) if f.name == "aggregate" else value
            table[f.name.replace("_", "-")] = NOT_GIVEN[f.name] if value is None else plain
    return table


def from_table(table: Mapping[str, Any]) -> Deployment:
    """Return the deployment of a table as Flower gives it: flat, the keys of the tables inside with a dot.

    Hyper-parameters are in a table of their algorithm's name. Those of other algorithms are left out; where there are
    none of this one, the task's preset is taken.

    Raises:
      UsageError: a name is unknown or missing, or a value has the wrong type or range.
    """
    names = [f.name for f in fields(Deployment) if f.name not in LOCAL]
    given: dict[str, Any] = {name: {} for name in TABLES}
    for key, value in table.items():
        outer, dot, inner = key.partition(".")
        name = outer.replace("-", "_")
        check_choice("config", name, names)
        if bool(dot) != (name in TABLES):
            raise UsageError(f"config: '{key}' must {'not ' if dot else ''}be a table")
        if dot:
            given[name][inner] = value
        else:
            given[name] = None if name in NOT_GIVEN and value == NOT_GIVEN[name] else value
    if "algorithm" not in given:
        raise UsageError("config: algorithm is missing")
    algorithm, tables = given["algorithm"], dict[str, dict[str, Any]]()
    for key, value in given["hyperparameters"].items():
        owner, dot, name = key.rpartition(".")
        if not dot:
            raise UsageError(
                f"config: '{name}' must be in a table of its algorithm's name, [hyperparameters.{algorithm}]"
            )
        tables.setdefault(owner, {})[name] = value
    task = given["task"]
    tuned = preset(str(task.get("name")), algorithm, task.get("model"))
    chosen = tables.get(algorithm, tuned)
    return Deployment(**(given | {"hyperparameters": chosen}))


def simulation_command(deployment: Deployment) -> str | None:
    """Return the command whose simulation a deployment equals; None if there is none.

    There is none for a task that is a function of the app, nor for asynchronous rounds: who is late is not known.
    """
    task = dict(deployment.task)
    name = str(task.pop("name"))
    if is_own_function(name) or deployment.evaluate or deployment.asynchronous:
        return None
    left_out = {*LOCAL, "asynchronous", "staleness_exponent"}
    left_out.add("local_steps" if deployment.local_steps is None else "local_epochs")
    options: list[tuple[str, Any]] = [("task", name), ("preset", "none"), ("algorithm", deployment.algorithm)]
    options += [(key, task.pop(key)) for key in TASK_NAMES if key in task]
    options += [("task_set", f"{key}={value}") for key, value in task.items()]
    options += [("set", f"{key}={value}") for key, value in deployment.hyperparameters.items()]
    options += [(f.name, getattr(deployment, f.name)) for f in fields(RunOptions) if f.name not in left_out]
    options += deployment.wrappers.items()
    given = [(f"--{key.replace('_', '-')}", str(value)) for key, value in options if value is not None]
    return shlex.join(["fedoptax", "run", *(word for pair in given for word in pair)])
