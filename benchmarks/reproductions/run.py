"""Reproduces a published claim: runs its recipe, and writes what was measured beside what was published.

    python benchmarks/reproductions/run.py emnist-cr                 # what the gallery shows
    python benchmarks/reproductions/run.py emnist-cr --so-far        # the page of what is done
    python benchmarks/reproductions/run.py fedlamb-cifar10 --full    # the paper's settings, for a GPU
    python benchmarks/reproductions/run.py --list
    python benchmarks/reproductions/run.py --index                   # README.md from all results

A recipe, NAME.toml, has the claim, its source, the published numbers, the commands, and a verdict written by hand after
the measurement. Where two cores are too few for the paper's settings, it has reduced ones beside them. A step may
have a target, for the report's "to target" columns, and training losses, for a table of the rounds to them. Reduced
runs go to runs/reproductions/NAME, full ones to benchmarks/reproductions/runs, of which settings and histories can be
committed; a second call goes on where the first was stopped, in another clone too, and repeats nothing that is done.
The page results/NAME.md and its figures are written at the end. Data sets are looked for in FEDOPTAX_DATA, or in
shared/data beside the project.
"""

import argparse
import csv
import math
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

import pandas as pd

from fedoptax._files import read_json
from fedoptax.report import write_report
from fedoptax.report.report import load_report
from fedoptax.storage.history import read_rows

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
FIGURES = ("metric-rounds.png", "train-loss-rounds.png", "heat-map.png", "heat-map-1.png", "profile-3.png")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="*", metavar="NAME", help=", ".join(names()))
    parser.add_argument("--full", action="store_true", help="the paper's settings instead of reduced ones")
    parser.add_argument("--so-far", action="store_true", help="run nothing, write the page of what is done")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--index", action="store_true")
    options = parser.parse_args()
    if unknown := [name for name in options.recipe if name not in names()]:
        parser.error(f"'{unknown[0]}' given, allowed is one of {', '.join(names())}")
    for name in names() if options.list else ():
        print(f"{name:24} {read(name)['claim']}")
    for name in options.recipe:
        reproduce(name, options.full, options.so_far)
    if options.index or options.recipe:
        (HERE / "README.md").write_text(index(), encoding="utf-8")
    return 0


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.toml") if path.stem != "queue")


def read(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))


def measured(recipe: dict[str, Any]) -> str:
    """The settings that the gallery shows: the paper's, unless the recipe has reduced ones."""
    return "reduced" if "reduced" in recipe["settings"] else "full"


def reproduce(name: str, full: bool, so_far: bool) -> None:
    recipe = read(name)
    kind = "full" if full else measured(recipe)
    folder = HERE / "runs" / name if kind == "full" else Path("runs") / "reproductions" / name
    sections = []
    for step in recipe["steps"]:
        place = folder / step["name"]
        if not so_far:
            run(step[kind], place)
        write_report(place, target=step.get("target"))
        seconds = sum(read_json(path)["seconds"] for path in place.rglob("summary.json"))
        sections.append(section(step, place, step[kind], seconds, f"{name}-{step['name']}"))
    page = RESULTS / (f"{name}-full.md" if kind == "full" != measured(recipe) else f"{name}.md")
    page.write_text(heading(recipe, kind, folder) + "\n".join(sections), encoding="utf-8")
    print(page)


def run(command: str, place: Path) -> None:
    """Runs or continues a step."""
    arguments = [*shlex.split(command), "--out", os.path.relpath(place)]  # kept with the results: no machine's path
    if any((place / mark).is_file() for mark in ("compare.json", "tune.json", "config.json")):
        arguments = ["resume", str(place)]
    data = os.environ.get("FEDOPTAX_DATA") or str(ROOT.parent / "shared" / "data")
    print("fedoptax", shlex.join(arguments), flush=True)
    program = [sys.executable, "-m", "fedoptax.cli.main", *arguments]
    done = subprocess.run(program, env=os.environ | {"FEDOPTAX_DATA": data}, check=False)
    if done.returncode not in (0, 1):  # 1: some method diverged, which is a result
        raise SystemExit(done.returncode)


def heading(recipe: dict[str, Any], kind: str, folder: Path) -> str:
    ended = [summary["ended"] for path in folder.rglob("summary.json") if "ended" in (summary := read_json(path))]
    first, last = (time.strftime("%Y-%m-%d", time.localtime(moment)) for moment in (min(ended), max(ended)))
    days = first if first == last else f"{first} to {last}"
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

