"""The options of every command: a dataclass per command, whose docstring is the command's help."""

# ruff: noqa: RUF009 (option and argument return fields)

from copy import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import typer

DATA_DIR = "Folder with one subfolder per data set. Default: $FEDOPTAX_DATA, else the cache."


def option(help: str, default: Any = None, metavar: str | None = None, names: tuple[str, ...] = ()) -> Any:
    """Declare an option with the name of its field; one that is a list may be given several times."""
    about = typer.Option(*names, help=help, metavar=metavar)
    return field(default_factory=partial(copy, default), metadata={"parameter": about})


def argument(help: str, default: Any = ...) -> Any:
    """Declare an argument, which has a place instead of a name; it is needed unless it has a default."""
    return field(default_factory=partial(copy, default), metadata={"parameter": typer.Argument(help=help)})


@dataclass(frozen=True, kw_only=True)
class AlgorithmOptions:
    """One algorithm, and the seed of its run."""

    algorithm: str = option("Algorithm, see `fedoptax list algorithms`, or MODULE:FUNCTION.", "fedadam")
    seed: int = option("Seed of initialisation, cohorts and data order.", 0)


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What is learned, and how its examples are divided among clients."""

    task: str = option("Task, see `fedoptax list tasks`; or file:PATH for your own data.", "digits")
    model: str | None = option("Model, see `fedoptax list tasks --json`. Default: the task's.")
    partition: str | None = option("How examples are divided among clients. Default: the task's.")
    alpha: float | None = option("Dirichlet concentration, > 0; smaller is less iid. Default: 0.3.")
    num_clients: int | None = option("Clients in the federation. Default: the task's.")
    client_column: str | None = option("Column or array of client ids, for --task file:PATH.")
    label_column: str | None = option("Column or array of labels, for --task file:PATH.")
    validation_fraction: float | None = option("Share of each client's training examples held out, for val_ metrics.")
    task_set: list[str] = option(
        "Any other option of the task, such as classes=1; see `fedoptax list tasks --json`.", [], "NAME=VALUE"
    )
    partition_seed: int = option("Seed of the partition.", 0)
    data_dir: Path | None = option(DATA_DIR)


@dataclass(frozen=True, kw_only=True)
class LearningOptions(TaskOptions):
    """What simulations and deployments share; None stands for the task's or the algorithm's default."""

    set_: list[str] = option("A hyper-parameter; ALGORITHM.NAME=VALUE for one algorithm.", [], "NAME=VALUE")
    preset: str = option("Where settings start from: tuned, none, paper or paper:NAME.", "tuned")
    rounds: int | None = option("Communication rounds. Default: the task's.")
    cohort_size: int | None = option("Clients per round. Default: the task's.")
    batch_size: int | None = option("Examples per local step. Default: the task's.")
    local_epochs: int | None = option("Passes of a client over its examples per round. Default: the task's.")
    local_steps: int | None = option("Local steps of a client per round, instead of epochs.")
    weighting: str | None = option("examples or uniform. Default: as in the algorithm's paper.")
    eval_every: int | None = option("Rounds between evaluations. Default: the task's.")
    asynchronous: int | None = option("Clients at work at any time; a step of the server every --cohort-size uploads.")
    staleness_exponent: float | None = option(
        "Of the weight of late uploads, (1 + steps late)^-exponent. Default: 0.5."
    )
    aggregate: str = option("mean, median, trimmed_mean:0.2, norm_clipping:1.0, krum:2 or krum:2,keep=5.", "mean")
    secure_aggregation: float | None = option(
        "Sum fixed-point uploads from -RANGE to RANGE; a deployment's server learns the sum alone.", None, "RANGE"
    )
    privacy: str | None = option("Client-level differential privacy, as clip=1.0,noise_multiplier=0.5,delta=1e-5.")
    compress: str | None = option("Codec of uploads: qsgd:bits=4, topk:fraction=0.01 or sign.", None, "CODEC")
    track: list[str] = option("Also write for tensorboard, mlflow or wandb (offline).", [], "NAME")


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(LearningOptions):
    """What simulations share: how their rounds are computed, and where results go."""

    fault: list[str] = option("Failing clients: dropout (a rate), deadline (virtual seconds) ...", [], "NAME=VALUE")
    speeds: str | None = option("Virtual seconds per local step: lognormal:SIGMA, or a table client,seconds.")
    client_loop: str = option("loop (a device's clients in turn), vmap (all at once), or auto: the faster.", "auto")
    mesh: int | None = option("Devices (cores of a CPU) that share each round's cohort. Default: all.")
    client_states: str = option("Where clients' states live: auto, device or host.", "auto")
    examples: str = option("Where training examples live: auto, device or stream (from disk).", "auto")
    engine: str = option("compiled, or eager (plain Python, same result, to debug).", "compiled")
    keep: str | None = option("Keep the best evaluated parameters, too: best, or best:val_loss.", None, "best[:METRIC]")
    stop_after: str | None = option("Stop after N evaluations (not rounds) without a better one.", None, "N[:METRIC]")
    client_metrics: bool = option("Write each client's metrics at evaluated rounds to clients.parquet.", False)
    personalize: str | None = option("At the end, evaluate clients after so many local steps.", None, "STEPS[:LR]")
    checkpoint_every: float = option("Seconds between checkpoints.", 60.0)
    out: Path | None = option("Folder for the results. Default: a new one under runs/.")
    overwrite: bool = option("Replace earlier results in --out.", False)
    json: bool = option("Print JSON for other programs.", False)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What a search for hyper-parameters takes; None stands for the default."""

    grid: list[str] = option(
        "Values by commas, or LOW..HIGH in half decades (:decade, :quarter); ALGORITHM.NAME=VALUES for one algorithm. "
        "Default: the rates.",
        [],
        "NAME=VALUES",
    )
    select: str | None = option("What ranks points: train_loss (default), or a metric such as test_accuracy.")
    last: int | None = option("Rounds at the end over which it is averaged. Default: 100, at most a tenth.")


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """A run by several processes."""

    distributed: bool = option("Be one of several processes of a run, each on its own devices.", False)
    coordinator: str | None = option("Address of process 0. Default: found from Slurm, MPI ...", None, "HOST:PORT")
    processes: int | None = option("Number of processes, likewise.")
    process: int | None = option("Number of this process, from 0, likewise.")


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

    algorithms: str = option("Names separated by commas, or all.", "fedavg,fedadam")
    seeds: int = option("Seeds 0 ... n-1, each run by every algorithm.", 3)
    tune: bool = option("First search every algorithm's rates, with the same number of points.", False)
    budget: int | None = option("Points per algorithm, with --tune. Default: 16.")


