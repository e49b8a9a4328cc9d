"""What `fedoptax data` does: fetch, check and look at data sets."""

from __future__ import annotations

import csv
import io
import json as json_
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax._progress import status
from fedoptax.data.heterogeneity import measures
from fedoptax.errors import RunError, UsageError
from fedoptax.report.figures import partition_png
from fedoptax.report.partition import make_partition
from fedoptax.storage import folder as storage
from fedoptax.storage.config import class_counts, partition_record
from fedoptax.tasks import load_task
from fedoptax.tasks.task import Task

SHOWN = 10  # clients in the printed table; all are in the file


def fetch(name: str, data_dir: Path | None) -> None:
    """`fedoptax data fetch`."""
    from fedoptax.data.fetch import fetch as fetch_data

    print(f"{name}: {fetch_data(name, data_dir)}")


def check(names: list[str], data_dir: Path | None, json: bool) -> None:
    """`fedoptax data check`."""
    from fedoptax.cli.setup import print_table
    from fedoptax.data.check import caches, is_whole
    from fedoptax.data.check import check as check_data
    from fedoptax.data.registry import DATA_SETS

    found = {}
    for name in names or list(DATA_SETS):
        with status(f"checking {name}"):
            found[name] = check_data(name, data_dir)
    if json:
        print(json_.dumps({name: [row._asdict() for row in rows] for name, rows in found.items()}, indent=1))
    else:
        lines = [[name, *map(str, row)] for name, rows in found.items() for row in rows]
        print_table([["data set", "file", "status", "detail"], *lines, ["", *map(str, caches())]], left=True)
    broken = [name for name, rows in found.items() if not is_whole(rows)]
    if names and broken:
        raise RunError(f"not whole: {', '.join(broken)}")


def partition(
    options: Mapping[str, Any], seed: int, data_dir: Path | None, out: Path | None, overwrite: bool, json: bool
) -> None:
    """`fedoptax data partition`."""
    from fedoptax.cli.setup import print_table, result_folder

    name = options["task"]
    folder = result_folder(out, name, "partition")
    for file in (folder / "partition.csv", folder / "partition.png"):
        if file.exists() and not overwrite:
            raise UsageError(f"out: '{file}' is there already; give another folder, or --overwrite")
    with status(f"loading {name}"):
        given = {key: value for key, value in options.items() if key != "task" and value is not None}
        task = load_task(name, seed=seed, data_dir=data_dir, **given)
    rows = table(task)
    about = {"name": task.name, **task.spec}
    config = {"task": about, "seed": seed, "partition": partition_record(task)}
    picture = make_partition(config)
    assert picture is not None
    storage.write_atomically(folder / "partition.csv", _csv(rows).encode())
    storage.write_atomically(folder / "partition.png", partition_png(picture))
    summary = measures(class_counts(task), task.clients.sizes)
    if json:
        print(json_.dumps({"out": str(folder), **about, **summary}, indent=1))
        return
    print(picture.sentence)
    print_table([["measure", "value"], *([key, f"{value:.4g}"] for key, value in summary.items())])
    print()
    shown = rows[: SHOWN + 1]
    print_table([[str(cell) for cell in row[:5]] for row in shown])
    if len(rows) > len(shown):
        print(f"... and {len(rows) - len(shown)} clients more, with the counts of every class, in partition.csv")
    print(f"table and picture: {folder / 'partition.csv'}, {folder / 'partition.png'}")


def table(task: Task) -> list[list[Any]]:
    """Who holds what: a head, and for each client its examples, test examples, classes and largest class.

    Where there are classes, the columns after these are the counts of each.
    """
    counts, sizes = class_counts(task), task.clients.sizes
    owners = task.test_owners
    tests = None
    if owners is not None and np.min(owners) < len(sizes):  # else all of others
        tests = np.bincount(owners, minlength=len(sizes))[: len(sizes)]
    head: list[Any] = ["client", "examples", "test_examples", "classes", "largest_class"]
    classes = 0 if counts is None else counts.shape[1]
    rows: list[list[Any]] = [[*head, *(f"class_{c}" for c in range(classes))]]
    for i, size in enumerate(sizes.tolist()):
        mine = None if counts is None else counts[i]
        rows.append(
            [
                i,
                size,
                "" if tests is None else int(tests[i]),
                "" if mine is None else int((mine > 0).sum()),
                "" if mine is None else int(mine.argmax()),
                *([] if mine is None else mine.tolist()),
            ]
        )
    return rows


def _csv(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
