"""Runs cases of targets in a process of their own, with little memory; `python -m fuzzing.worker --help`.

The case under way lies in SCRATCH/current and its number in SCRATCH/number, so that whoever started the process knows
which one it died of. What a case raises is a finding: its input is kept in SCRATCH/findings.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path

from fuzzing.mutations import mutate
from fuzzing.target import Target, targets


def main() -> None:
    """The worker's command line; prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="its name; or several with commas, each of which gets the cases and seconds")
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=10**12)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--memory", type=int, default=2**30, help="bytes that the process may grow by")
    parser.add_argument("--coverage", action="store_true", help="let atheris choose the inputs")
    given = parser.parse_args()
    if given.coverage:
        from fuzzing.coverage import run

        run(given)
        return
    runners = [Runner(targets()[name](), given.scratch) for name in given.target.split(",")]
    for runner in runners:
        runner.sound()
    limit_memory(given.memory)
    for runner in runners:
        target, number, end = runner.target, given.first, time.monotonic() + given.seconds
        runner.begin()
        while number < given.first + given.cases and time.monotonic() < end:
            rng = random.Random(f"{given.seed} {number}")
            runner.case(number, mutate(rng, target.seeds, target.words, target.largest))
            number += 1
        print(json.dumps(runner.summary()), flush=True)


class Runner:
    """Runs cases and keeps count."""

    def __init__(self, target: Target, scratch: Path) -> None:
        self.target, self.scratch = target, scratch
        self.folder = scratch / "case"
        for folder in (self.folder, scratch / "findings"):
            folder.mkdir(parents=True, exist_ok=True)
        self._current, self._number = (scratch / "current").open("wb", 0), (scratch / "number").open("wb", 0)
        self.findings: dict[str, str] = {}
        self.begin()
        warnings.simplefilter("ignore")

    def sound(self) -> None:
        """The seeds themselves, which imports and compiles what the cases need."""
        for seed in self.target.seeds:
            self.case(-1, seed)

    def begin(self) -> None:
        """Counts from here on."""
        self.cases, self.slowest, self.begun, self._peak = 0, 0.0, time.monotonic(), peak_memory()

    def case(self, number: int, data: bytes) -> None:
        """One case; a finding is kept, one of each kind."""
        for file, content in ((self._current, data), (self._number, b"%d" % number)):
            file.seek(0)
            file.truncate()
            file.write(content)
        start = time.monotonic()
        try:
            self.target.run(data, self.folder)
        except (Exception, SystemExit) as error:
            self.keep(data, error)
        self.cases += 1
        self.slowest = max(self.slowest, time.monotonic() - start)

    def keep(self, data: bytes, error: BaseException) -> None:
        """Keeps the input of a finding and where it was raised."""
        frames = traceback.extract_tb(error.__traceback__)
        where = next((f for f in reversed(frames) if "fuzzing" in f.filename or "fedoptax" in f.filename), frames[-1])
        kind = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}"
        if kind not in self.findings:
            name = f"{self.target.name.replace('/', '-')}-{hashlib.sha256(data).hexdigest()[:12]}"
            (self.scratch / "findings" / name).write_bytes(data)
            self.findings[kind] = f"{str(error)[:300]} ({name})"
            print(kind, self.findings[kind], file=sys.stderr, flush=True)

    def summary(self) -> dict[str, object]:
        """What the driver prints."""
        return {
            "target": self.target.name,
            "cases": self.cases,
            "seconds": time.monotonic() - self.begun,
            "slowest": self.slowest,
            "grown": max(0, peak_memory() - self._peak),
            "findings": self.findings,
        }


def limit_memory(more: int) -> None:
    """Lets this process grow by so many bytes: what would take more raises MemoryError, as on a full machine."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    now = int(fields["VmData"].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (now + more, now + more))


def peak_memory() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
