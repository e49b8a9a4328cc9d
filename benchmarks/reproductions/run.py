"""Reproduces a published claim: runs its recipe, and writes what was measured beside what was published.

    python benchmarks/reproductions/run.py counterexample            # reduced to what two cores do
    python benchmarks/reproductions/run.py emnist-cr --full          # the paper's settings, for a GPU
    python benchmarks/reproductions/run.py --list
    python benchmarks/reproductions/run.py --index                   # README.md from all results

A recipe, NAME.toml, has the claim, its source, the published numbers, the commands, and a verdict written by hand after
the measurement; a step may have a target, for the report's "to target" columns. The runs go to runs/reproductions/NAME,
with --full to benchmarks/reproductions/runs, of which settings and histories can be committed; a second call goes on
where the first was stopped, in another clone too, and repeats nothing that is done. The page results/NAME.md and its
figures are written at the end. Data sets are looked for in FEDOPTAX_DATA, or in shared/data beside the project.
"""

import argparse
import csv
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedoptax.report import write_report
from fedoptax.report.report import load_report

DONE = "report.html"  # the last file that a comparison or a search writes
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
FIGURES = ("metric-rounds.png", "train-loss-rounds.png", "heat-map.png", "heat-map-1.png", "profile-3.png")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="*", metavar="NAME", help=", ".join(names()))
    parser.add_argument("--full", action="store_true", help="the paper's settings instead of the reduced ones")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--index", action="store_true")
    options = parser.parse_args()
    if unknown := [name for name in options.recipe if name not in names()]:
        parser.error(f"'{unknown[0]}' given, allowed is one of {', '.join(names())}")
    for name in names() if options.list else ():
        print(f"{name:24} {read(name)['claim']}")
    for name in options.recipe:
        reproduce(name, options.full)
    if options.index or options.recipe:
        (HERE / "README.md").write_text(index(), encoding="utf-8")
    return 0


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.toml"))


def read(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))


def reproduce(name: str, full: bool) -> None:
    recipe, kind = read(name), "full" if full else "reduced"
    folder = HERE / "runs" / name if full else Path("runs") / "reproductions" / name
    sections = []
    for step in recipe["steps"]:
        place = folder / step["name"]
        seconds = run(step[kind], place)
        if "target" in step:
            write_report(place, target=step["target"])
        sections.append(section(step, place, step[kind], seconds, f"{name}-{step['name']}"))
    page = RESULTS / (f"{name}.md" if not full else f"{name}-full.md")
    page.write_text(heading(recipe, kind) + "\n".join(sections), encoding="utf-8")
    print(page)


def run(command: str, place: Path) -> float:
    """Runs or continues a step; the wall seconds that it took in all its calls, beside whatever else was running."""
    arguments = [*shlex.split(command), "--out", str(place)]
    if any((place / mark).is_file() for mark in ("compare.json", "tune.json", "config.json")):
        arguments = ["resume", str(place)]
    data = os.environ.get("FEDOPTAX_DATA") or str(ROOT.parent / "shared" / "data")
    place.parent.mkdir(parents=True, exist_ok=True)
    print("fedoptax", shlex.join(arguments), flush=True)
    program = [sys.executable, "-m", "fedoptax.cli.main", *arguments]
    clock = place.parent / f"{place.name}.seconds"
    begun, before = time.perf_counter(), float(clock.read_text()) if clock.is_file() else 0.0
    if (place / DONE).is_file():
        return before
    done = subprocess.run(program, env=os.environ | {"FEDOPTAX_DATA": data}, check=False)
    clock.write_text(f"{before + time.perf_counter() - begun}")
    if done.returncode not in (0, 1):  # 1: some method diverged, which is a result
        raise SystemExit(done.returncode)
    return float(clock.read_text())


