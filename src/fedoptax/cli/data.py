"""`fedoptax data fetch` and `fedoptax data check`: the data sets on disk."""

from __future__ import annotations

import json

from fedoptax._progress import status
from fedoptax.cli.options import Check, Fetch
from fedoptax.cli.printing import print_table
from fedoptax.data import check as checking
from fedoptax.data import fetch as fetching
from fedoptax.data.registry import DATA_SETS
from fedoptax.errors import RunError


def fetch(given: Fetch) -> None:
    """Download a data set and print its folder."""
    print(f"{given.name}: {fetching.fetch(given.name, given.data_dir)}")


def check(given: Check) -> None:
    """Print what is on disk of each data set; one that was asked for must be there."""
    found = {}
    for name in given.names or list(DATA_SETS):
        with status(f"checking {name}"):
            found[name] = checking.check(name, given.data_dir)
    if given.json:
        print(json.dumps({name: [row._asdict() for row in rows] for name, rows in found.items()}, indent=1))
    else:
        lines = [[name, *row] for name, rows in found.items() for row in rows]
        head = ["data set", "file", "status", "detail"]
        print_table([head, *lines, ["", *checking.cache_row()]], left=True)
    if given.names and (incomplete := [name for name, rows in found.items() if not checking.is_complete(rows)]):
        raise RunError(f"incomplete: {', '.join(incomplete)}")
