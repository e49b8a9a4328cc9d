"""Starts workers, and ends those that hang; a case that a worker died of is a finding too."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


@dataclass
class Outcome:
    """What came of a target: times in seconds, `grown` in bytes above what the sound inputs took."""

    target: str
    cases: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    grown: int = 0
    findings: dict[str, str] = field(default_factory=dict)


def drive(
    target: str,
    *,
    seconds: float = 1e9,
    cases: int = 10**12,
    seed: int = 0,
    memory: int = 2**30,
    patience: float = 20.0,
    coverage: bool = False,
    keep: Path | None = None,
    python: str = sys.executable,
) -> Outcome:
    """Runs a target in workers until the seconds or the cases are over.

    Args:
      target: its name.
      seconds: of all its workers together, their start not counted.
      cases: the most of them.
      seed: of the inputs.
      memory: bytes that a worker may grow by.
      patience: seconds that one case may take.
      coverage: let atheris choose the inputs.
      keep: a folder for the inputs of findings.
      python: the interpreter of the workers.
    """
    outcome, first, end = Outcome(target), 0, time.monotonic() + seconds
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    while first < cases and (time.monotonic() < end or first == 0):
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=place) as folder:
            scratch = Path(folder)
            left = max(0.1, min(seconds, end - time.monotonic()))
            command = [
                *(python, "-m", "fuzzing.worker", target, str(scratch), "--seed", str(seed), "--first", str(first)),
                *("--cases", str(cases - first), "--seconds", str(left), "--memory", str(memory)),
                *(["--coverage"] if coverage else []),
            ]
            reason, output = watch(command, scratch, patience)
            for finding in (scratch / "findings").glob("*"):
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(finding, keep)
            number = int((scratch / "number").read_text() or -1) if (scratch / "number").is_file() else -1
            if reason:
                name = f"{target.replace('/', '-')}-{seed}-{number}"
                if keep is not None and (scratch / "current").is_file():
                    keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(scratch / "current", keep / name)
                outcome.findings.setdefault(reason.splitlines()[0][:200], f"case {number} ({name}) {reason[:2000]}")
                if number < 0:
                    return outcome
                outcome.cases += number + 1 - first
                first = number + 1
                continue
            told = json.loads(output.splitlines()[-1])
            outcome.cases += told["cases"]
            outcome.seconds += told["seconds"]
            outcome.slowest = max(outcome.slowest, told["slowest"])
            outcome.grown = max(outcome.grown, told["grown"])
            outcome.findings |= told["findings"]
            break
    return outcome


def watch(command: list[str], scratch: Path, patience: float) -> tuple[str, str]:
    """Runs a worker to its end; why it died, or nothing, and what it printed."""
    with (scratch / "stdout").open("wb") as out, (scratch / "stderr").open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment(scratch), cwd=scratch)
        try:
            last, since = None, time.monotonic()
            while process.poll() is None:
                time.sleep(0.05)
                number = scratch / "number"
                now = (number.stat().st_mtime_ns, number.read_bytes()) if number.is_file() else None
                if now != last:
                    last, since = now, time.monotonic()
                elif time.monotonic() - since > (120.0 if not last or last[1] == b"-1" else patience):
                    process.kill()
                    process.wait()
                    return f"hangs for {patience:.0f} s", ""
        finally:
            process.kill()
            process.wait()
    said = (scratch / "stderr").read_text(errors="replace")
    if process.returncode < 0:
        return f"killed by {signal.Signals(-process.returncode).name}\n{said[-1500:]}", ""
    if process.returncode:
        return f"worker ended with {process.returncode}\n{said[-1500:]}", ""
    return "", (scratch / "stdout").read_text(errors="replace")


def environment(scratch: Path) -> dict[str, str]:
    """That of a worker: it finds the modules, and nothing of the user's."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "FEDOPTAX_CACHE": str(scratch / "case" / "cache"),
        "JAX_PLATFORMS": "cpu",
        "XDG_CACHE_HOME": str(scratch / "user"),
        "MPLCONFIGDIR": str(Path(tempfile.gettempdir()) / "fedoptax-fuzzing-matplotlib"),
    }