def heading(recipe: dict[str, Any], kind: str) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "optax", "numpy"))
    return f"""# {recipe["title"]}

**Claim.** {recipe["claim"]}

**Source.** {recipe["source"]}

**Published.**

{recipe["published"].strip()}

**Settings.** {recipe["settings"][kind].strip()}

**Verdict: {recipe["verdict"]["word"]}.** {recipe["verdict"]["why"].strip()}

Measured on {time.strftime("%Y-%m-%d")}, {platform.machine()}, {os.cpu_count()} cores,
Python {platform.python_version()}, {versions}, fedoptax {version("fedoptax")} at {commit.stdout.strip()}.
"""


def section(step: dict[str, Any], place: Path, command: str, seconds: float, stem: str) -> str:
    """A step's command, tables and figures; the figures are copied beside the page."""
    lines = [f"\n## {step['title']}\n", f"`fedoptax {command}` ({duration(seconds)})\n"]
    if (place / "tune.json").is_file():
        rows = read_points(place / "points.csv")
        lines.append(f"{width(rows)} The best:\n\n{table(rows[0], rows[1:6])}")
        if "by" in step:
            lines.append(f"The best for each {step['by']}:\n\n{best_by(rows, step['by'])}")
    else:
        verdicts = "".join(f"\n{verdict.text}\n" for verdict in load_report(place).verdicts)
        lines.append((place / "table.md").read_text(encoding="utf-8") + verdicts)
    for figure in FIGURES:
        if (place / "figures" / figure).is_file() and figure in step.get("figures", FIGURES[:1]):
            RESULTS.mkdir(exist_ok=True)
            shutil.copyfile(place / "figures" / figure, RESULTS / f"{stem}-{figure}")
            lines.append(f"![{step['title']}: {Path(figure).stem}]({stem}-{figure})\n")
    return "\n".join(lines)


def read_points(path: Path) -> list[list[str]]:
    """The points of a search, best first, without their paths; the first row has the names."""
    with path.open(encoding="utf-8") as file:
        return [row[:-1] for row in csv.reader(file)]


def width(rows: list[list[str]], within: float = 0.02) -> str:
    """How many points do about as well as the best of the search."""
    column = next((i for i, name in enumerate(rows[0]) if name == "test_accuracy"), None)
    if column is None:
        return f"{len(rows) - 1} points."
    values = [float(row[column]) for row in rows[1:] if number(row[column])]
    good = sum(value >= max(values) - within for value in values)
    return (
        f"{good} of {len(rows) - 1} points end within {within * 100:.0f} percentage points of the best accuracy; "
        f"{sum(row[-1] == 'diverged' for row in rows[1:])} diverged."
    )


def best_by(rows: list[list[str]], name: str) -> str:
    """The first, hence best, row for each value of a hyper-parameter."""
    column, first = rows[0].index(name), {}
    for row in rows[1:]:
        first.setdefault(float(row[column]), row)
    return table(rows[0], [first[value] for value in sorted(first)])


def table(names: list[str], rows: list[list[str]]) -> str:
    shown = [[f"{float(cell):.4g}" if number(cell) else cell for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in (names, *shown)]
    return "\n".join([lines[0], "|" + " --- |" * len(names), *lines[1:]]) + "\n"


def number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def index() -> str:
    """The gallery's page: every recipe, its claim and its verdict."""
    lines = [
        "# Reproductions",
        "",
        "Published claims, each by one command: `python benchmarks/reproductions/run.py NAME`, which goes on where",
        "it was interrupted. `--full` runs the paper's own settings, for which two cores are too few. The verdict is",
        "about the reduced settings that the page names. Times are wall time on a machine that did other work, too.",
        "",
        "| recipe | claim | verdict |",
        "| --- | --- | --- |",
    ]
    for name in names():
        recipe = read(name)
        done = (RESULTS / f"{name}.md").is_file()
        link = f"[{name}](results/{name}.md)" if done else name
        word = recipe["verdict"]["word"] if done else "not measured yet"
        lines.append(f"| {link} | {recipe['claim']} | {word} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
