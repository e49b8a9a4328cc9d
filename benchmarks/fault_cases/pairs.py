"""Two processes on one folder: one has it, the other is refused in one line or only reads; no result is harmed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np

from fault_cases.program import SMALL, Done, Program, Row, checkpoints, difference, finish, rows, watch

RUN = ["run", *SMALL, "--algorithm", "fedadam", "--rounds", "300", "--checkpoint-every", "0.3"]
COMPARE = ["compare", *SMALL, "--algorithms", "fedavg,fedadam", "--seeds", "1", "--rounds", "100"]
OTHER = ["--partition-seed", "1"]  # another experiment
REPEATS = 3


def run(program: Program, seed: int, part: float) -> list[Row]:
    """All pairs."""
    rng = np.random.default_rng([seed, 5])
    wanted = {}
    for name, arguments in {"run": RUN, "other": [*RUN, *OTHER], "compare": COMPARE}.items():
        wanted[name] = program.folder / f"wanted-{name}"
        program.run(*arguments, "--out", wanted[name])
    killed = program.folder / "killed"
    process = program.start(*RUN, "--out", killed)
    watch(process, lambda: len(checkpoints(killed)) >= 1 and rows(killed) > 50)
    process.kill()
    finish(process)
    table = []
    out = program.folder / "shared"
    for case in ("run and run", "run and run --overwrite", "run and resume", "resume and resume", "resume and report",
                 "compare and compare", "compare and resume"):  # fmt: skip
        row = Row("two processes", case)
        table.append(row)
        for _ in range(max(1, round(REPEATS * part))):
            shutil.rmtree(out, ignore_errors=True)
            first, second = case.split(" and ")
            if first == "resume":
                shutil.copytree(killed, out)
            one = program.start(*_arguments(first, out, ()))
            if second in ("resume", "report"):
                marker = "compare.json" if first == "compare" else "config.json"
                watch(one, lambda marker=marker: (out / marker).is_file())
            else:
                time.sleep(rng.choice([0.0, rng.uniform(0, 4)]))
            two = program.start(*_arguments(second, out, OTHER))
            row.count(*_judge(finish(one), finish(two), second, first, out, wanted))
    return table


def _arguments(what: str, out: Path, more: tuple[str, ...] | list[str]) -> list[object]:
    if what in ("resume", "report"):
        return [what, out]
    words = what.split()
    return [*(RUN if words[0] == "run" else COMPARE), *more, *words[1:], "--out", out]


def _judge(one: Done, two: Done, second: str, first: str, out: Path, wanted: dict[str, Path]) -> tuple[str, str]:
    note = f"{one}; {two}"
    if not all(done.status == 0 or done.one_line for done in (one, two)) or (one.status and two.status):
        return "lost", note
    if first == "compare":
        same = not any(
            difference(out / name / "seed-0", wanted["compare"] / name / "seed-0") for name in ("fedavg", "fedadam")
        )
        if one.status == 0 and not same and second == "compare":
            return "lost", f"the first's results were changed; {note}"
        whole = same or one.status != 0
        return ("survived", note) if whole and (out / "report.html").is_file() else ("lost", note)
    ends = {name: difference(out, wanted[name]) for name in ("run", "other")}
    if second == "run --overwrite" and two.status == 0:
        return ("survived", note) if not ends["other"] else ("lost", f"{ends['other']}; {note}")
    if one.status == 0 or second in ("resume", "report"):
        return ("survived", note) if not ends["run"] else ("lost", f"{ends['run']}; {note}")
    return ("survived", note) if not ends["other"] else ("lost", f"{ends['other']}; {note}")
