"""The options of every command: a dataclass per command, whose docstring is the command's help."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, dataclass_transform, get_args, get_origin, get_type_hints

from fedoptax.deploy.options import NetworkOptions
from fedoptax.engine.options import Option, RunOptions, options_of
from fedoptax.errors import check_int
from fedoptax.experiments.parsing import check_task, parse_pairs, parse_value
from fedoptax.names import check_algorithm, split_algorithms

DATA_DIR = "Folder with one subfolder per data set. [default: $FEDOPTAX_DATA, else the cache folder]"
PAIRS, SETTINGS = "NAME=VALUE", "Hyper-parameters; ALGORITHM.NAME=VALUE sets one algorithm's."
KINDS = {"int": int | None, "float": float | None, "str": str | None, "bool": bool | None}
"""The types of the options of runs by their annotation's first word; others are NAME=VALUE texts."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Form:
    """The parameters of a command as fields; every subclass is a dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class Parameter(NamedTuple):
    """A parameter of a command: type, default, and the description of an option or the help of an argument."""

    kind: Any
    default: Any
    about: Option | str


def option(help: str, default: Any = None, group: str = "Output", **about: Any) -> Any:
    """Declare an option with the name of its field; lists and dictionaries may be repeated."""
    return field(default_factory=partial(copy, default), metadata={"about": Option(help, group, **about)})


of_data, of_algorithm, of_search, of_hardware, of_network = (
    partial(option, group=group) for group in ("Data", "Algorithm", "Search", "Hardware", "Network")
)


def argument(help: str, default: Any = ...) -> Any:
    """Declare a positional argument, which is required unless it has a default."""
    return field(default_factory=partial(copy, default), metadata={"about": help})


def options_from(kind: Any, choose: Callable[[str, Option], bool] = lambda *_: True, default_text: str = "") -> Any:
    """Declare a field with the values, by name, of the options of `kind`, or of some of them."""
    parameters = {}
    for name, about in options_of(kind).items():
        declared, text = kind.__dataclass_fields__[name], default_text or about.default_text
        type_, default = KINDS.get(declared.type.split(" ")[0], dict[str, Any]), None if text else declared.default
        if choose(name, about):
            parameters[name] = Parameter(type_, default, replace(about, default_text=text))
    return field(default_factory=dict, metadata={"parameters": parameters})


def parameters_of(form: type) -> dict[str, Parameter]:
    """Return the parameters of a command by name: the fields of its form, and the options within fields."""
    hints, parameters = get_type_hints(form), dict[str, Parameter]()
    for of in fields(form):
        parameters |= of.metadata.get("parameters", {})
        if "about" in of.metadata:
            default = of.default_factory()  # type: ignore[operator]
            parameters[of.name] = Parameter(hints[of.name], default, of.metadata["about"])
    return parameters


def read_form(form: type, values: Mapping[str, Any]) -> Any:
    """Return the form of a command's parameters, checked as far as possible before anything slow is imported."""
    read = {name: _read(name, parameter, values[name]) for name, parameter in parameters_of(form).items()}
    chosen = dict[str, Any]()
    for of in fields(form):
        held = of.metadata.get("parameters")
        chosen[of.name] = read[of.name] if held is None else {n: v for n in held if (v := read[n]) not in (None, {})}
    return form(**chosen)


def _read(name: str, parameter: Parameter, value: Any) -> Any:
    """Return the checked value of a parameter; NAME=VALUE texts become a dictionary."""
    kind, default, about = parameter
    if get_origin(kind) is dict:
        value = [f"paper={text}" if text.partition(":")[0] == "paper" else text for text in value]  # a paper's grid
        value = parse_pairs(name.rstrip("_"), value, parse=str if get_args(kind)[1] is str else parse_value)
    if isinstance(about, Option) and about.check is not None and value not in (None, {}, default):
        about.check(name, value)
    return value


class AlgorithmOptions(Form):
    """One algorithm."""

    algorithm: str = of_algorithm("Algorithm, see `fedoptax list algorithms`, or MODULE:FUNCTION.", "fedadam",
        check=lambda name, value: check_algorithm(value))  # fmt: skip


