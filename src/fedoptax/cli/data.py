"""`fedoptax data`: fetch and check data sets, and show partitions."""

from __future__ import annotations

import json as json_
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fedoptax._files import write_atomically
from fedoptax._progress import status
from fedoptax.cli.options import DataDir, Json, Overwrite, TaskOptions, command
from fedoptax.errors import RunError, UsageError

SHOWN = 10
"""Clients in the printed table; all are in the file."""

app = typer.Typer(name="data", help="Fetch and check data sets, and show partitions.", rich_markup_mode=None)


@dataclass(frozen=True, kw_only=True)
class Partition(TaskOptions):
    """The options of `fedoptax data partition`."""

    out: Annotated[
        Path | None, typer.Option(help="Folder for partition.csv and partition.png. Default: a new one under runs/.")
    ] = None
    overwrite: Overwrite = False
    json: Json = False


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Fetch and check data sets, and show partitions."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Data set, such as mnist; see `fedoptax data check`.")],
    data_dir: DataDir = None,
) -> None:
    """Download a data set from its publisher, check its hash and unpack it.

    Example: fedoptax data fetch fashion-mnist --data-dir data
    """
    with status("starting"):
        from fedoptax.data import fetch as work
    print(f"{name}: {work.fetch(name, data_dir)}")


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets. Default: all.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Verify the files of data sets: their hashes, and the counts of what the readers find.

    Example: fedoptax data check mnist cifar10
    """
    with status("starting"):
        from fedoptax.cli.setup import print_table
        from fedoptax.data import check as work
        from fedoptax.data.registry import DATA_SETS
    found = {}
    for name in names or list(DATA_SETS):
        with status(f"checking {name}"):
            found[name] = work.check(name, data_dir)
    if json:
        print(json_.dumps({name: [row._asdict() for row in rows] for name, rows in found.items()}, indent=1))
    else:
        lines = [[name, *row] for name, rows in found.items() for row in rows]
        print_table([["data set", "file", "status", "detail"], *lines, ["", *work.cache_row()]], left=True)
    if names and (incomplete := [name for name, rows in found.items() if not work.is_complete(rows)]):
        raise RunError(f"incomplete: {', '.join(incomplete)}")


@command(app)
def partition(given: Partition) -> None:
    """Show who holds what: measures of heterogeneity, a table of the clients, and a picture.

    Example: fedoptax data partition --task digits --partition dirichlet --alpha 0.1
    """
    with status("starting"):
        import pandas as pd

        from fedoptax.cli.setup import load, print_table, result_folder
        from fedoptax.data.heterogeneity import client_table, measures
        from fedoptax.report.figures import partition_png
        from fedoptax.report.partition import make_partition
        from fedoptax.storage.config import class_counts, partition_record
    folder = result_folder(given.out, given.task, "partition")
    table_file, picture_file = folder / "partition.csv", folder / "partition.png"
    for file in (table_file, picture_file):
        if file.exists() and not given.overwrite:
            raise UsageError(f"--out must be another folder, or --overwrite be given: '{file}' exists")
    task = load(given)
    about = {"name": task.name, **task.spec}
    picture = make_partition({"task": about, "seed": given.partition_seed, "partition": partition_record(task)})
    assert picture is not None
    counts, sizes = class_counts(task), task.clients.sizes
    table = pd.DataFrame(client_table(counts, sizes, task.test_owners))
    write_atomically(table_file, table.to_csv(index=False, lineterminator="\n").encode())
    write_atomically(picture_file, partition_png(picture))
    summary = measures(counts, sizes)
    if given.json:
        print(json_.dumps({"out": str(folder), **about, **summary}, indent=1))
        return
    print(picture.sentence)
    print_table([["measure", "value"], *([key, f"{value:.4g}"] for key, value in summary.items())])
    print()
    shown = table.iloc[:SHOWN, :5].astype(str)
    print_table([list(shown.columns), *shown.to_numpy().tolist()])
    if len(table) > SHOWN:
        print(f"... and {len(table) - SHOWN} more clients, with the counts of every class, in partition.csv")
    print(f"table and picture: {table_file}, {picture_file}")
