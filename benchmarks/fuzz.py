"""Fuzzes everything that reads foreign bytes, for long: `python benchmarks/fuzz.py --seconds 60`.

The targets are those of `tests/fuzzing`; each runs in processes that may grow by a gigabyte, whose cases may take 20
seconds. With atheris (`pip install atheris`, CPython 3.11 to 3.13) the inputs follow the branches that they reach, else
they are mutations of the same seeds; so they are for run folders, whose JSON needs changes of whole values, and for
images, whose decoders are not Python. Inputs of findings are kept in `--keep`. Exit status 1 if there was any.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from fuzzing import targets  # noqa: E402
from fuzzing.drive import Outcome, drive  # noqa: E402

PLAIN = ("report-", "resume-", "images")
LIBRARIES = ("numpy", "h5py", "pyarrow", "pandas", "pillow", "flwr", "jinja2")


def main() -> int:
    names = list(targets())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--target", default=",".join(names), help=f"names with commas; default all: {', '.join(names)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--plain", action="store_true", help="mutations only, although atheris is there")
    parser.add_argument("--keep", type=Path, default=ROOT / "runs" / "fuzz", help="where inputs of findings go")
    parser.add_argument("--out", type=Path, help="folder for a Markdown table, such as benchmarks/results")
    given = parser.parse_args()
    chosen = given.target.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"--target: {', '.join(sorted(unknown))} given, allowed are {', '.join(names)}")
    coverage = find_spec("atheris") is not None and not given.plain

    def one(name: str) -> Outcome:
        follow = coverage and not name.startswith(PLAIN)
        outcome = drive(name, seconds=given.seconds, seed=given.seed, coverage=follow, keep=given.keep)
        print(row(outcome), flush=True)
        for kind, what in outcome.findings.items():
            print(f"    {kind}: {what}", flush=True)
        return outcome

    print(HEAD)
    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes = list(pool.map(one, chosen))
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        path = given.out / f"fuzz-{hardware()}-{date.today().isoformat()}.md"
        path.write_text(document(outcomes, given.seconds, given.jobs, coverage), encoding="utf-8")
        print(path)
    return int(any(outcome.findings for outcome in outcomes))


HEAD = "| target | cases | seconds | findings | slowest case | memory grown |\n|:--|--:|--:|--:|--:|--:|"


def row(o: Outcome) -> str:
    grown = f"{o.grown / 2**20:.0f} MiB"
    return f"| {o.target} | {o.cases} | {o.seconds:.0f} | {len(o.findings)} | {o.slowest:.2f} s | {grown} |"


def document(outcomes: list[Outcome], seconds: float, jobs: int, coverage: bool) -> str:
    ask = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=False)
    there = [name for name in LIBRARIES if find_spec(name.replace("pillow", "PIL"))]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in there)
    engine = f"atheris {metadata.version('atheris')}" if coverage else "mutations"
    engine += f" (by mutations for {' and '.join(f'{start}*' for start in PLAIN)})" if coverage else ""
    total, findings = sum(o.cases for o in outcomes), sum(len(o.findings) for o in outcomes)
    lines = [
        f"# Fuzzing, {date.today().isoformat()}",
        "",
        f"`python benchmarks/fuzz.py --seconds {seconds:g} --jobs {jobs}` at commit {commit.stdout.strip()}: {total:,} "
        f"cases, {findings} findings. Inputs by {engine}; {os.cpu_count()} cores of {platform.machine()}, Python "
        f"{platform.python_version()}; {versions}.",
        "",
        "A case is one hostile file, message or folder, read or refused. A finding is a crash, a hang (20 s), an error",
        "of another kind than the readers promise, a message that is not one short printable line, or a result that",
        "breaks the reader's own promises. Memory is what the process grew by above the sound inputs, at most 1 GiB.",
        "",
        HEAD,
        *map(row, outcomes),
        "",
    ]
    lines += [f"- {o.target}: {kind}: {what}" for o in outcomes for kind, what in o.findings.items()]
    return "\n".join(lines)


def hardware() -> str:
    return f"{os.cpu_count()}-cores-{platform.machine()}"


if __name__ == "__main__":
    sys.exit(main())
