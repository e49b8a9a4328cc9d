"""Files of a run damaged at random places, then `fedoptax resume`, in one worker process to save its start.

The worker calls the command line's `main` and its standard error is caught at the file descriptor. One that dies, by a
signal or a crash of a native library, makes the case lost and is replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from fault_cases.program import Done, Program, Row, checkpoints, difference, fingerprint, finish, rows, watch

PR_SET_PDEATHSIG = 1  # of prctl
TINY = [
    *("run", "--task", "digits", "--model", "logistic", "--num-clients", "8", "--cohort-size", "3"),
    *("--algorithm", "scaffold", "--rounds", "40"),
]
STATES = {  # how the damaged run was kept, and how many cases
    "killed, states on the device": (["--client-states", "device", "--examples", "stream"], True, 80),
    "killed, states on the host": (["--client-states", "host"], True, 60),
    "completed": (["--client-states", "device"], False, 60),
}


def run(program: Program, seed: int, part: float) -> list[Row]:
    """All cases; `part` of the number that is planned."""
    rng = np.random.default_rng([seed, 6])
    table: dict[str, Row] = {}
    worker = _worker(program)
    for i, (name, (more, killed, count)) in enumerate(STATES.items()):
        wanted, base = program.folder / f"wanted-{i}", program.folder / f"base-{i}"
        done = program.run(*TINY, *more, "--out", wanted)
        if done.status != 0:
            raise RuntimeError(f"the undisturbed run fails: {done}")
        if killed:
            _killed(program, [*TINY, *more], base)
        else:
            program.run(*TINY, *more, "--checkpoint-every", "0", "--out", base)
        for _ in range(max(1, round(count * part))):
            folder = program.folder / "damaged"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(base, folder)
            group, file = _choose(folder, rng)
            what = _damage(file, rng)
            before = fingerprint(folder)
            row = table.setdefault(group, Row("damaged file", group))
            note = f"({name}: {file.relative_to(folder)} {what})"
            try:
                done = Done(*worker.submit(resume, str(folder)).result(timeout=120))
                verdict, why = _judge(done, folder, wanted, before)
            except (BrokenProcessPool, TimeoutError) as error:
                verdict, why = "lost", f"the process died or hung: {type(error).__name__}"
                for process in worker._processes.values():
                    process.kill()
                worker = _worker(program)
            row.count(verdict, f"{note} {why}")
    worker.shutdown()
    return list(table.values())


def resume(folder: str) -> tuple[int, str, str]:
    """`fedoptax resume FOLDER` in this process: status, and what it wrote to standard error."""
    from fedoptax.cli.main import main

    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        status = 0
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                main(["resume", folder])
        except SystemExit as stopped:
            status = int(stopped.code or 0)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return status, "", file.read().decode(errors="replace")


def _worker(program: Program) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), _begin, (dict(program.environment),))


def _begin(environment: dict[str, str]) -> None:
    """Sets the worker up; where Linux can, it ends with its owner, however that ends."""
    os.environ.update(environment)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _killed(program: Program, arguments: list[str], out: Path) -> None:
    """A run killed after ten rounds with two checkpoints, and rows after the last."""
    for _ in range(20):
        shutil.rmtree(out, ignore_errors=True)
        process = program.start(*arguments, "--checkpoint-every", "0", "--out", out)
        watch(process, lambda: max([0, *checkpoints(out)]) >= 10 and rows(out) > checkpoints(out)[-1])
        process.kill()
        finish(process)
        if len(checkpoints(out)) >= 2 and 10 <= checkpoints(out)[-1] < 40:
            return
        time.sleep(0.1)
    raise RuntimeError("the run is too fast to be killed between its checkpoints")


def _choose(folder: Path, rng: np.random.Generator) -> tuple[str, Path]:
    """A group of files, each as likely as the others, and one of its files."""
    newest = checkpoints(folder)[-1]
    groups: dict[str, list[Path]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"):
        parts = path.relative_to(folder).parts
        group = parts[0]
        if group.startswith("checkpoints"):
            group = f"checkpoint, the {'newest' if str(newest) in parts else 'one before'}"
            group += ", client states" if "clients" in parts or parts[0] == "checkpoints-clients" else ""
        groups.setdefault(group, []).append(path)
    group = sorted(groups)[int(rng.integers(0, len(groups)))]
    return group, groups[group][int(rng.integers(0, len(groups[group])))]


def _damage(path: Path, rng: np.random.Generator) -> str:
    data = bytearray(path.read_bytes())
    at = int(rng.integers(0, len(data))) if data else 0
    end = min(len(data), at + int(rng.integers(1, 64)))

    def flip() -> None:
        data[at] ^= 1 << int(rng.integers(0, 8))

    def zero() -> None:
        data[at:end] = bytes(end - at)

    def garble() -> None:
        data[at:end] = rng.bytes(end - at)

    def cut() -> None:
        del data[at:]

    kinds: dict[str, Callable[[], None]] = {"a bit": flip, "zeroed": zero, "garbled": garble, "cut": cut}
    names = [*kinds, "a bit", "deleted"] if data else ["deleted"]
    name = names[int(rng.integers(0, len(names)))]
    before = bytes(data)
    if name == "deleted":
        path.unlink()
        return name
    kinds[name]()
    if bytes(data) == before:  # zeros where there were zeros
        name = "a bit"
        flip()
    path.write_bytes(data)
    return f"{name} at {at} of {len(before)}"


def _judge(done: Done, folder: Path, wanted: Path, before: dict[str, str]) -> tuple[str, str]:
    if done.status == 0:
        differs = difference(folder, wanted)
        return ("lost", differs) if differs else ("survived", "")
    if not done.one_line:
        return "lost", str(done)
    if fingerprint(folder) != before:
        return "lost", f"refused, but files were changed: {done}"
    return "refused", str(done)