@dataclass(frozen=True, kw_only=True)
class Tune(SearchOptions, ExperimentOptions, AlgorithmOptions):
    """Search for an algorithm's hyper-parameters, all points on one compilation, and write a report with heat maps.

    Example: fedoptax tune --algorithm fedadam --grid client_lr=1e-3..1 --grid server_lr=1e-3..1 --out runs/c
    """

    search: Literal["grid", "optuna"] = option("grid, or optuna (extra `optuna`) within the grid's ranges.", "grid")
    trials: int | None = option("Points of --search optuna. Default: 25.")


@dataclass(frozen=True, kw_only=True)
class Resume(ProcessOptions):
    """Continue a run, a comparison or a search that was interrupted.

    Example: fedoptax resume runs/a
    """

    folder: Path = argument("The folder of a run, a comparison or a search.")
    round: int | None = option("Go back to the checkpoint of this round, for a run. Default: the last.")
    rounds: int | None = option("A new total of rounds, for a run. Default: as begun.")
    data_dir: Path | None = option(DATA_DIR)
    checkpoint_every: float | None = option("Seconds between checkpoints. Default: 60.")
    mesh: int | None = option("Devices that share each round's cohort. Default: as begun.")


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Predict new examples with the model of a run.

    Example: fedoptax predict runs/a --input new.csv --out predictions.csv
    """

    folder: Path = argument("The folder of a run.")
    input: Path = option("A .csv, .tsv, .parquet or .npz file, or a folder of images.", ...)
    out: Path | None = option("A .csv, .parquet or .npz file. Default: CSV on the standard output.")
    top: int = option("How many of the most probable classes are named.", 1)
    params: str | None = option("best or last. Default: the best where they were kept, else the last.")


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the model of a run for other programs.

    Example: fedoptax export runs/a --out model.safetensors
    """

    folder: Path = argument("The folder of a run.")
    out: Path = option("A .npz or .safetensors file for the parameters, .stablehlo for the model.", ...)
    params: str | None = option("best or last. Default: the best where they were kept, else the last.")


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one HTML page, PNG figures, and CSV and Markdown tables about the runs in a folder.

    Example: fedoptax report runs/b
    """

    folder: Path = argument("A folder with one or more runs in it.")
    out: Path | None = option("Where to write. Default: the folder itself.")
    target: float | None = option("Value of the metric for `rounds to target`.")


@dataclass(frozen=True, kw_only=True)
class List:
    """List the tasks, the algorithms, or the papers' settings of the tasks.

    Example: fedoptax list algorithms --json
    """

    what: Literal["tasks", "algorithms", "presets"] = argument("tasks, algorithms or presets.")
    json: bool = option("Print JSON for other programs.", False)


@dataclass(frozen=True, kw_only=True)
class Bytes(TaskOptions):
    """Show what each algorithm sends: bytes down and up, per client, per round and in a whole run.

    Example: fedoptax bytes --task digits --algorithm fedadam
    """

    algorithms: str = option("Names separated by commas, or all.", "all", names=("--algorithm", "--algorithms"))
    set_: list[str] = option("A hyper-parameter; ALGORITHM.NAME=VALUE for one algorithm.", [], "NAME=VALUE")
    cohort_size: int | None = option("Clients per round. Default: the task's.")
    rounds: int | None = option("Communication rounds. Default: the task's.")
    json: bool = option("Print JSON for other programs.", False)


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Download a data set from its publisher, check its hash and unpack it.

    Example: fedoptax data fetch fashion-mnist --data-dir data
    """

    name: str = argument("Data set, such as mnist; see `fedoptax data check`.")
    data_dir: Path | None = option(DATA_DIR)


