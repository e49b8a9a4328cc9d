"""`fedoptax data`: fetch, check and look at data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedoptax.cli.garbage import import_kept
from fedoptax.cli.old_options import (
    Alpha,
    AlphaFine,
    Beta,
    Classes,
    ClientColumn,
    DataDir,
    Exponent,
    ImageSize,
    Json,
    LabelColumn,
    NumClients,
    Overwrite,
    Partition,
    PartitionSeed,
    Shards,
    Sigma,
    Similarity,
    Task,
    TestFraction,
)

app = typer.Typer(name="data", help="Fetch, check and look at data sets.", rich_markup_mode=None)


OWN = ("partition_seed", "data_dir", "out", "overwrite", "json")  # options of `partition` that are none of the task's


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Fetch, check and look at data sets."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Data set, such as mnist; see `fedoptax data check`.")],
    data_dir: DataDir = None,
) -> None:
    """Download a data set from its publisher, check its hash and unpack it; a broken download goes on.

    Example: fedoptax data fetch fashion-mnist --data-dir data
    """
    _commands().fetch(name, data_dir)


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets. Default: all.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Verify the files of data sets: their hashes, and what the readers count in them.

    Example: fedoptax data check mnist cifar10
    """
    _commands().check(names or [], data_dir, json)


@app.command()
def partition(
    task: Task = "digits",
    partition: Partition = None,
    alpha: Alpha = None,
    alpha_fine: AlphaFine = None,
    beta: Beta = None,
    classes: Classes = None,
    shards: Shards = None,
    similarity: Similarity = None,
    sigma: Sigma = None,
    exponent: Exponent = None,
    client_column: ClientColumn = None,
    label_column: LabelColumn = None,
    test_fraction: TestFraction = None,
    image_size: ImageSize = None,
    num_clients: NumClients = None,
    partition_seed: PartitionSeed = 0,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for partition.csv and partition.png. Default: a new one under runs/.")
    ] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Show who holds what: measures of heterogeneity, a table of the clients, and a picture.

    Example: fedoptax data partition --task digits --partition dirichlet --alpha 0.1
    """
    options = {name: value for name, value in locals().items() if name not in OWN}
    _commands().partition(options, partition_seed, data_dir, out, overwrite, json)


def _commands() -> Any:
    from fedoptax._progress import status

    with status("starting"):
        return import_kept("fedoptax.cli.data_commands")
