"""What commands print."""

import json
from pathlib import Path

from fedoptax.storage.folder import read_summary


def print_summary(folder: Path, as_json: bool) -> None:
    """Print how the run in a folder ended."""
    summary = read_summary(folder)
    if as_json:
        print(json.dumps({"out": str(folder), "rounds": summary["rounds_done"], **summary}, indent=1))
        return
    print(", ".join(f"{name} {value:.4g}" for name, value in summary["final"].items() if value is not None))
    print(f"results: {folder}")


def print_table(rows: list[list[str]], left: bool = False) -> None:
    """Print rows in aligned columns, the first or all to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:{'<' if left or i == 0 else '>'}{width}}" for i, (cell, width) in enumerate(zip(row, widths)))
        print("  ".join(cells).rstrip())
