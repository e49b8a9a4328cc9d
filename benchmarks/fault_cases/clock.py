"""A wall clock that jumps during a run: by libfaketime where it is installed, else by a wrapper of `time.time`."""

from __future__ import annotations

import shutil
from pathlib import Path

from fault_cases.program import SMALL, Program, Row, checkpoints, difference, finish, rows, watch

ARGUMENTS = ["run", *SMALL, "--algorithm", "fedadam", "--rounds", "400", "--checkpoint-every", "0.1"]
JUMPS = {"1 day ahead": "+1d", "1 day back": "-1d", "1 year ahead": "+1y", "1 year back": "-1y"}
SECONDS = {"d": 86_400, "y": 365 * 86_400}
WRAPPER = """import os, time
_time = time.time
def _jumped():
    with open(os.environ["FAKETIME_TIMESTAMP_FILE"]) as file:
        text = file.read().strip()
    return _time() + float(text[:-1]) * {"d": 86400, "y": 31536000, "s": 1}[text[-1]]
time.time = _jumped
time.time_ns = lambda: int(_jumped() * 1e9)
"""


def run(program: Program, seed: int, part: float) -> list[Row]:
    """Every jump, after 50 rounds; checkpoints must go on after it."""
    wanted, out, file = (program.folder / name for name in ("wanted", "jumped", "offset"))
    program.run(*ARGUMENTS, "--out", wanted)
    library = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
    environment = {"FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    if library:
        environment["LD_PRELOAD"] = str(library)
    else:
        (program.folder / "clock").mkdir()
        (program.folder / "clock" / "sitecustomize.py").write_text(WRAPPER)
        before = program.environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = f"{program.folder / 'clock'}:{before}"
    row = Row("clock", f"jump of a day and a year, by {'libfaketime' if library else 'a wrapper of time.time'}")
    for name, offset in JUMPS.items():
        shutil.rmtree(out, ignore_errors=True)
        file.write_text("+0s")
        process = program.start(*ARGUMENTS, "--out", out, environment=environment)
        reached = watch(process, lambda: rows(out) >= 50 and len(checkpoints(out)) >= 1)
        at = max([0, *checkpoints(out)])
        file.write_text(offset)
        more = watch(process, lambda at=at: max([0, *checkpoints(out)]) > at)
        done = finish(process)
        differs = difference(out, wanted) if done.status == 0 else str(done)
        if not differs and not (reached and more):
            differs = "no checkpoint after the jump"
        row.count("lost" if differs else "survived", f"{name}: {differs}")
    return [row]