@dataclass(frozen=True, kw_only=True)
class Check:
    """Verify the files of data sets: their hashes, and the counts of what the readers find.

    Example: fedoptax data check mnist cifar10
    """

    names: list[str] = argument("Data sets. Default: all.", [])
    data_dir: Path | None = option(DATA_DIR)
    json: bool = option("Print JSON for other programs.", False)


@dataclass(frozen=True, kw_only=True)
class Partition(TaskOptions):
    """Show who holds what: measures of heterogeneity, a table of the clients, and a picture.

    Example: fedoptax data partition --task digits --partition dirichlet --alpha 0.1
    """

    out: Path | None = option("Folder for partition.csv and partition.png. Default: a new one under runs/.")
    overwrite: bool = option("Replace earlier results in --out.", False)
    json: bool = option("Print JSON for other programs.", False)


@dataclass(frozen=True, kw_only=True)
class DeploymentOptions(LearningOptions, AlgorithmOptions):
    """What is trained over a network, and how; the app's config has the same names."""

    quorum: float = option("Fraction of the cohort that is enough for a round.", 0.5)
    round_timeout: float = option("Seconds a round waits for replies once it has a quorum.", 600.0)
    wait_limit: float = option("Seconds a round waits for a quorum.", 600.0)
    max_examples: int = option("Most examples believed of a client; 0: the task's.", 0)
    eval_fraction: float = option("Fraction of the nodes that evaluate on test examples of their own.", 0.0)
    eval_min_nodes: int = option("Fewest nodes that must evaluate, where some do.", 1)
    upload_bound: float = option("Times what the run has shown that an upload's norm may be; 0: any.", 10.0)
    loss_bound: float = option("Times the untrained model's that the test loss may be; 0: any.", 100.0)
    checkpoint_every: float = option("Seconds between checkpoints; 0: after every round.", 0.0)


@dataclass(frozen=True, kw_only=True)
class Init(DeploymentOptions):
    """Write a ready Flower app, with certificates and node keys for a local trial.

    Example: fedoptax deploy init federation --algorithm scaffold --set client_lr=0.3 --set server_lr=1 --rounds 5
    """

    folder: Path = argument("A new folder for the app and the keys.")
    nodes: int | None = option("SuperNodes, one per client: so many keys are made. Default: 4, or one per --key.")
    key: list[Path] = option("Public half of a node's own key; the first is for partition 0, and so on.", [], "FILE")
    host: list[str] = option("Name or address of the server, for its certificate. Beside localhost.", [])


@dataclass(frozen=True, kw_only=True)
class AddNode:
    """Give a key its place in a federation: the partition that its node may hold.

    Example: fedoptax deploy add-node federation clinic-c.pub --partition 2
    """

    folder: Path = argument("A folder by `fedoptax deploy init`.")
    key: Path = argument("The public half of the node's key.")
    partition: int | None = option("Its partition; another key that had it loses it. Default: a new one (own tasks).")


@dataclass(frozen=True, kw_only=True)
class Local(DeploymentOptions):
    """Run a real federation on this machine: a SuperLink and SuperNodes with TLS and node authentication.

    Example: fedoptax deploy local --algorithm scaffold --set client_lr=0.3 --set server_lr=1 --rounds 5 --out runs/a
    """

    nodes: int | None = option("SuperNodes, one per client. Default: 4, or as many as there are keys.")
    app: Path | None = option("A folder by `fedoptax deploy init`. Default: a new one.")
    port: int = option("Port of the SuperLink; 0: a free one.", 0)
    node_port: int = option("Port of the first SuperNode; 0: free ones.", 0)
    start_timeout: float = option("Seconds a process may take to start.", 120.0)
    time_limit: float = option("Seconds until all is stopped.", 86400.0)
    out: Path | None = option("Folder for the results. Default: runs/deployment.")
    resume: Path | None = option("Continue the run in this folder.")
    round: int | None = option("Go back to the checkpoint of this round, with --resume. Default: the last.")
    json: bool = option("Print JSON for other programs.", False)
