"""Runs that wait for a GPU: jobs of `reproductions/queue.toml`, one after another or side by side, until a deadline.

A job has a folder of its own below the work folder. One whose end is in the histories is skipped; one that was stopped
goes on from its checkpoint while its folder is there, and else starts again.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRACE = 25.0  # seconds to write a checkpoint and the results
ENDED = ("completed", "diverged")


@dataclass(frozen=True)
class Job:
    """A command of fedoptax, the minutes it takes on one H100, and the share of that GPU which it fills."""

    name: str
    command: str
    minutes: float
    share: float = 1.0


def read_queue(path: Path) -> list[Job]:
    """Read the jobs in their order; an entry stands for one job per algorithm and seed."""
    queue = tomllib.loads(path.read_text(encoding="utf-8"))
    defaults = {"options": queue.get("options", ""), "share": 1.0, "seeds": [0]}
    return [
        Job(
            f"{entry['name']}/{algorithm}/seed-{seed}",
            f"{entry['command']} --algorithm {algorithm} --seed {seed} {entry['options']}".strip(),
            entry["minutes"],
            entry["share"],
        )
        for entry in (defaults | entry for entry in queue["runs"])
        for seed in entry["seeds"]
        for algorithm in entry["algorithms"]
    ]


def choose_next(waiting: Sequence[Job], seconds: float, free: float) -> Job | None:
    """Choose the first job that ends within so many seconds, or else the first, which will be stopped.

    None while that one must wait for its share of the GPU: nothing behind it goes first.
    """
    job = next((job for job in waiting if job.minutes * 60 <= seconds), waiting[0] if waiting else None)
    return job if job is not None and job.share <= free + 1e-9 else None


def work_off(jobs: Sequence[Job], work: Path, deadline: float, env: Mapping[str, str], facts: dict[str, str]) -> None:
    """Run jobs until all have ended or the deadline (of `time.monotonic`) has come; `facts` are kept with each."""
    waiting, running = list(jobs), dict[Job, subprocess.Popen[bytes]]()
    while (left := deadline - GRACE - time.monotonic()) > 0 and (waiting or running):
        for job in [job for job, process in running.items() if process.poll() is not None]:
            note_end(job, running.pop(job).returncode, work / job.name, facts)
        job = choose_next(waiting, left, 1 - sum(job.share for job in running))
        if job is None:
            time.sleep(0.1)
        else:
            waiting.remove(job)
            running[job] = start(job, work / job.name, env, facts)
    for process in running.values():
        process.send_signal(signal.SIGINT)
    for job, process in running.items():
        try:
            process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        note_end(job, process.returncode, work / job.name, facts)


def start(job: Job, folder: Path, env: Mapping[str, str], facts: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a job, or continue it, in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments = [*shlex.split(job.command), "--out", str(folder / "run")]
    if any((folder / "run" / mark).is_file() for mark in ("config.json", "compare.json", "tune.json")):
        arguments = ["resume", str(folder / "run")]
    print("fedoptax", shlex.join(arguments), flush=True)
    write_job(folder, job, "stopped", facts)
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 * job.share:.3f}"}
    with (folder / "log.txt").open("ab") as log:
        command = [sys.executable, "-m", "fedoptax.cli.main", *arguments]
        return subprocess.Popen(command, env=os.environ | env | memory, stdout=log, stderr=log)


def note_end(job: Job, status: int, folder: Path, facts: dict[str, str]) -> None:
    """Keep how a job ended: completed, diverged, stopped, or failed."""
    ends = [json.loads(path.read_text(encoding="utf-8"))["status"] for path in folder.rglob("summary.json")]
    if status == 0:
        ended = "completed"
    elif "interrupted" in ends or status in (130, -signal.SIGINT, -signal.SIGKILL):
        ended = "stopped"
    else:
        ended = "diverged" if "diverged" in ends else "failed"
    write_job(folder, job, ended, facts)


def write_job(folder: Path, job: Job, status: str, facts: dict[str, str]) -> None:
    text = json.dumps({"job": job.name, "command": job.command, "status": status} | facts)
    (folder / "job.json").write_text(text, encoding="utf-8")


def collect_histories(committed: Path, work: Path) -> Any:
    """Return one table of the committed histories and those in the work folder, which replace the former.

    A row is a round, as in `histories.read_run`; `run` is the job's name without its first part, and `job`, `command`,
    `status` and facts of the machine repeat.
    """
    import pandas as pd  # after the wheels that a machine lacks are there

    sys.path.append(str(Path(__file__).parent / "reproductions"))
    import histories

    old = pd.read_parquet(committed) if committed.is_file() else pd.DataFrame({"job": [], "command": [], "status": []})
    new = []
    for path in sorted(work.rglob("job.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        for history in sorted(path.parent.rglob("history.jsonl")):
            new.append(histories.read_run(history.parent, facts["job"].partition("/")[2]).assign(**facts))
            old = old[old["job"] != facts["job"]]
    if not new:
        return old
    table = pd.concat([old, *new] if len(old) else new, ignore_index=True)
    return table.astype(dict.fromkeys(table.select_dtypes("float64").columns, "float32"))


def describe(table: Any, work: Path) -> str:
    """Return a Markdown table with a row per run of these histories, and what failed jobs said last."""
    lines = ["| run | status | rounds | ms per round | training loss | test metric, last 100 rounds |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name, rows in table.groupby("job", sort=False) if len(table) else ():
        metrics = [name for name in rows if name.startswith("test_") and rows[name].notna().any()]
        metric = "test_accuracy" if "test_accuracy" in metrics else next(iter(metrics), None)
        last = rows[rows["round"] > rows["round"].max() - 100]
        test = f"{metric} {last[metric].mean():.4f} ({last[metric].count()} evaluations)" if metric else ""
        seconds = json.loads(rows["summary"].iloc[-1])["seconds_per_round"]
        cells = [name, rows["status"].iloc[-1], str(rows["round"].max()), f"{seconds * 1e3:.1f}"]
        cells += [f"{last['train_loss'].mean():.4f}", test]
        lines.append(f"| {' | '.join(cells)} |")
    for path in sorted(work.rglob("job.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["status"] == "failed":
            said = (path.parent / "log.txt").read_text(encoding="utf-8").strip().splitlines()
            lines += ["", f"{facts['job']} failed: {said[-1] if said else 'it said nothing'}"]
    return "\n".join(lines) + "\n"
