"""What a round over the network takes: the table of results/network.md.

    python benchmarks/network.py                    # digits, three nodes, plain and secure
    python benchmarks/network.py --megabytes 100    # a large model: seconds, and memory at server and node

SuperLink, SuperNodes and ServerApp are real processes on the loopback interface, with TLS and node keys, as
`fedoptax deploy local` starts them. Nodes and server share this machine's cores, so on machines of their own nodes are
faster. `load` is the machine's at the end: above its number of cores others took their part of the time.
"""

import argparse
import datetime
import os
import platform
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import psutil

import fedoptax as fx
from attacks import commit, cpu
from fedoptax.deploy.app import write_app
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.keys import describe_keys, make_keys, write_keys
from fedoptax.deploy.local import LocalFederation
from fedoptax.storage.history import read_rows

NODES = 3
ROWS: dict[str, dict[str, Any]] = {"plain": {}, "secure aggregation": {"secure_aggregation": 8.0}}
PAGE = Path(__file__).parent / "results" / "network.md"
HEAD = """# A round over the network

Made by `python benchmarks/network.py --rounds {rounds}`. Task `digits` (its default model), three nodes, all asked in each round, batch 10, 1
local epoch, FedAvg; SuperLink, ServerApp, SuperNodes and their workers are real processes on the loopback interface, with TLS and node
keys, and share the machine's cores. *Processor time*: of all these processes, per round after the first. The first round compiles.

- Date: {date}. Machine: {cores} CPU cores ({cpu}), Linux {kernel}; load at the end {load} (other programs ran beside it where that is
  more than a run's own). Versions: fedoptax {fedoptax}, flwr {flwr}, jax {jax}, Python {python}. Commit {commit}.

| round | s, median after the first | s, longest after the first | first round, s | processor time, s |
|---|---|---|---|---|
"""


def measure(rounds: int, **changes: Any) -> tuple[list[float], float]:
    """Run the deployment; return the seconds of each round, and all processes' processor time per later round."""
    with tempfile.TemporaryDirectory() as folder:
        work, keys = Path(folder), make_keys(NODES)
        write_keys(work / "keys", keys)
        deployment = Deployment(
            task={"name": "digits", "num_clients": NODES}, algorithm="fedavg", hyperparameters={"client_lr": 0.1},
            rounds=rounds, cohort_size=NODES, batch_size=10, quorum=1.0, out=str(work / "out"), **describe_keys(keys),
            **changes,
        )  # fmt: skip
        write_app(work / "app", deployment)
        (work / "none.toml").write_text("")
        spent: dict[int, dict[int, float]] = {}

        def watch() -> None:
            if (work / "out" / "history.jsonl").is_file():
                spent[len((work / "out" / "history.jsonl").read_text().splitlines())] = processor_time(work)

        with LocalFederation(work, NODES, time_limit=1500.0) as federation:
            federation.run(work / "app", work / "none.toml", work / "log.txt", watch)
        later = [number for number in spent if 1 <= number < rounds]
        first, last = spent[min(later)], spent[max(later)]
        seconds = sum(time - first.get(pid, 0.0) for pid, time in last.items())
        return [row["seconds"] for row in read_rows(work / "out", rounds)], seconds / (max(later) - min(later))


def processor_time(work: Path) -> dict[int, float]:
    """Return the processor time, with that of children that have ended, of a federation's processes by id."""
    times = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(work) in f"{process.environ()} {process.cmdline()}":
                times[process.pid] = sum(process.cpu_times()[:4])
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default=",".join(ROWS), help="rows, separated by commas; then no page is written")
    options = parser.parse_args(arguments)
    table = []
    for name in options.only.split(","):
        seconds, processor = measure(options.rounds, **ROWS[name])
        first, later = seconds[0], seconds[1:]
        table.append(f"| {name} | {statistics.median(later):.2f} | {max(later):.2f} | {first:.2f} | {processor:.2f} |")
        print(table[-1], flush=True)
    if options.only == parser.get_default("only"):
        head = HEAD.format(
            rounds=options.rounds, date=datetime.date.today().isoformat(), cores=os.cpu_count(), cpu=cpu(),
            kernel=platform.release(), load=f"{os.getloadavg()[0]:.1f}", fedoptax=fx.__version__, flwr=version("flwr"),
            jax=jax.__version__, python=platform.python_version(), commit=commit(),
        )  # fmt: skip
        PAGE.write_text(head + "\n".join([*table, ""]))


if __name__ == "__main__":
    main()
