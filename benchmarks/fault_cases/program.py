"""The real program as a process, what it leaves, and the verdicts on that."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

PATIENCE = 300.0  # seconds after which a process counts as hanging
TIMES = {"seconds", "compile_seconds", "checksum"}  # of a summary: wall time, and what depends on it
SMALL = ["--task", "digits", "--num-clients", "20", "--cohort-size", "5"]


@dataclass
class Row:
    """Cases of one kind. `survived`: the end equals an undisturbed run's bit for bit; `refused`: one clear line."""

    part: str
    case: str
    tried: int = 0
    survived: int = 0
    refused: int = 0
    lost: int = 0
    notes: list[str] = field(default_factory=list)

    def count(self, verdict: str, note: str = "") -> None:
        """Counts one case; why one was lost is kept."""
        self.tried += 1
        setattr(self, verdict, getattr(self, verdict) + 1)
        if verdict == "lost":
            self.notes.append(note)
        print(f"[{time.strftime('%H:%M:%S')}] {self.part}: {self.case}: {verdict} {note}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Done:
    """How a process ended. A negative status is the signal that ended it."""

    status: int
    out: str
    error: str

    @property
    def one_line(self) -> bool:
        """Whether it failed as it should: status 1 or 2, one line on standard error that begins with its name."""
        lines = [line for line in self.error.splitlines() if line.strip()]
        return self.status in (1, 2) and len(lines) == 1 and lines[0].startswith("fedoptax: ")

    def __str__(self) -> str:
        return f"status {self.status}: {' | '.join(self.error.strip().splitlines()[-3:])[:300]}"


class Program:
    """`fedoptax` with a cache of its own in `folder`, so that nothing of the user's is touched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "200"}
        self.environment.pop("FEDOPTAX_DEBUG", None)

    def start(
        self,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
        prefix: list[str] | None = None,
    ) -> subprocess.Popen[str]:
        """Starts `fedoptax ARGUMENTS` in the folder; `before` is called in the new process."""
        command = [*(prefix or []), sys.executable, "-m", "fedoptax.cli.main", *map(str, arguments)]
        return subprocess.Popen(
            command, cwd=self.folder, env={**self.environment, **(environment or {})}, text=True, preexec_fn=before,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: object, **settings: Any) -> Done:
        """Runs it to the end."""
        return finish(self.start(*arguments, **settings))


def finish(process: subprocess.Popen[str]) -> Done:
    """Waits for the end; one that hangs is killed and has status 124."""
    try:
        out, error = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, error = process.communicate()
        return Done(124, out, error + "\nhangs")
    return Done(process.returncode, out, error)


def watch(process: subprocess.Popen[str], seen: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Waits until `seen`; False if the process ended first. Looks 2,000 times a second."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if seen():
                return process.poll() is None
        except OSError:  # a file that came and went
            pass
        if process.poll() is not None:
            return False
        time.sleep(0.0005)
    return False


def rows(folder: Path) -> int:
    """The whole lines of a history."""
    path = folder / "history.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def checkpoints(folder: Path) -> list[int]:
    """The rounds of the checkpoints that are there."""
    if not (folder / "checkpoints").is_dir():
        return []
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdecimal())


def unfinished(folder: Path) -> list[str]:
    """What is being written: temporary names of checkpoints and files."""
    if not folder.is_dir():
        return []
    found = [path.name for path in folder.rglob("*") if ".tmp" in path.name or "checkpoint-tmp" in path.name]
    return found + [path.name for path in (folder / "checkpoints-clients").glob(".*")]


def status(folder: Path) -> str | None:
    """What summary.json says."""
    try:
        return json.loads((folder / "summary.json").read_text()).get("status")
    except (OSError, ValueError):
        return None


def difference(folder: Path, wanted: Path) -> str:
    """Where a run's results differ from the wanted ones, times aside; empty if they do not."""
    try:
        if (folder / "config.json").read_bytes() != (wanted / "config.json").read_bytes():
            return "config.json differs"
        if _history(folder) != _history(wanted):
            return "history.jsonl differs"
        if _summary(folder) != _summary(wanted):
            return "summary.json differs"
        if _params(folder) != _params(wanted):
            return "params.npz differs"
        if not _parquet(folder).equals(_parquet(wanted)):
            return "history.parquet differs"
    except (OSError, ValueError, KeyError) as error:
        return f"results cannot be read: {type(error).__name__} {error}"
    return ""


def fingerprint(folder: Path) -> dict[str, str]:
    """A hash of every file, the lock aside."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def _history(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "history.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def _parquet(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "history.parquet").drop(columns="seconds")


def _summary(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "summary.json").read_text())
    return {name: value for name, value in found.items() if name not in TIMES and not name.startswith("history")}


def _params(folder: Path) -> dict[str, tuple[Any, ...]]:
    with np.load(folder / "params.npz") as stored:
        return {name: (stored[name].shape, stored[name].dtype.str, stored[name].tobytes()) for name in stored}
