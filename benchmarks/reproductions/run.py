"""Reproduces a published claim: runs its recipe, packs the histories, and writes all pages.

    python benchmarks/reproductions/run.py emnist-cr                 # what the gallery shows
    python benchmarks/reproductions/run.py emnist-cr --so-far        # pack and write what is done, run nothing
    python benchmarks/reproductions/run.py fedlamb-cifar10 --full    # the paper's settings, for a GPU
    python benchmarks/reproductions/run.py --list

A recipe, NAME.toml, has the claim, its source, the published numbers, the commands, and claims in a form that the
histories can be tested for. Where two cores are too few for the paper's settings, it has reduced ones beside them.
Runs go to runs/reproductions/NAME; a second call goes on where the first was stopped. A step that has ended is added
to runs/NAME.parquet and runs/NAME.toml beside this file, with its figures in results/; while those have its command,
it is not run again (--again does, from the beginning, as does a changed command). Data sets are looked for in
FEDOPTAX_DATA, or in shared/data beside the project.
"""

import argparse
import io
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image

import histories
import pages
from fedoptax._files import read_json
from fedoptax.report.figures import draw_figures
from fedoptax.report.report import load_report

FIGURES = ("metric-rounds.png", "train-loss-rounds.png", "heat-map.png", "heat-map-1.png", "profile-3.png")


def main() -> int:
    """Run, pack, and write pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="*", metavar="NAME", help=", ".join(pages.names()))
    parser.add_argument("--full", action="store_true", help="the paper's settings instead of reduced ones")
    parser.add_argument("--so-far", action="store_true", help="run nothing, pack what has ended, write the pages")
    parser.add_argument("--again", action="store_true", help="also run steps whose histories are there")
    parser.add_argument("--workers", help="compute the runs of a step in parallel, as `fedoptax compare` does")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if unknown := [name for name in options.recipe if name not in pages.names()]:
        parser.error(f"'{unknown[0]}' given, allowed is one of {', '.join(pages.names())}")
    for name in pages.names() if options.list else ():
        print(f"{name:24} {pages.read(name)['claim']}")
    for name in options.recipe:
        recipe = pages.read(name)
        kind = "full" if options.full else pages.measured(recipe)
        reproduce(pages.Recipe(name, kind, recipe), options.so_far, options.again, options.workers)
    return 0


def reproduce(recipe: pages.Recipe, so_far: bool, again: bool, workers: str | None = None) -> None:
    """Run the steps of a recipe that are not done, and pack and draw each that ends."""
    folder = Path("runs") / "reproductions" / recipe.stem
    for step in recipe.text["steps"]:
        place, packed = folder / step["name"], recipe.steps.get(step["name"])
        is_done = packed is not None and packed.about["is_whole"]
        command = packed.about.get("command", "") if is_done else ""  # steps of the queue have none
        if is_done and (not command or shlex.split(command)[1:] == shlex.split(step[recipe.kind])) and not again:
            continue
        code = commit()  # of now, as it may change while the step runs
        if not so_far:
            if again or not has_command(place, step[recipe.kind]):
                shutil.rmtree(place, ignore_errors=True)
            run(step[recipe.kind], place, workers)
        if (so_far and place.is_dir()) or histories.has_ended(place):
            histories.pack(place, recipe.stem, code)
            draw(step, place, f"{recipe.stem}-{step['name']}")
    for path, text in pages.render().items():
        path.write_text(text, encoding="utf-8")


def has_command(place: Path, command: str) -> bool:
    """Return whether a folder's comparison or search, if it has one, was begun by this command."""
    records = [place / name for name in ("compare.json", "tune.json") if (place / name).is_file()]
    begun = [read_json(record)["command"].partition(" --out ")[0] for record in records]
    return all(shlex.split(one)[1:] == shlex.split(command) for one in begun)


def run(command: str, place: Path, workers: str | None) -> None:
    """Run or continue a step."""
    arguments = [*shlex.split(command), "--out", str(place)]
    if any((place / mark).is_file() for mark in ("compare.json", "tune.json", "config.json")):
        arguments = ["resume", str(place)]
    if workers and arguments[0] != "run":
        arguments += ["--workers", workers]
    data = os.environ.get("FEDOPTAX_DATA") or str(pages.ROOT.parent / "shared" / "data")
    print("fedoptax", shlex.join(arguments), flush=True)
    program = [sys.executable, "-m", "fedoptax.cli.main", *arguments]
    done = subprocess.run(program, env=os.environ | {"FEDOPTAX_DATA": data}, check=False)
    if done.returncode not in (0, 1):  # 1: some method diverged, which is a result
        raise SystemExit(done.returncode)


def draw(step: dict[str, Any], place: Path, stem: str) -> None:
    """Draw a step's figures beside the page, in 256 colours, which takes a third of the bytes."""
    figures = draw_figures(load_report(place, step.get("target")))
    pages.RESULTS.mkdir(exist_ok=True)
    for name in step.get("figures", FIGURES[:1]):
        if name in figures:
            colours = Image.open(io.BytesIO(figures[name])).convert("RGB").quantize(dither=Image.Dither.NONE)
            colours.save(pages.RESULTS / f"{stem}-{name}", optimize=True)


def commit() -> str:
    """Name the commit that is checked out."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=pages.ROOT, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
