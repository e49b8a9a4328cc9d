"""Ctrl-C, SIGTERM and SIGHUP: an orderly end with the signal's exit status, nothing half-written, resumable."""

from __future__ import annotations

import shutil
import signal
import time

import numpy as np

from fault_cases.program import SMALL, Program, Row, difference, finish, rows, status, unfinished, watch

ARGUMENTS = ["run", *SMALL, "--algorithm", "scaffold", "--rounds", "400"]
MOMENTS = ("start", "compile", "rounds", "rounds", "end")
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(program: Program, seed: int, part: float) -> list[Row]:
    """Every signal at every moment."""
    rng = np.random.default_rng([seed, 8])
    wanted, out = program.folder / "wanted", program.folder / "stopped"
    program.run(*ARGUMENTS, "--out", wanted)
    table = []
    for number in NUMBERS:
        row = Row("signals", f"{number.name} to run")
        table.append(row)
        for moment in MOMENTS[: max(2, round(len(MOMENTS) * part))]:
            shutil.rmtree(out, ignore_errors=True)
            process = program.start(*ARGUMENTS, "--checkpoint-every", "0.3", "--out", out)
            some = int(rng.integers(5, 350))
            seen = {
                "start": lambda: True,
                "compile": lambda: (out / "config.json").is_file(),
                "rounds": lambda some=some: rows(out) >= some,
                "end": lambda: rows(out) >= 400,
            }[moment]
            watch(process, seen)
            time.sleep(rng.uniform(0.7, 2) if moment == "start" else rng.uniform(0, 0.1))
            process.send_signal(number)
            done = finish(process)
            allowed = {128 + number, 0} | ({-number} if moment == "start" else set())
            if done.status not in allowed or ("Traceback" in done.error and moment != "start"):
                row.count("lost", f"{moment}: {done}")
                continue
            if left := unfinished(out):
                row.count("lost", f"{moment}: {left} are left")
                continue
            if (out / "config.json").is_file() and done.status and status(out) not in ("interrupted", "running"):
                row.count("lost", f"{moment}: the summary says {status(out)}")
                continue
            begun = (out / "config.json").is_file()
            after = program.run(*(["resume", out] if begun else [*ARGUMENTS, "--out", out]))
            differs = difference(out, wanted) if after.status == 0 else str(after)
            row.count("lost" if differs else "survived", f"{moment}: {differs or f'status {done.status}'}")
    return table