class TaskForm(Form):
    """The task, and how its examples are divided among clients."""

    task: str = of_data("Task, see `fedoptax list tasks`; for your own data file:PATH, text:PATH or MODULE:FUNCTION.",
        "digits", check=check_task)  # fmt: skip
    partition: str | None = of_data("How examples are divided among clients. [default: the task's]")
    alpha: float | None = of_data("Dirichlet concentration; smaller is less iid. [default: the task's]")
    num_clients: int | None = of_data("Clients in the federation. [default: the task's]")
    client_column: str | None = of_data("Column or array of client ids, for file:PATH and text:PATH.")
    label_column: str | None = of_data("Column or array of labels, for --task file:PATH.")
    schema: str | None = of_data("Schema of a table, written by `fedoptax data describe`.", metavar="FILE")
    validation_fraction: float | None = of_data("Fraction of each client's training examples to hold out.")
    task_set: dict[str, Any] = of_data("Other options of the task, see `fedoptax list tasks`.", {}, metavar=PAIRS)
    partition_seed: int = of_data("Seed of the partition.", 0, check=partial(check_int, low=0, high=2**63 - 1))
    data_dir: Path | None = of_data(DATA_DIR)
    model: str | None = option("Model, see `fedoptax list tasks --json`. [default: the task's]", group="Model")


class LearningOptions(TaskForm):
    """The options that simulations and deployments share."""

    run: dict[str, Any] = field(default_factory=dict)  # options of rounds, which `options_from` declares
    set_: dict[str, Any] = of_algorithm(SETTINGS, {}, metavar=PAIRS)
    preset: str = of_algorithm("Preset of hyper-parameters: tuned, none, paper or paper:NAME.", "tuned")
    personal: str | None = of_algorithm("Parameters that stay at their client and are never sent: "
        "patterns such as norm*,head.", metavar="PATTERNS")  # fmt: skip
    privacy: str | None = of_algorithm("Client-level privacy, such as clip=1.0,noise_multiplier=2,delta=1e-5.")
    compress: str | None = of_algorithm("Compress uploads: qsgd:bits=4, topk:fraction=0.01 or sign.", metavar="CODEC")
    trackers: list[str] = option("Also log to tensorboard, mlflow or wandb (offline).", [], group="Output",
        metavar="NAME", flags=("--track",))  # fmt: skip


class JsonOption(Form):
    """A command that prints text or JSON."""

    json: bool = option("Print JSON for other programs.", False)


class ExperimentOptions(JsonOption, LearningOptions):
    """The options that simulations share: rounds, hardware, and the folder of the results."""

    run: dict[str, Any] = options_from(RunOptions)
    checkpoint_every: float = option("Seconds between checkpoints.", 60.0)
    out: Path | None = option("Folder for the results. [default: a new one under runs/]")
    overwrite: bool = option("Replace earlier results in --out.", False)


WORKERS = "Compute runs in parallel: N (processes), dask:ADDRESS or submitit:PARTITION. [default: one after another]"


class SearchOptions(Form):
    """The options of a search for hyper-parameters; None is the default."""

    grid: dict[str, str] = of_search("Values separated by commas, or LOW..HIGH in half decades (also :decade, "
        ":quarter); ALGORITHM.NAME=VALUES for one algorithm; weighting=examples,uniform; paper or paper:NAME for the "
        "grid of a paper. [default: all learning rates]", {}, metavar="NAME=VALUES")  # fmt: skip
    select: str | None = of_search("Metric that ranks points, such as test_accuracy. [default: train_loss]")
    last: int | None = of_search("Last rounds to average it over. [default: 100, at most a tenth of all]")
    workers: str | None = of_hardware(WORKERS)


class ProcessOptions(Form):
    """A run by several processes."""

    distributed: bool = of_hardware("Train in several processes, of which this is one.", False)
    coordinator: str | None = of_hardware("Address of process 0. [default: from Slurm, MPI ...]", metavar="HOST:PORT")
    processes: int | None = of_hardware("Number of processes. [default: from Slurm, MPI ...]")
    process: int | None = of_hardware("Index of this process, from 0. [default: from Slurm, MPI ...]")


class RunForm(ProcessOptions, ExperimentOptions, AlgorithmOptions):
    """Run one algorithm on one task.

    Example: fedoptax run --task digits --algorithm fedadam --set server_lr=0.03 --rounds 100 --out runs/a
    """


class CompareForm(SearchOptions, ExperimentOptions):
    """Run several algorithms on one task over seeds and write a report.

    Example: fedoptax compare --task digits --algorithms fedavg,fedadam,fedyogi --seeds 3 --out runs/b
    """

    run: dict[str, Any] = options_from(RunOptions, lambda name, about: name != "seed")
    algorithms: str = of_algorithm("Names separated by commas, or all.", "fedavg,fedadam",
        check=lambda name, value: split_algorithms(value))  # fmt: skip
    seeds: str = option("Number of seeds (0, 1, ...) for each algorithm, or the seeds: 4,5,6.", "3", "Rounds",
        check=lambda name, value: [check_int(name, parse_value(seed), 0) for seed in value.split(",")])  # fmt: skip
    tune: bool = of_search("First search every algorithm's learning rates, with equal budgets.", False)
    budget: int | None = of_search(
        "Points per algorithm, a --grid's first. [default: 16, or the grid's]", check=check_int
    )
    from_: list[Path] = of_search("Use the best point of the search in this folder of `fedoptax tune`; may be "
        "repeated.", [], metavar="FOLDER", flags=("--from",))  # fmt: skip


