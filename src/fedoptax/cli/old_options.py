"""The options of `data` and `deploy` in their former form, until these commands take the new one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

Task = Annotated[str, typer.Option(help="Task, see `fedoptax list tasks`; or file:PATH for your own data.")]
Model = Annotated[str | None, typer.Option(help="Model, see `fedoptax list tasks --json`. Default: the task's.")]
Partition = Annotated[str | None, typer.Option(help="How examples are divided among clients. Default: the task's.")]
Alpha = Annotated[
    float | None,
    typer.Option(help="Dirichlet concentration, > 0 (smaller is less iid; default 0.3), or alpha of synthetic."),
]
AlphaFine = Annotated[float | None, typer.Option(help="The same over fine labels, for --partition pachinko.")]
Beta = Annotated[float | None, typer.Option(help="beta of the task synthetic.")]
Classes = Annotated[int | None, typer.Option(help="Classes a client, for --partition classes; default 2.")]
Shards = Annotated[int | None, typer.Option(help="Shards a client, for --partition shards; default 2.")]
Similarity = Annotated[
    float | None, typer.Option(help="Percent of the examples divided iid, for --partition similarity; default 0.")
]
Sigma = Annotated[float | None, typer.Option(help="Spread of log sizes, for --partition lognormal; default 1.")]
Exponent = Annotated[float | None, typer.Option(help="Tail of the sizes, for --partition powerlaw; default 1.5.")]
Augment = Annotated[str | None, typer.Option(help="Of CIFAR: crop, standardize or none.")]
ClientColumn = Annotated[str | None, typer.Option(help="Of --task file:PATH: the column or array of client ids.")]
LabelColumn = Annotated[str | None, typer.Option(help="Of --task file:PATH: the column or array of labels.")]
TestFraction = Annotated[
    float | None, typer.Option(help="Of --task file:PATH without test examples: the part of each client's kept apart.")
]
ImageSize = Annotated[int | None, typer.Option(help="Of --task file:PATH: side to which images are resized.")]
ComputeDtype = Annotated[str | None, typer.Option(help="Of gradients: float32 or bfloat16. Default: float32.")]
NumClients = Annotated[int | None, typer.Option(help="Clients in the federation. Default: the task's.")]
Devices = Annotated[
    int | None, typer.Option(help="So many devices, of which the cohort shares out the clients' data anew each round.")
]
PartitionSeed = Annotated[int, typer.Option(help="Seed of the partition.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with a subfolder a data set. Default: $FEDOPTAX_DATA, else the cache."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter; ALGORITHM.NAME=VALUE for one."),
]
Preset = Annotated[str, typer.Option(help="Where settings start from: tuned, none, paper or paper:NAME.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds. Default: the task's.")]
CohortSize = Annotated[int | None, typer.Option(help="Clients a round. Default: the task's.")]
BatchSize = Annotated[int | None, typer.Option(help="Examples a local step. Default: the task's.")]
LocalEpochs = Annotated[int | None, typer.Option(help="Passes over its examples a client makes in a round.")]
LocalSteps = Annotated[int | None, typer.Option(help="Exactly so many local steps a round, instead of epochs.")]
Weighting = Annotated[str | None, typer.Option(help="examples or uniform. Default: the algorithm's paper's.")]
EvalEvery = Annotated[int | None, typer.Option(help="Rounds between evaluations. Default: the task's.")]
ClientLoop = Annotated[
    str, typer.Option(help="loop (a device's clients one after another), vmap (all at once), or auto: the faster.")
]
Mesh = Annotated[
    int | None, typer.Option(help="Devices (cores of a CPU) that share out each round's cohort. Default: all.")
]
ClientStates = Annotated[str, typer.Option(help="Where clients' states live: auto, device, host or disk.")]
Examples = Annotated[str, typer.Option(help="Where training examples live: auto, device or stream (from disk).")]
Engine = Annotated[str, typer.Option(help="compiled, or eager (plain Python, same result, to debug).")]
Fault = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="NAME=VALUE",
        help="Clients that fail: dropout, nonfinite, scaled (rates), scale, deadline (virtual seconds) ...",
    ),
]
Aggregate = Annotated[
    str,
    typer.Option(
        help="How uploads become one: mean, median, trimmed_mean:0.2, norm_clipping:1.0, krum:2 or krum:2,keep=5."
    ),
]
Privacy = Annotated[
    str | None,
    typer.Option(help="Client-level differential privacy, as clip=1.0,noise_multiplier=0.5,delta=1e-5.", metavar="..."),
]
Compress = Annotated[
    str | None,
    typer.Option(help="How uploads are coded: qsgd:bits=4, topk:fraction=0.01 or sign. Default: not.", metavar="CODEC"),
]
CheckpointEvery = Annotated[float | None, typer.Option(help="Seconds between checkpoints. Default: 60.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="Also write for tensorboard, mlflow or wandb (offline)."),
]
Out = Annotated[Path | None, typer.Option(help="Folder for the results. Default: a new one under runs/.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace earlier results in --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]

Distributed = Annotated[
    bool, typer.Option("--distributed", help="One of several processes of a run, each on its own devices.")
]
Coordinator = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Where process 0 can be reached. Default: as Slurm, MPI ... say."),
]
Processes = Annotated[int | None, typer.Option(help="How many processes there are, likewise.")]
Process = Annotated[int | None, typer.Option(help="The number of this one, from 0, likewise.")]
Heartbeat = Annotated[int, typer.Option(help="Seconds after which a process that does not answer counts as failed.")]
Connect = Annotated[int, typer.Option(help="Seconds to wait for all processes at the start.")]

Shared = Mapping[str, tuple[Any, Any]]
"""By name: an option and its default."""

PROBLEM: Shared = {
    **{name: (option, None) for name, option in {
        "model": Model, "partition": Partition, "alpha": Alpha, "alpha_fine": AlphaFine, "beta": Beta,
        "classes": Classes, "shards": Shards, "similarity": Similarity, "sigma": Sigma, "exponent": Exponent,
        "augment": Augment, "client_column": ClientColumn, "label_column": LabelColumn,
        "test_fraction": TestFraction, "image_size": ImageSize, "num_clients": NumClients, "devices": Devices,
        "compute_dtype": ComputeDtype,
    }.items()},
    "partition_seed": (PartitionSeed, 0),
    "data_dir": (DataDir, None),
}  # fmt: skip
"""What is learned, besides the task, and who holds the data."""

ROUNDS: Shared = {
    **{name: (option, None) for name, option in {
        "rounds": Rounds, "cohort_size": CohortSize, "batch_size": BatchSize, "local_epochs": LocalEpochs,
        "local_steps": LocalSteps, "weighting": Weighting, "eval_every": EvalEvery,
    }.items()},
    "client_loop": (ClientLoop, "auto"),
    "mesh": (Mesh, None),
    "client_states": (ClientStates, "auto"),
    "examples": (Examples, "auto"),
    "engine": (Engine, "compiled"),
    "fault": (Fault, None),
    "aggregate": (Aggregate, "mean"),
    "privacy": (Privacy, None),
    "compress": (Compress, None),
    "checkpoint_every": (CheckpointEvery, None),
}  # fmt: skip
"""How rounds are run."""

OUTPUT: Shared = {"track": (Track, None), "out": (Out, None), "overwrite": (Overwrite, False), "json": (Json, False)}
"""Where results go."""

PROCESSES: Shared = {
    "distributed": (Distributed, False),
    "coordinator": (Coordinator, None),
    "processes": (Processes, None),
    "process": (Process, None),
    "heartbeat": (Heartbeat, 60),
    "connect": (Connect, 300),
}
"""Of a run by several processes."""

RUN: Shared = {"set_": (Set, None), "preset": (Preset, "tuned"), **ROUNDS, **PROBLEM, **OUTPUT}
"""All that the commands that run something share."""


def taking(shared: Shared) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command that ends in `**options` the shared options after its own; typer reads them as if written out."""

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        more = [inspect.Parameter(n, kind, default=default, annotation=o) for n, (o, default) in shared.items()]
        hints = get_type_hints(command, include_extras=True)
        parameters = [p.replace(annotation=hints[p.name]) for p in own] + more
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as inspect.signature reads it
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return with_options