Measured {days}, {platform.machine()}, {os.cpu_count()} cores; page written with
Python {platform.python_version()}, {versions}, fedoptax {version("fedoptax")} at {commit.stdout.strip()}.
"""


def section(step: dict[str, Any], place: Path, command: str, seconds: float, stem: str) -> str:
    """A step's command, tables and figures; the figures are copied beside the page."""
    lines = [f"\n## {step['title']}\n", f"`fedoptax {command}` ({duration(seconds)})\n"]
    if (place / "tune.json").is_file():
        rows = read_points(place / "points.csv")
        lines.append(f"{width(rows)}{ranking(place)} The best:\n\n{table(rows[0], rows[1:6])}")
        for name in step.get("by", ()):
            lines.append(f"The best for each {name}:\n\n{best_by(rows, name)}")
    else:
        verdicts = "".join(f"\n{verdict.text}\n" for verdict in load_report(place).verdicts)
        lines.append((place / "table.md").read_text(encoding="utf-8") + verdicts)
        if "losses" in step:
            lines.append(rounds_to_losses(place, step["losses"]))
    for figure in FIGURES:
        if (place / "figures" / figure).is_file() and figure in step.get("figures", FIGURES[:1]):
            RESULTS.mkdir(exist_ok=True)
            shutil.copyfile(place / "figures" / figure, RESULTS / f"{stem}-{figure}")
            lines.append(f"![{step['title']}: {Path(figure).stem}]({stem}-{figure})\n")
    return "\n".join(lines)


def rounds_to_losses(place: Path, losses: list[float], window: int = 5) -> str:
    """A table of the rounds until the training loss, as a mean of `window` rounds, is at most each of `losses`."""
    rows = []
    for name in read_json(place / "compare.json")["algorithms"]:
        cells, histories = [], sorted((place / name).glob("seed-*/history.jsonl"))
        for loss in losses:
            reached = [first_below(history, loss, window) for history in histories]
            cells.append("not reached" if None in reached else " ".join(str(round) for round in sorted(reached)))
        rows.append([name, *cells])
    head = f"Rounds until the training loss, as a mean of {window} rounds, is at most so much; one number per seed:\n\n"
    return head + table(["algorithm", *(f"{loss:g}" for loss in losses)], rows)


def first_below(history: Path, loss: float, window: int) -> int | None:
    """The first round at which the mean training loss of the last `window` rounds is at most `loss`."""
    rows = pd.read_json(history, lines=True)
    reached = rows["round"][rows["train_loss"].rolling(window).mean() <= loss]
    return None if reached.empty else int(reached.iloc[0])


def read_points(path: Path) -> list[list[str]]:
    """The points of a search, best first, without their paths; the first row has the names."""
    with path.open(encoding="utf-8") as file:
        return [row[:-1] for row in csv.reader(file)]


def width(rows: list[list[str]]) -> str:
    """How many points do about as well as the best of the search."""
    column = next((i for i, name in enumerate(rows[0]) if name == "test_accuracy"), None)
    if column is None:
        return f"{len(rows) - 1} points."
    values = [float(row[column]) for row in rows[1:] if number(row[column])]
    near, far = (sum(value >= max(values) - points / 100 for value in values) for points in (2, 5))
    return (
        f"{near} of {len(rows) - 1} points end within 2 percentage points of the best accuracy, {far} within 5; "
        f"{sum(row[-1] == 'diverged' for row in rows[1:])} diverged."
    )


def ranking(place: Path) -> str:
    """How early the order of a search's points was settled; empty if it was evaluated at its end only."""
    tuned = read_json(place / "tune.json")
    rule, total = tuned["rule"], tuned["options"]["rounds"]
    worst = -math.inf if rule["higher_is_better"] else math.inf
    values = pd.DataFrame(
        {
            point.name: {
                row["round"]: row.get(rule["metric"])
                for row in read_rows(point, read_json(point / "summary.json")["rounds_done"])
            }
            for point in sorted(place.glob("point-*"))
        }
    )

    def ranks(end: float) -> pd.Series:
        window = values.loc[end * total - rule["last"] + 1 : end * total].astype(float)
        return window.mean().fillna(worst).rank()  # a point that had diverged by then has no score

    found = {share * total: ranks(share).corr(ranks(1.0)) for share in (0.25, 0.5, 0.75)}
    parts = ", ".join(f"{value:.2f} after {end:.0f}" for end, value in found.items() if not math.isnan(value))
    return f" Rank correlation of the points with their order at the end: {parts} rounds." if parts else ""


def best_by(rows: list[list[str]], name: str) -> str:
    """The first, hence best, row for each value of a hyper-parameter."""
    column, first = rows[0].index(name), {}
    for row in rows[1:]:
        first.setdefault(row[column], row)
    in_order = sorted(first, key=lambda text: (float(text) if number(text) else math.inf, text))
    return table(rows[0], [first[value] for value in in_order])


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
        "it was interrupted. Where two cores are too few for the paper's settings the page names the reduced ones, and",
        "the verdict is about those; `--full` runs the paper's. Times are the rounds', beside other work.",
        "",
        "Runs for a GPU wait in [queue.toml](queue.toml), the most wanted first. With a GPU and an hour",
        "`python benchmarks/gpu.py --minutes 60 --only queue` runs those whose end is not in `queue.parquet`, the",
        "histories so far, stops in time, and writes a page and a new `queue.parquet` to benchmarks/results, or to",
        "`--out`; a second call goes on. A machine without network needs the checkout, `--data FOLDER` (several times",
        "where data had to be copied in parts) and `--wheels FOLDER` for packages that it lacks.",
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