class TuneForm(SearchOptions, ExperimentOptions, AlgorithmOptions):
    """Search for an algorithm's hyper-parameters and write a report with heat maps.

    Points that differ in numbers alone share one compilation.

    Example: fedoptax tune --algorithm fedadam --grid client_lr=1e-3..1 --grid server_lr=1e-3..1 --out runs/c
    """

    search: Literal["grid", "zoom", "optuna"] | None = of_search("All points of a grid, a coarse grid and "
        "then finer grids around the best point (zoom), or Optuna (extra `optuna`). [default: grid with --grid and no "
        "--trials, else zoom]")  # fmt: skip
    trials: int | None = of_search("Points of a zoom or Optuna search. [default: 16]", check=check_int)


class ResumeForm(ProcessOptions):
    """Continue an interrupted run, comparison or search.

    Example: fedoptax resume runs/a
    """

    folder: Path = argument("The folder of a run, a comparison or a search.")
    resume_round: int | None = option("For a run: start from the checkpoint of this round. [default: the last]",
        group="Rounds", flags=("--round",))  # fmt: skip
    run: dict[str, Any] = options_from(RunOptions, lambda name, about: about.may_change, "unchanged")
    data_dir: Path | None = of_data(DATA_DIR)
    checkpoint_every: float | None = option("Seconds between checkpoints. [default: 60]")
    workers: str | None = of_hardware(WORKERS)


class PredictForm(Form):
    """Predict new examples with the model of a run.

    Example: fedoptax predict runs/a --input new.csv --out predictions.csv
    """

    folder: Path = argument("The folder of a run.")
    input: Path | None = of_data("A .csv, .tsv, .parquet or .npz file, or a folder of images.")
    prompt: str | None = of_data("Prompt for a language model (task text:PATH), instead of --input.")
    tokens: int = option("Maximum number of tokens in the answer to a prompt.", 64)
    out: Path | None = option("A .csv, .parquet or .npz file. [default: CSV on the standard output]")
    top: int = option("Number of most probable classes in the output.", 1)
    threshold: float | None = option("Probability from which the positive class is predicted. [default: 0.5]")
    evaluate: str | None = option("Label column in --input: print metrics instead of predictions.", metavar="LABEL")
    params: str | None = option("best or last parameters. [default: best if saved, else last]", group="Model")


class ExportForm(Form):
    """Write the model of a run for other programs.

    Example: fedoptax export runs/a --out model.safetensors
    """

    folder: Path = argument("The folder of a run.")
    out: Path = option("A .npz or .safetensors file for the parameters, .stablehlo for the model; or a folder for the "
        "adapters of a task text:PATH, as PEFT loads them.", ...)  # fmt: skip
    params: str | None = option("best or last parameters. [default: best if saved, else last]", group="Model")


class ReportForm(Form):
    """Write one HTML page, figures (PNG, SVG, PDF) and tables (CSV, Markdown, LaTeX) about runs.

    Example: fedoptax report runs/b
    """

    folder: Path = argument("A folder with one or more runs in it.")
    out: Path | None = option("Folder for the report. [default: the folder of the runs]")
    target: float | None = option("Target value for rounds to target. [default: 95 % of the best final value]")
    early: int | None = option("Number of first rounds for early progress. [default: a fifth of all]")


class ListForm(JsonOption):
    """List the tasks, the algorithms, or the presets of papers.

    Example: fedoptax list algorithms --json
    """

    what: Literal["tasks", "algorithms", "presets"] = argument("tasks, algorithms or presets.")


class BytesForm(JsonOption, TaskForm):
    """Show the bytes that each algorithm sends and receives per client, per round and per run.

    Example: fedoptax bytes --task digits --algorithm fedadam
    """

    algorithms: str = of_algorithm("Names separated by commas, or all.", "all", flags=("--algorithm", "--algorithms"),
        check=lambda name, value: split_algorithms(value))  # fmt: skip
    set_: dict[str, Any] = of_algorithm(SETTINGS, {}, metavar=PAIRS)
    run: dict[str, Any] = options_from(RunOptions, lambda name, about: name in ("rounds", "cohort_size"))


