"""The real program under faults: what is killed, filled, damaged or raced, and what is left of its results.

    python benchmarks/faults.py [--only kill,damage] [--part 0.1] [--seed 0] [--out benchmarks/results]

Every case runs `fedoptax` and compares what it leaves, or what `fedoptax resume` makes of it, with an undisturbed run,
bit for bit but for times. A case is survived (equal), refused (one clear line, nothing harmed) or lost (all else).
The table goes to standard output and to `--out`; the exit status is 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from fault_cases import clock, damage, disk, downloads, kills, memory, pairs, signals
from fault_cases.program import Program, Row

PARTS: dict[str, Callable[[Program, int, float], list[Row]]] = {
    "kill": kills.run,
    "damage": damage.run,
    "disk": disk.run,
    "pairs": pairs.run,
    "signals": signals.run,
    "memory": memory.run,
    "clock": clock.run,
    "downloads": downloads.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--part", type=float, default=1.0, help="of the number of cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for the table; none: printed only")
    given = parser.parse_args()
    names = given.only.split(",")
    if unknown := set(names) - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))} given, allowed are {', '.join(PARTS)}")
    if "disk" in names:
        disk.enter_private_mounts()
    begun, table = time.time(), []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="fedoptax-faults-") as folder:
            table += PARTS[name](Program(Path(folder)), given.seed, given.part)
    text = page(table, given.seed, time.time() - begun)
    print(text)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        place = given.out / f"faults-{hardware()}-{time.strftime('%Y-%m-%d')}.md"
        place.write_text(text, encoding="utf-8")
        print(f"table: {place}")
    return 1 if any(row.lost for row in table) else 0


def page(table: list[Row], seed: int, seconds: float) -> str:
    """The table as Markdown, with what is needed to repeat it."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "jaxlib", "numpy"))
    head = [
        "# Faults",
        "",
        f"`{' '.join(['python', *sys.argv])}`, seed {seed}, commit {commit()}, {time.strftime('%Y-%m-%d')}, "
        f"{seconds / 60:.0f} minutes.",
        f"Python {platform.python_version()}, {packages}; {platform.system()} {platform.release()}, {hardware()}.",
        "",
        "| fault | case | tried | survived | refused | lost |",
        "|---|---|---|---|---|---|",
    ]
    lines = [f"| {r.part} | {r.case} | {r.tried} | {r.survived} | {r.refused} | {r.lost} |" for r in table]
    sums = [sum(getattr(row, name) for row in table) for name in ("tried", "survived", "refused", "lost")]
    lines.append(f"| **all** | | {' | '.join(f'**{n}**' for n in sums)} |")
    notes = [f"- {row.part}, {row.case}: {note}" for row in table for note in row.notes]
    return "\n".join([*head, *lines, *(["", "Notes:", "", *notes] if notes else [])]) + "\n"


def hardware() -> str:
    """The machine in a word."""
    return f"{os.cpu_count()}cpu-{platform.machine()}"


def commit() -> str:
    """The commit that is checked out, with a + if files were changed."""
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
