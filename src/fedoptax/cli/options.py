"""The options of every command: a dataclass per command, whose docstring is the command's help."""

# ruff: noqa: RUF009 (option and argument return fields)

from collections.abc import Callable
from copy import copy
from dataclasses import Field, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fedoptax.deploy.options import NetworkOptions
from fedoptax.engine.options import Option, RunOptions
from fedoptax.names import check_algorithm, split_algorithms

DATA_DIR = "Folder with one subfolder per data set. [default: $FEDOPTAX_DATA, else the cache folder]"
PAIRS, SETTINGS = "NAME=VALUE", "Hyper-parameters; ALGORITHM.NAME=VALUE sets one algorithm's."


GROUPS = {
    "AlgorithmOptions": "Algorithm", "TaskOptions": "Data", "LearningOptions": "Algorithm", "SearchOptions": "Search",
    "ProcessOptions": "Hardware", "Init": "Network", "AddNode": "Network", "Local": "Network",
}  # fmt: skip
"""The headings of `--help` by the class that declares the options."""


def group_of(form: type, name: str) -> str:
    """Return the heading of an option of a form."""
    owner = next(kind for kind in form.__mro__ if name in kind.__annotations__)
    return GROUPS.get(owner.__name__, "Output")


def option(help: str, default: Any = None, group: str = "", **about: Any) -> Any:
    """Declare an option with the name of its field; one that is a list or a dictionary may be given several times.

    Its `group` in `--help` is by default the one that its class has in `GROUPS`, else the output.
    """
    return field(default_factory=partial(copy, default), metadata={"option": Option(help, group, **about)})


def argument(help: str, default: Any = ...) -> Any:
    """Declare an argument, which has a place instead of a name; it is needed unless it has a default."""
    return field(default_factory=partial(copy, default), metadata={"argument": help})


def options_from(kind: type, choose: Callable[[Field[Any]], bool] = bool, default_text: str = "") -> Any:
    """Declare a field that holds, by name, what was chosen of the options of `kind`, or of some of them."""
    chosen = [f for f in fields(kind) if choose(f)]
    return field(default_factory=dict, metadata={"fields": chosen, "default_text": default_text})


def check_task(name: str, value: str) -> None:
    """Check the name of a task, and the ending of a file; MODULE:FUNCTION is for deployments, which import it."""
    from fedoptax.tasks import recipe_of  # which imports NumPy, slow for `--help`
    from fedoptax.tasks.recipe import PREFIX

    if ":" not in value or value.startswith(PREFIX):
        recipe_of(value)
    if value.startswith(PREFIX):
        from fedoptax.data.custom import check_path

        check_path(Path(value.removeprefix(PREFIX)).expanduser())