class FetchForm(Form):
    """Download a data set from its publisher, check its hash and unpack it.

    Example: fedoptax data fetch fashion-mnist --data-dir data
    """

    name: str = argument("Data set, such as mnist; see `fedoptax data check`.")
    data_dir: Path | None = of_data(DATA_DIR)


class CheckForm(JsonOption):
    """Check the files of data sets: their hashes, and the number of examples and clients.

    Example: fedoptax data check mnist cifar10
    """

    names: list[str] = argument("Data sets. Default: all.", [])
    data_dir: Path | None = of_data(DATA_DIR)


class DescribeForm(Form):
    """Write a schema of a table's columns, for you to edit, and warn of suspicious columns.

    Example: fedoptax data describe patients.csv --client-column site --label-column outcome --out schema.toml
    """

    file: Path = argument("A .csv, .tsv or .parquet file.")
    label_column: str = of_data("Column to predict.", "label")
    client_column: str | None = of_data("Column of client ids. [default: client, if there is one]")
    target: Literal["class", "number"] | None = of_data("Kind of the labels. [default: inferred from them]")
    out: Path | None = option("A .toml file. [default: the standard output]")
    overwrite: bool = option("Replace an earlier file.", False)


class PartitionForm(JsonOption, TaskForm):
    """Show a partition: measures of heterogeneity, a table of the clients, and a plot.

    Example: fedoptax data partition --task digits --partition dirichlet --alpha 0.1
    """

    out: Path | None = option("Folder for partition.csv and partition.png. [default: a new one under runs/]")
    overwrite: bool = option("Replace earlier results in --out.", False)


class DeploymentOptions(LearningOptions, AlgorithmOptions):
    """The options of a deployment; the app's config has the same names."""

    run: dict[str, Any] = options_from(NetworkOptions)


class InitForm(DeploymentOptions):
    """Write a Flower app, with certificates and node keys for a local trial.

    Example: fedoptax deploy init federation --algorithm scaffold --set client_lr=0.3 --set server_lr=1 --rounds 5
    """

    folder: Path = argument("A new folder for the app and the keys.")
    nodes: int | None = of_network("Number of SuperNodes, one per client; without --key, a key is made for each. "
        "[default: 4]")  # fmt: skip
    key: list[Path] = of_network("Public key of a node; the first key is for partition 0, and so on.", [],
        metavar="FILE")  # fmt: skip
    host: list[str] = of_network("Host name or address for the server's certificate, besides localhost.", [])


class AddNodeForm(Form):
    """Assign a partition of a federation's data to a node's key.

    Example: fedoptax deploy add-node federation clinic-c.pub --partition 2
    """

    folder: Path = argument("A folder made by `fedoptax deploy init`.")
    key: Path = argument("The node's public key.")
    partition: int | None = of_network("The node's partition, taken from its previous key. [default: a new one]")


class DeploymentStatusForm(JsonOption):
    """Show the progress of a deployment, its connected nodes, the time per round, and nodes left out.

    Example: fedoptax deploy status runs/network --watch
    """

    run_folder: Path = argument("The run's folder, on the server.")
    watch: bool = option("Repeat it every two seconds until the run ends.", False)


class LocalForm(JsonOption, DeploymentOptions):
    """Run a federation on this machine: a SuperLink and SuperNodes with TLS and node authentication.

    Example: fedoptax deploy local --algorithm scaffold --set client_lr=0.3 --set server_lr=1 --rounds 5 --out runs/a
    """

    nodes: int | None = of_network("Number of SuperNodes, one per client. [default: 4, or the number of keys in --app]")
    app: Path | None = of_network("A folder made by `fedoptax deploy init`. [default: a new one]")
    data_file: list[Path] = of_network("With --schema: the table of a node, once for each.", [], metavar="FILE")
    port: int = of_network("Port of the SuperLink; 0: any free port.", 0)
    node_port: int = of_network("Port of the first SuperNode; 0: any free ports.", 0)
    start_timeout: float = of_network("Seconds a process may take to start.", 120.0)
    time_limit: float = of_network("Seconds until all processes are stopped.", 86400.0)
    out: Path | None = option("Folder for the results. [default: runs/deployment]", group="Output")
    resume: Path | None = option("Continue the run in this folder.", group="Output")
    resume_round: int | None = option("With --resume: start from the checkpoint of this round. [default: the last]",
        group="Rounds", flags=("--round",))  # fmt: skip
