"""`fedoptax data partition`: who holds what."""

from __future__ import annotations

import json

import pandas as pd

from fedoptax._files import write_atomically
from fedoptax.cli.options import Partition
from fedoptax.cli.printing import print_table
from fedoptax.cli.setup import load, new_folder, task_arguments
from fedoptax.data.heterogeneity import client_table, measures
from fedoptax.errors import UsageError
from fedoptax.report.figures import partition_png
from fedoptax.report.partition import make_partition
from fedoptax.storage.config import class_counts, partition_record

SHOWN = 10
"""Clients in the printed table; all are in the file."""


def show_partition(given: Partition) -> None:
    """Write a table and a picture of a task's clients, and print the measures of their differences."""
    folder = given.out or new_folder(given.task, "partition")
    table_file, picture_file = folder / "partition.csv", folder / "partition.png"
    for file in (table_file, picture_file):
        if file.exists() and not given.overwrite:
            raise UsageError(f"--out must be another folder, or --overwrite be given: '{file}' exists")
    task = load(given, task_arguments(given))
    about = {"name": task.name, **task.spec}
    picture = make_partition({"task": about, "seed": given.partition_seed, "partition": partition_record(task)})
    assert picture is not None
    counts, sizes = class_counts(task), task.clients.sizes
    table = pd.DataFrame(client_table(counts, sizes, task.test_owners))
    write_atomically(table_file, table.to_csv(index=False, lineterminator="\n").encode())
    write_atomically(picture_file, partition_png(picture))
    summary = measures(counts, sizes)
    if given.json:
        print(json.dumps({"out": str(folder), **about, **summary}, indent=1))
        return
    print(picture.sentence)
    print_table([["measure", "value"], *([key, f"{value:.4g}"] for key, value in summary.items())])
    print()
    shown = table.iloc[:SHOWN, :5].astype(str)
    print_table([list(shown.columns), *shown.to_numpy().tolist()])
    if len(table) > SHOWN:
        print(f"... and {len(table) - SHOWN} more clients, with the counts of every class, in partition.csv")
    print(f"table and picture: {table_file}, {picture_file}")
