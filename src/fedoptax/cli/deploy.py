"""The command line of deployments; the work is done by `fedoptax.cli.deploy_commands`, imported when a command runs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from fedoptax.cli.garbage import import_kept
from fedoptax.cli.old_options import (
    BatchSize,
    Compress,
    EvalEvery,
    Json,
    LocalEpochs,
    LocalSteps,
    Privacy,
    Rounds,
    Shared,
    Weighting,
    taking,
)
from fedoptax.errors import UsageError

deploy_app = typer.Typer(help="Run an algorithm on a real network, through Flower.", rich_markup_mode=None)

Task = Annotated[
    str | None, typer.Option(help="Task, see `fedoptax list tasks`; or MODULE:FUNCTION of the app. Default: digits.")
]
TaskSet = Annotated[
    list[str] | None, typer.Option("--task-set", metavar="NAME=VALUE", help="An option of the task: model, alpha ...")
]
Algorithm = Annotated[str | None, typer.Option(help="Algorithm, see `fedoptax list algorithms`. Default: fedadam.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter.")]
CohortSize = Annotated[int | None, typer.Option(help="Clients a round. Default: the task's, at most all.")]
Aggregate = Annotated[str | None, typer.Option(help="mean, median, trimmed_mean:0.2, ..., see `run`. Default: mean.")]
Seed = Annotated[int | None, typer.Option(help="Seed of initialisation, cohorts and data order. Default: 0.")]
Quorum = Annotated[float | None, typer.Option(help="Part of the cohort that is enough for a round. Default: 0.5.")]
RoundTimeout = Annotated[float | None, typer.Option(help="Seconds a round waits for replies. Default: 600.")]
WaitLimit = Annotated[float | None, typer.Option(help="Seconds a round waits for a quorum. Default: 600.")]
MaxExamples = Annotated[int | None, typer.Option(help="Most examples believed of a client. Default: the task's.")]
CheckpointEvery = Annotated[int | None, typer.Option(help="Rounds between checkpoints. Default: 1.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder with a subfolder a data set. Default: $FEDOPTAX_DATA.")]


SHARED: Shared = {
    name: (option, None) for name, option in {
        "task": Task, "task_set": TaskSet, "algorithm": Algorithm, "set_": Set, "rounds": Rounds,
        "cohort_size": CohortSize, "batch_size": BatchSize, "local_epochs": LocalEpochs, "local_steps": LocalSteps,
        "weighting": Weighting, "aggregate": Aggregate, "privacy": Privacy, "compress": Compress,
        "eval_every": EvalEvery, "seed": Seed, "quorum": Quorum, "round_timeout": RoundTimeout,
        "wait_limit": WaitLimit, "max_examples": MaxExamples, "checkpoint_every": CheckpointEvery,
        "data_dir": DataDir,
    }.items()
}  # fmt: skip
"""What is trained, and how; in the app's config it has the same names."""


@deploy_app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Run an algorithm on a real network, through Flower."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@deploy_app.command()
@taking(SHARED)
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the app and the keys.")],
    nodes: Annotated[int, typer.Option(help="SuperNodes, one a client: so many keys are made.")] = 4,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server for its certificate. Default: this machine.")
    ] = None,
    **options: Any,
) -> None:
    """Write a ready Flower app, with certificates and node keys for a local trial.

    Example: fedoptax deploy init federation --nodes 4 --task digits --algorithm scaffold --set client_lr=0.1
    """
    given = _renamed(options)
    _commands().init(folder, nodes, host or [], given.pop("data_dir"), **given)


@deploy_app.command()
@taking(SHARED)
def local(
    nodes: Annotated[int | None, typer.Option(help="SuperNodes, one a client. Default: 4, or as many as keys.")] = None,
    app: Annotated[Path | None, typer.Option(help="A folder by `fedoptax deploy init`. Default: a new one.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the SuperLink. Default: a free one.")] = None,
    node_port: Annotated[int | None, typer.Option(help="Port of the first SuperNode. Default: free ones.")] = None,
    start_timeout: Annotated[float | None, typer.Option(help="Seconds a process may take to start.")] = None,
    time_limit: Annotated[float | None, typer.Option(help="Seconds until all is stopped. Default: a day.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results. Default: runs/deployment.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    json: Json = False,
    **options: Any,
) -> None:
    """Run a real federation on this machine: a SuperLink and SuperNodes with TLS and node authentication.

    Example: fedoptax deploy local --nodes 4 --task digits --algorithm fedadam --rounds 5 --out runs/network
    """
    given = _renamed(options)
    place = {"nodes": nodes, "port": port, "node_port": node_port, "data_dir": given.pop("data_dir")}
    place |= {"start_timeout": start_timeout, "time_limit": time_limit}
    _commands().local(place=place, app=app, out=out, resume=resume, json=json, **given)


def _renamed(options: dict[str, Any]) -> dict[str, Any]:
    renamed = {"set_": "settings", "task_set": "task_settings"}
    return {renamed.get(name, name): value for name, value in options.items()}


def _commands() -> Any:
    if find_spec("flwr") is None:
        raise UsageError("deploy: Flower is not installed, allowed is an environment with fedoptax[flower]")
    from fedoptax._progress import status

    with status("starting"):
        return import_kept("fedoptax.cli.deploy_commands")
