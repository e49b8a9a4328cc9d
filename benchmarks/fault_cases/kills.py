"""`kill -9` at moments that are found by watching the files a run leaves, then `fedoptax resume`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fault_cases.program import (
    SMALL,
    Done,
    Program,
    Row,
    checkpoints,
    difference,
    finish,
    rows,
    status,
    unfinished,
    watch,
)

RUNS = {
    "fedadam": (["--algorithm", "fedadam"], 400),
    "scaffold": (["--algorithm", "scaffold"], 400),
    "scaffold, states on the host": (["--algorithm", "scaffold", "--client-states", "host"], 60),
    "scaffold, states on disk": (["--algorithm", "scaffold", "--client-states", "disk"], 60),
    "fedlamb": (["--algorithm", "fedlamb"], 400),
    "fedlamb, states on disk": (["--algorithm", "fedlamb", "--client-states", "disk"], 60),
}
MOMENTS = {"start": 4, "compile": 6, "rounds": 14, "checkpoint": 16, "final": 10}  # 50 kills
COMPARE_MOMENTS = {"rounds": 3, "checkpoint": 3, "between": 2, "report": 4}
TRIES = 4  # a moment that was missed because the run was faster is aimed at again


@dataclass(frozen=True)
class Work:
    """One command, what it should give, and how to see where it is."""

    arguments: list[str]
    rounds: int
    wanted: Path


def run(program: Program, seed: int, part: float) -> list[Row]:
    """All kills; `part` of the number that is planned."""
    rng = np.random.default_rng([seed, 1])
    works = {}
    for i, (name, (arguments, rounds)) in enumerate(RUNS.items()):
        wanted = program.folder / f"wanted-{i}"
        given = ["run", *SMALL, *arguments, "--rounds", str(rounds)]
        done = program.run(*given, "--out", wanted)
        if done.status != 0:
            raise RuntimeError(f"the undisturbed run of {name} fails: {done}")
        works[name] = Work(given, rounds, wanted)
    hits: dict[str, Row] = {}
    number = 0
    for moment, count in MOMENTS.items():
        for _ in range(_some(count, part)):
            name = list(works)[number % len(works)]
            twice = number % 5 == 4
            found, verdict, note = _one(program, works[name], moment, rng, twice)
            row = hits.setdefault(found, Row("kill -9", f"run, hit during {found}"))
            row.count(verdict, f"({name}, aimed at {moment}{', twice' if twice else ''}) {note}")
            number += 1
    return [*hits.values(), *_compare(program, rng, part)]


def _some(count: int, part: float) -> int:
    return max(1, round(count * part))


def _one(program: Program, work: Work, moment: str, rng: np.random.Generator, twice: bool) -> tuple[str, str, str]:
    """One kill: which phase it hit, the verdict, and a note."""
    out = program.folder / "killed"
    for _ in range(TRIES):
        shutil.rmtree(out, ignore_errors=True)
        every = 0 if moment == "checkpoint" else 0.2
        process = program.start(*work.arguments, "--checkpoint-every", every, "--out", out)
        seen, longest = _moment(moment, out, work, rng)
        if moment == "start" or watch(process, seen):
            time.sleep(rng.uniform(0, longest))
            if process.poll() is None:
                break
        process.kill()
        finish(process)
    process.kill()
    finish(process)
    phase = phase_of(out, work.rounds)
    if twice and (out / "config.json").is_file():
        again = program.start("resume", out, "--checkpoint-every", "0")
        time.sleep(rng.uniform(1, 6))
        again.kill()
        finish(again)
    verdict, note = _judge(program, work, out)
    shutil.rmtree(out, ignore_errors=True)
    return phase, verdict, note


def _moment(moment: str, out: Path, work: Work, rng: np.random.Generator) -> tuple[Callable[[], bool], float]:
    """What is waited for, and the most seconds after it."""
    some = int(rng.integers(1, work.rounds))
    nth = int(rng.integers(0, 4))

    def checkpoint() -> bool:
        return len(checkpoints(out)) >= min(nth, 2) and any(".tmp" in name or "tmp-" in name for name in names())

    def names() -> list[str]:
        return os.listdir(out / "checkpoints")

    return {
        "start": (lambda: True, 2.5),
        "compile": (lambda: (out / "config.json").is_file(), 0.5),
        "rounds": (lambda: rows(out) >= some, 0.1),
        "checkpoint": (checkpoint, 0.03 if rng.random() < 0.5 else 0.12),
        "final": (lambda: rows(out) >= work.rounds, 0.03),
    }[moment]


def phase_of(out: Path, rounds: int) -> str:
    """Where a run was when it was killed, by what lies in its folder."""
    if not (out / "config.json").is_file():
        return "start"
    if status(out) == "completed":
        return "after the end"
    if rows(out) >= rounds:
        return "final writing"
    if any("checkpoint" in name or name.lstrip(".")[:1].isdecimal() for name in unfinished(out)):
        return "checkpoint"
    if rows(out) == 0:
        return "compile"
    return "rounds and evaluation"


def _judge(program: Program, work: Work, out: Path) -> tuple[str, str]:
    """Resumes, or where nothing was written yet begins again by the same command."""
    if (out / "config.json").is_file():
        done: Done = program.run("resume", out)
    else:
        done = program.run(*work.arguments, "--out", out)
    if done.status != 0:
        return "lost", str(done)
    differs = difference(out, work.wanted)
    return ("lost", differs) if differs else ("survived", "")


def _compare(program: Program, rng: np.random.Generator, part: float) -> list[Row]:
    given = ["compare", *SMALL, "--algorithms", "fedadam,scaffold", "--seeds", "2", "--rounds", "150"]
    wanted = program.folder / "wanted-compare"
    done = program.run(*given, "--out", wanted)
    if done.status != 0:
        raise RuntimeError(f"the undisturbed comparison fails: {done}")
    hits: dict[str, Row] = {}
    out = program.folder / "killed-compare"
    folders = [f"{name}/seed-{i}" for name in ("fedadam", "scaffold") for i in (0, 1)]
    for moment, count in COMPARE_MOMENTS.items():
        for _ in range(_some(count, part)):
            last = out / folders[int(rng.integers(0, 4))]
            seen, longest = {
                "rounds": (lambda last=last: rows(last) >= 10, 0.3),
                "checkpoint": (lambda last=last: any("tmp" in name for name in os.listdir(last / "checkpoints")), 0.05),
                "between": (lambda last=last: status(last) == "completed", 0.05),
                "report": (lambda: status(out / folders[-1]) == "completed", 1.5),
            }[moment]
            for _ in range(TRIES):
                shutil.rmtree(out, ignore_errors=True)
                process = program.start(*given, "--checkpoint-every", "0", "--out", out)
                if watch(process, seen):
                    time.sleep(rng.uniform(0, longest))
                    if process.poll() is None:
                        break
                process.kill()
                finish(process)
            process.kill()
            finish(process)
            phase = _compare_phase(out, folders)
            done = program.run("resume", out)
            differs = "; ".join(f"{one}: {d}" for one in folders if (d := difference(out / one, wanted / one)))
            if done.status == 0 and not differs and not (out / "report.html").is_file():
                differs = "no report"
            row = hits.setdefault(phase, Row("kill -9", f"compare, hit during {phase}"))
            row.count("lost" if done.status or differs else "survived", str(done) if done.status else differs)
    shutil.rmtree(out, ignore_errors=True)
    return list(hits.values())


def _compare_phase(out: Path, folders: list[str]) -> str:
    if all(status(out / one) == "completed" for one in folders):
        return "the report"
    for one in folders:
        if status(out / one) != "completed":
            return phase_of(out / one, 150)
    return "the end"
