"""Too little memory: a run that is continued under a limit fails, and its checkpoints continue it without one."""

from __future__ import annotations

import resource
import shutil

import numpy as np

from fault_cases.program import SMALL, Program, Row, checkpoints, difference, finish, watch

ARGUMENTS = ["run", *SMALL, "--algorithm", "scaffold", "--rounds", "400"]
LIMITS = {"RLIMIT_AS": (resource.RLIMIT_AS, 0.2, 4.0), "RLIMIT_DATA": (resource.RLIMIT_DATA, 0.05, 1.0)}
SIZES = 8


def run(program: Program, seed: int, part: float) -> list[Row]:
    """Limits from far too little to enough."""
    wanted, base, out = (program.folder / name for name in ("wanted", "base", "limited"))
    program.run(*ARGUMENTS, "--out", wanted)
    process = program.start(*ARGUMENTS, "--checkpoint-every", "0", "--out", base)
    watch(process, lambda: len(checkpoints(base)) >= 2)
    process.kill()
    finish(process)
    table = []
    for name, (limit, least, most) in LIMITS.items():
        row = Row("memory", f"resume under {name} of {least} to {most} GB, then without")
        table.append(row)
        ends: dict[str, int] = {}
        for size in np.geomspace(least, most, max(2, round(SIZES * part))):
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(base, out)
            room = int(size * 1e9)

            def lower(limit: int = limit, room: int = room) -> None:
                resource.setrlimit(limit, (room, room))

            done = program.run("resume", out, before=lower)
            end = "completed" if done.status == 0 else "one line" if done.one_line else f"status {done.status}"
            ends[end] = ends.get(end, 0) + 1
            after = program.run("resume", out)
            differs = difference(out, wanted) if after.status == 0 else str(after)
            row.count("lost" if differs else "survived", f"{size:.2f} GB: {differs or done}")
        row.notes.append("ends under the limit: " + ", ".join(f"{end} {count}" for end, count in ends.items()))
    return table