@dataclass(frozen=True, kw_only=True)
class AlgorithmOptions:
    """One algorithm."""

    algorithm: str = option(
        "Algorithm, see `fedoptax list algorithms`, or MODULE:FUNCTION.", "fedadam",
        check=lambda name, value: check_algorithm(value),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What is learned, and how its examples are divided among clients."""

    task: str = option("Task, see `fedoptax list tasks`; or file:PATH for your own data.", "digits", check=check_task)
    partition: str | None = option("How examples are divided among clients. [default: the task's]")
    alpha: float | None = option("Dirichlet concentration, > 0; smaller is less iid. [default: 0.3]")
    num_clients: int | None = option("Clients in the federation. [default: the task's]")
    client_column: str | None = option("Column or array of client ids, for --task file:PATH.")
    label_column: str | None = option("Column or array of labels, for --task file:PATH.")
    validation_fraction: float | None = option(
        "Share of each client's training examples that is held out for val_ metrics."
    )
    task_set: dict[str, Any] = option(
        "Other options of the task, such as classes=1; see `fedoptax list tasks --json`.", {}, metavar=PAIRS
    )
    partition_seed: int = option("Seed of the partition.", 0)
    data_dir: Path | None = option(DATA_DIR)
    model: str | None = option("Model, see `fedoptax list tasks --json`. [default: the task's]", group="Model")


@dataclass(frozen=True, kw_only=True)
class LearningOptions(TaskOptions):
    """What simulations and deployments share."""

    run: dict[str, Any] = field(default_factory=dict)  # options of rounds, which `options_from` declares
    set_: dict[str, Any] = option(SETTINGS, {}, metavar=PAIRS)
    preset: str = option("Where hyper-parameters start from: tuned, none, paper or paper:NAME.", "tuned")
    privacy: str | None = option("Client-level differential privacy, as clip=1.0,noise_multiplier=0.5,delta=1e-5.")
    compress: str | None = option("Codec of uploads: qsgd:bits=4, topk:fraction=0.01 or sign.", metavar="CODEC")
    trackers: list[str] = option(
        "Also write for tensorboard, mlflow or wandb (offline).", [], group="Output", metavar="NAME", flags=("--track",)
    )


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    """A command that prints text or JSON."""

    json: bool = option("Print JSON for other programs.", False)


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(JsonOption, LearningOptions):
    """What simulations share: how their rounds are computed, and where results go."""

    run: dict[str, Any] = options_from(RunOptions)
    checkpoint_every: float = option("Seconds between checkpoints.", 60.0)
    out: Path | None = option("Folder for the results. [default: a new one under runs/]")
    overwrite: bool = option("Replace earlier results in --out.", False)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What a search for hyper-parameters takes; None stands for the default."""

    grid: dict[str, str] = option(
        "Values separated by commas, or LOW..HIGH in half decades (also :decade, :quarter); "
        "ALGORITHM.NAME=VALUES for one algorithm. [default: the learning rates]",
        {},
        metavar="NAME=VALUES",
    )
    select: str | None = option(
        "What ranks points: train_loss, or a metric such as test_accuracy. [default: train_loss]"
    )
    last: int | None = option("Rounds at the end over which it is averaged. [default: 100, at most a tenth of all]")


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """A run by several processes."""

    distributed: bool = option("Run as one of several processes that train together, each on its own devices.", False)
    coordinator: str | None = option("Address of process 0. [default: from Slurm, MPI ...]", metavar="HOST:PORT")
    processes: int | None = option("Number of processes. [default: from Slurm, MPI ...]")
    process: int | None = option("Index of this process, from 0. [default: from Slurm, MPI ...]")


@dataclass(frozen=True, kw_only=True)
class Run(ProcessOptions, ExperimentOptions, AlgorithmOptions):
    """Run one algorithm on one task.

    Example: fedoptax run --task digits --algorithm fedadam --set server_lr=0.03 --rounds 100 --out runs/a
    """


@dataclass(frozen=True, kw_only=True)
class Compare(SearchOptions, ExperimentOptions):
    """Run several algorithms on one task over seeds and write a report.

    Example: fedoptax compare --task digits --algorithms fedavg,fedadam,fedyogi --seeds 3 --out runs/b
    """

    run: dict[str, Any] = options_from(RunOptions, lambda f: f.name != "seed")
    algorithms: str = option(
        "Names separated by commas, or all.", "fedavg,fedadam", group="Algorithm",
        check=lambda name, value: split_algorithms(value),
    )  # fmt: skip
    seeds: int = option("Number of seeds, from 0, each run by every algorithm.", 3, group="Rounds")
    tune: bool = option("First search every algorithm's rates, with the same number of points.", False, group="Search")
    budget: int | None = option("Points per algorithm, with --tune. [default: 16]", group="Search")


@dataclass(frozen=True, kw_only=True)
class Tune(SearchOptions, ExperimentOptions, AlgorithmOptions):
    """Search for an algorithm's hyper-parameters and write a report with heat maps.

    All points share one compilation.

    Example: fedoptax tune --algorithm fedadam --grid client_lr=1e-3..1 --grid server_lr=1e-3..1 --out runs/c
    """

    search: Literal["grid", "optuna"] = option(
        "grid, or optuna (extra `optuna`) within the grid's ranges.", "grid", group="Search"
    )
    trials: int | None = option("Points of --search optuna. [default: 25]", group="Search")


@dataclass(frozen=True, kw_only=True)
class Resume(ProcessOptions):
    """Continue a run, a comparison or a search that was interrupted.

    Example: fedoptax resume runs/a
    """

    folder: Path = argument("The folder of a run, a comparison or a search.")
    resume_round: int | None = option(
        "Go back to the checkpoint of this round, for a run. [default: the last]", group="Rounds", flags=("--round",)
    )
    run: dict[str, Any] = options_from(RunOptions, lambda f: f.metadata["option"].may_change, "as the run began")
    data_dir: Path | None = option(DATA_DIR, group="Data")
    checkpoint_every: float | None = option("Seconds between checkpoints. [default: 60]")


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Predict new examples with the model of a run.

    Example: fedoptax predict runs/a --input new.csv --out predictions.csv
    """

    folder: Path = argument("The folder of a run.")
    input: Path = option("A .csv, .tsv, .parquet or .npz file, or a folder of images.", ..., group="Data")
    out: Path | None = option("A .csv, .parquet or .npz file. [default: CSV on the standard output]")
    top: int = option("How many of the most probable classes are named.", 1)
    params: str | None = option("best or last parameters. [default: best if they were kept, else last]", group="Model")


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the model of a run for other programs.

    Example: fedoptax export runs/a --out model.safetensors
    """

    folder: Path = argument("The folder of a run.")
    out: Path = option("A .npz or .safetensors file for the parameters, .stablehlo for the model.", ...)
    params: str | None = option("best or last parameters. [default: best if they were kept, else last]", group="Model")


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one HTML page, PNG figures, and CSV and Markdown tables about the runs in a folder.

    Example: fedoptax report runs/b
    """

    folder: Path = argument("A folder with one or more runs in it.")
    out: Path | None = option("Folder for the report. [default: the folder of the runs]")
    target: float | None = option("Value of the metric for `rounds to target`.")


@dataclass(frozen=True, kw_only=True)
class List(JsonOption):
    """List the tasks, the algorithms, or the papers' settings of the tasks.

    Example: fedoptax list algorithms --json
    """

    what: Literal["tasks", "algorithms", "presets"] = argument("tasks, algorithms or presets.")


@dataclass(frozen=True, kw_only=True)
class Bytes(JsonOption, TaskOptions):
    """Show how many bytes each algorithm sends and receives, per client, per round and in a whole run.

    Example: fedoptax bytes --task digits --algorithm fedadam
    """

    algorithms: str = option(
        "Names separated by commas, or all.", "all", group="Algorithm", flags=("--algorithm", "--algorithms"),
        check=lambda name, value: split_algorithms(value),
    )  # fmt: skip
    set_: dict[str, Any] = option(SETTINGS, {}, group="Algorithm", metavar=PAIRS)
    run: dict[str, Any] = options_from(RunOptions, lambda f: f.name in ("rounds", "cohort_size"))


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Download a data set from its publisher, check its hash and unpack it.

    Example: fedoptax data fetch fashion-mnist --data-dir data
    """

    name: str = argument("Data set, such as mnist; see `fedoptax data check`.")
    data_dir: Path | None = option(DATA_DIR, group="Data")


@dataclass(frozen=True, kw_only=True)
class Check(JsonOption):
    """Verify the files of data sets: their hashes, and the counts of what the readers find.

    Example: fedoptax data check mnist cifar10
    """

    names: list[str] = argument("Data sets. Default: all.", [])
    data_dir: Path | None = option(DATA_DIR, group="Data")


@dataclass(frozen=True, kw_only=True)
class Partition(JsonOption, TaskOptions):
    """Show which client holds what: measures of heterogeneity, a table of the clients, and a picture.

    Example: fedoptax data partition --task digits --partition dirichlet --alpha 0.1
    """

    out: Path | None = option("Folder for partition.csv and partition.png. [default: a new one under runs/]")
    overwrite: bool = option("Replace earlier results in --out.", False)


@dataclass(frozen=True, kw_only=True)
class DeploymentOptions(LearningOptions, AlgorithmOptions):
    """What is trained over a network, and how; the app's config has the same names."""

    run: dict[str, Any] = options_from(NetworkOptions)


@dataclass(frozen=True, kw_only=True)
class Init(DeploymentOptions):
    """Write a Flower app, with certificates and node keys for a local trial.

    Example: fedoptax deploy init federation --algorithm scaffold --set client_lr=0.3 --set server_lr=1 --rounds 5
    """

    folder: Path = argument("A new folder for the app and the keys.")
    nodes: int | None = option(
        "Number of SuperNodes, one per client; a key is made for each unless --key gives theirs. [default: 4]"
    )
    key: list[Path] = option(
        "Public key of a node that has one; the first is for partition 0, and so on.", [], metavar="FILE"
    )
    host: list[str] = option("Name or address of the server in its certificate, besides localhost.", [])


@dataclass(frozen=True, kw_only=True)
class AddNode:
    """Assign a partition of a federation's data to a node's key.

    Example: fedoptax deploy add-node federation clinic-c.pub --partition 2
    """

    folder: Path = argument("A folder by `fedoptax deploy init`.")
    key: Path = argument("The node's public key.")
    partition: int | None = option(
        "The node's partition; a key that had it loses it. [default: a new one, if the task is a function]"
    )


@dataclass(frozen=True, kw_only=True)
class Local(JsonOption, DeploymentOptions):
    """Run a federation on this machine: a SuperLink and SuperNodes with TLS and node authentication.

    Example: fedoptax deploy local --algorithm scaffold --set client_lr=0.3 --set server_lr=1 --rounds 5 --out runs/a
    """

    nodes: int | None = option("Number of SuperNodes, one per client. [default: 4, or the number of keys in --app]")
    app: Path | None = option("A folder by `fedoptax deploy init`. [default: a new one]")
    port: int = option("Port of the SuperLink; 0: a free one.", 0)
    node_port: int = option("Port of the first SuperNode; 0: free ones.", 0)
    start_timeout: float = option("Seconds a process may take to start.", 120.0)
    time_limit: float = option("Seconds until all processes are stopped.", 86400.0)
    out: Path | None = option("Folder for the results. [default: runs/deployment]", group="Output")
    resume: Path | None = option("Continue the run in this folder.", group="Output")
    resume_round: int | None = option(
        "Go back to the checkpoint of this round, with --resume. [default: the last]",
        group="Rounds",
        flags=("--round",),
    )
