"""Disks that are full or read-only: small tmpfs mounts, in a mount namespace that ends with this process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from fault_cases.program import SMALL, Program, Row, difference, fingerprint

MARK = "FEDOPTAX_FAULTS_MOUNTS"
RUNS = {
    "full disk": (["run", *SMALL, "--algorithm", "scaffold", "--rounds", "60"], 14),
    "full disk, client states on it": (
        ["run", *SMALL, "--algorithm", "scaffold", "--rounds", "12", "--client-states", "disk"],
        8,
    ),
}
REPORTS = 4


def enter_private_mounts() -> bool:
    """Starts this program again where mounts are its own and vanish with it; False where that is not allowed."""
    if MARK in os.environ:
        return os.environ[MARK] == "1"
    flags = ["--mount"] if os.getuid() == 0 else ["--map-root-user", "--mount"]
    try:
        subprocess.run(["unshare", *flags, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        os.environ[MARK] = "0"
        return False
    os.environ[MARK] = "1"
    os.execvp("unshare", ["unshare", *flags, sys.executable, *sys.argv])


def run(program: Program, seed: int, part: float) -> list[Row]:
    """All sizes; `part` of the number that is planned."""
    if os.environ.get(MARK) != "1":
        row = Row("disk", "skipped: mounts are not allowed here")
        row.notes.append("no mounts in a namespace of one's own here")
        return [row]
    table = []
    for i, (name, (arguments, count)) in enumerate(RUNS.items()):
        row = Row("disk", name)
        table.append(row)
        wanted = program.folder / f"wanted-{i}"
        program.run(*arguments, "--out", wanted)
        largest = _largest(program, arguments)
        for size in np.geomspace(8, largest, max(2, round(count * part))):
            verdict, note = _filled(program, arguments, int(size), wanted)
            row.count(verdict, f"{int(size)} KiB of {largest}: {note}")
    return [*table, *_reports(program, part), *_read_only(program)]


def _largest(program: Program, arguments: list[str]) -> int:
    """KiB just too few for the run: on a disk half as large again as what it leaves, two checkpoints and a third."""
    place = _mount(program, 2**16)
    program.run(*arguments, "--checkpoint-every", "0", "--out", place / "a")
    used = shutil.disk_usage(place).used // 1024
    _unmount(place)
    return used * 5 // 4


def _filled(program: Program, arguments: list[str], kib: int, wanted: Path) -> tuple[str, str]:
    place = _mount(program, kib)
    try:
        out = place / "a"
        done = program.run(*arguments, "--checkpoint-every", "0", "--out", out)
        if done.status != 0 and not (done.one_line and done.status == 1):
            return "lost", str(done)
        _remount(place, "size=64m")
        resumable = (out / "config.json").is_file()
        after = program.run(*(["resume", out] if resumable else [*arguments, "--out", out]))
        if after.status != 0:
            return "lost", f"after {done}: {after}"
        differs = difference(out, wanted)
        return ("lost", differs) if differs else ("survived", str(done) if done.status else "it was enough")
    finally:
        _unmount(place)


def _reports(program: Program, part: float) -> list[Row]:
    """Reports on a disk that fills: the earlier report stays as it was, file by file."""
    row = Row("disk", "full disk, report")
    run = program.folder / "wanted-0"
    for kib in np.geomspace(16, 700, max(2, round(REPORTS * part))):
        place = _mount(program, int(kib))
        try:
            done = program.run("report", run, "--out", place)
            left = [path.name for path in place.rglob("*") if ".tmp" in path.name]
            sound = (done.status == 0 or done.one_line) and not left
            row.count("lost" if not sound else "refused" if done.status else "survived", str(done))
        finally:
            _unmount(place)
    return [row]


def _read_only(program: Program) -> list[Row]:
    row = Row("disk", "read-only: run, resume, report, compare, and run --overwrite")
    arguments, _ = RUNS["full disk"]
    place = _mount(program, 2**16)
    try:
        program.run(*arguments, "--out", place / "a")
        before = fingerprint(place / "a")
        _remount(place, "ro")
        for given in (
            [*arguments, "--out", place / "b"],
            ["resume", place / "a", "--rounds", "70"],
            ["report", place / "a"],
            ["compare", *SMALL, "--algorithms", "fedavg", "--seeds", "1", "--rounds", "2", "--out", place / "c"],
            [*arguments, "--out", place / "a", "--overwrite"],
        ):
            done = program.run(*given)
            harmed = fingerprint(place / "a") != before
            row.count("refused" if done.one_line and not harmed else "lost", f"{given[0]}: {done}")
    finally:
        _unmount(place)
    return [row]


def _mount(program: Program, kib: int) -> Path:
    place = program.folder / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(place)], check=True)
    return place


def _remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def _unmount(place: Path) -> None:
    subprocess.run(["umount", str(place)], check=True)
    place.rmdir()
