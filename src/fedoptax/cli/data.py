"""`fedoptax data`: the data sets on disk, and their partitions."""

import json
import shlex
import sys
from dataclasses import replace

import pandas as pd

from fedoptax._files import write_atomically
from fedoptax._progress import status
from fedoptax.cli.options import CheckForm, DescribeForm, FetchForm, PartitionForm
from fedoptax.cli.printing import print_table
from fedoptax.cli.setup import load, new_folder, task_arguments
from fedoptax.data import check as published
from fedoptax.data.describe import describe_target, find_faults, infer_file
from fedoptax.data.heterogeneity import client_table, measures
from fedoptax.data.readers import TABLES, read_frame
from fedoptax.data.registry import DATA_SETS
from fedoptax.errors import RunError, UsageError
from fedoptax.report.figures import partition_png
from fedoptax.report.partition import make_partition
from fedoptax.storage.config import count_labels, partition_record

MIN_COUNT = 5  # the min_count of a new schema
SHOWN = 10  # clients in the printed table; all are in the file


def fetch(options: FetchForm) -> None:
    """Download a data set and print its folder."""
    print(f"{options.name}: {published.fetch(options.name, options.data_dir)}")


def check(options: CheckForm) -> None:
    """Print the state of each data set on disk; named data sets must be complete."""
    reports = {}
    for name in options.names or list(DATA_SETS):
        with status(f"checking {name}"):
            reports[name] = published.check(name, options.data_dir)
    if options.json:
        print(json.dumps({name: [row._asdict() for row in rows] for name, rows in reports.items()}, indent=1))
    else:
        lines = [[name, *row] for name, rows in reports.items() for row in rows]
        print_table([["data set", "file", "status", "detail"], *lines], left=True)
    if options.names and (incomplete := [name for name, rows in reports.items() if not published.is_complete(rows)]):
        raise RunError(f"incomplete: {', '.join(incomplete)}")


def describe(options: DescribeForm) -> None:
    """Write the schema of a table, and print notes and warnings."""
    if options.out is not None and options.out.exists() and not options.overwrite:
        raise UsageError(f"out must be a new file, or use --overwrite: '{options.out}' exists")
    if options.file.suffix.lower() not in TABLES or not options.file.is_file():
        raise UsageError(f"file must be a table that exists, {', '.join(TABLES)}, got '{options.file}'")
    names, label = list(read_frame(options.file, [], 0).columns), options.label_column
    client = options.client_column or ("client" if "client" in names else None)
    schema = replace(infer_file(options.file, label, client, options.target or "guess"), min_count=MIN_COUNT)
    frame = read_frame(options.file, [*schema.texts, *([client] if client is not None else [])], **schema.cells)
    notes = [*schema.notes, *find_faults(frame, schema)]
    text = "".join(f"# {' '.join(note.split())}\n" for note in notes) + schema.to_toml()
    print(f"{len(frame):,} rows; {describe_target(frame, schema)}", *notes, sep="\n", file=sys.stderr)
    if options.out is None:
        print(text, end="")
        return
    write_atomically(options.out, text.encode())
    command = ["fedoptax", "run", "--task", f"file:{options.file}", "--schema", str(options.out)]
    print(f"schema: {options.out}; edit it, then: {shlex.join(command)}")


def partition(options: PartitionForm) -> None:
    """Write a table and a picture of a task's clients, and print the measures of their differences."""
    folder = options.out or new_folder(options.task, "partition")
    table_file, picture_file = files = folder / "partition.csv", folder / "partition.png"
    if not options.overwrite and (earlier := [file for file in files if file.exists()]):
        raise UsageError(f"out must be another folder, or use --overwrite: '{earlier[0]}' exists")
    task = load(options, task_arguments(options))
    about = {"name": task.name, **task.spec}
    picture = make_partition({"task": about, "seed": options.partition_seed, "partition": partition_record(task)})
    assert picture is not None
    counts, sizes = count_labels(task), task.clients.sizes
    table = pd.DataFrame(client_table(counts, sizes, task.test_owners, task.client_names))
    write_atomically(table_file, table.to_csv(index=False, lineterminator="\n").encode())
    write_atomically(picture_file, partition_png(picture))
    summary = measures(counts, sizes)
    if options.json:
        print(json.dumps({"out": str(folder), **about, **summary}, indent=1))
        return
    print(*task.notes, picture.sentence, sep="\n")
    print_table([["measure", "value"], *([key, f"{value:.4g}"] for key, value in summary.items())])
    print()
    shown = table.iloc[:SHOWN, :5].astype(str)
    print_table([list(shown.columns), *shown.to_numpy().tolist()])
    if len(table) > SHOWN:
        print(f"... and {len(table) - SHOWN} more clients, with counts per class, in partition.csv")
    print(f"table and plot: {table_file}, {picture_file}")
