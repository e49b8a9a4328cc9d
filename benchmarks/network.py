"""What a round over the network takes: the tables of results/network.md.

    python benchmarks/network.py                      # digits, three nodes: seconds, plain and secure
    python benchmarks/network.py --megabytes 60       # a large model through the proxy: memory at server and nodes

SuperLink, SuperNodes, ServerApp and nginx are real processes on the loopback interface, with TLS and node keys. They
share this machine's cores, so on machines of their own they are faster. Each run adds its rows to the JSON file
`--rows`, and makes the page of it.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import psutil

import fedoptax as fx
from attacks import commit, cpu
from fedoptax._files import read_json, write_json
from fedoptax.deploy.app import write_app
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.keys import describe_keys, make_keys, write_keys
from fedoptax.deploy.local import LocalFederation, stop
from fedoptax.storage.history import read_rows
from network_attacks import proxy

ROUNDS = {
    "plain": {},
    "secure": {"secure_aggregation": 8.0},
    "compressed": {"compress": "topk:fraction=0.05"},
    "asynchronous": {"asynchronous": 2},
}
COLUMNS = ("load", "seconds", "longest", "first", "processor", "server", "node")
TASK = '''"""A perceptron of a given size on synthetic examples."""

from load import make_task


def build(partition):
    return make_task({nodes}, {hidden})
'''
PAGE = Path(__file__).parent / "results" / "network.md"
HEAD = """# Rounds over the network

Made by `python benchmarks/network.py`: SuperLink, ServerApp, SuperNodes and their workers are real processes on the
loopback interface of one machine, with TLS and node keys; large models come through nginx. FedAvg, one local epoch.

- *Seconds*: median and longest of the rounds after the first, which compiles. *Processor*: seconds of all processes
  together, per round after the first.
- *Server*, *node*: the largest sum of peak resident memory of the processes of the server (SuperLink, ServerApp) and of
  one node (SuperNode, the message's process, worker), in MB. Pages that processes share count for each.
- *Load* of the machine when the run ended: where it is far above the number of cores, other programs took most of the
  time, and seconds say nothing; processor time and memory hold.
- Date: {date}. Machine: {cores} CPU cores ({cpu}), Linux {kernel}. Versions: fedoptax {fedoptax}, flwr {flwr}, jax
  {jax}, Python {python}. Commit {commit}.

| model | nodes | round | load | seconds | longest | first | processor | server, MB | node, MB |
|---|---|---|---|---|---|---|---|---|---|
"""


def measure(kind: str, nodes: int, rounds: int, megabytes: float) -> dict[str, float]:
    """Run a deployment and return the numbers of its row; `megabytes` 0 is digits."""
    with tempfile.TemporaryDirectory() as folder:
        work, keys = Path(folder), make_keys(nodes)
        write_keys(work / "keys", keys)
        task = {"name": "fedoptax_app.task:build"} if megabytes else {"name": "digits", "num_clients": nodes}
        size = 2 if kind == "asynchronous" else nodes
        deployment = Deployment(
            task=task, algorithm="fedavg", hyperparameters={"client_lr": 0.1}, rounds=rounds, cohort_size=size,
            batch_size=10, quorum=1.0, out=str(work / "out"), **describe_keys(keys), **ROUNDS[kind],
        )  # fmt: skip
        write_app(work / "app", deployment)
        if megabytes:
            text = TASK.format(nodes=nodes, hidden=round(megabytes * 1e6 / 4 / 74))
            (work / "app" / "fedoptax_app" / "task.py").write_text(text)
        (work / "none.toml").write_text("")
        spent: dict[int, dict[int, float]] = {}
        peak: defaultdict[str, float] = defaultdict(float)

        def watch() -> None:
            done = work / "out" / "history.jsonl"
            times, memory = look_at_processes(work)
            for home, size in memory.items():
                peak[home] = max(peak[home], size)
            if done.is_file():
                spent[len(done.read_text().splitlines())] = times

        with LocalFederation(work, nodes, time_limit=3000.0) as federation, through_proxy(federation, megabytes > 0):
            federation.run(work / "app", work / "none.toml", work / "log.txt", watch)
        seconds = [row["seconds"] for row in read_rows(work / "out", rounds)]
        later = sorted(number for number in spent if 1 <= number < rounds)
        first, last = spent[later[0]], spent[later[-1]]
        used = sum(time - first.get(pid, 0.0) for pid, time in last.items()) / max(1, later[-1] - later[0])
        row = os.getloadavg()[0], statistics.median(seconds[1:]), max(seconds[1:]), seconds[0], used
        of_nodes = max(size for home, size in peak.items() if "nodes" in home)
        of_server = sum(size for home, size in peak.items() if "superlink" in home)
        return dict(zip(COLUMNS, (*row, of_server, of_nodes)))


@contextmanager
def through_proxy(federation: LocalFederation, is_wanted: bool) -> Iterator[None]:
    """Let the nodes come through nginx."""
    if not is_wanted:
        yield
        return
    with proxy(federation.work, federation.port) as port:
        for node in list(federation.nodes):
            stop([federation.nodes[node]])
            federation.start_node(node, port=port)
        yield


def look_at_processes(work: Path) -> tuple[dict[int, float], dict[str, float]]:
    """Return the processor time, with that of ended children, by process id; and peak memory in MB by Flower's home."""
    times, memory = {}, defaultdict(float)
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError, StopIteration):
            home = process.environ().get("FLWR_HOME", "")
            if home.startswith(str(work)):
                times[process.pid] = sum(process.cpu_times()[:4])
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                memory[home] += int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024
    return times, memory


def write_page(rows: dict[str, Any]) -> None:
    """Write the page."""
    head = HEAD.format(
        date=datetime.date.today().isoformat(), cores=os.cpu_count(), cpu=cpu(), kernel=platform.release(),
        fedoptax=fx.__version__, flwr=version("flwr"), jax=jax.__version__, python=platform.python_version(),
        commit=commit(),
    )  # fmt: skip
    digits = {"load": 0, "seconds": 2, "longest": 2, "first": 1, "processor": 2, "server": 0, "node": 0}
    lines = []
    for key, row in rows.items():
        cells = [f"{row[name]:,.{count}f}" for name, count in digits.items()]
        lines.append("| " + " | ".join([*key.split("/"), *cells]) + " |\n")
    PAGE.write_text(head + "".join(lines))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=0.0, help="of the model; 0 is digits")
    parser.add_argument("--only", default="plain,secure", help=f"of {', '.join(ROUNDS)}, separated by commas")
    parser.add_argument("--rows", type=Path, default=Path("runs") / "network-rows.json")
    options = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    model = f"{options.megabytes:g} MB" if options.megabytes else "digits"
    for kind in options.only.split(","):
        row = measure(kind, options.nodes, options.rounds, options.megabytes)
        rows = read_json(options.rows) if options.rows.is_file() else {}
        rows[f"{model}/{options.nodes}/{kind}"] = row
        options.rows.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.rows, rows)
        print(model, kind, json.dumps(row), flush=True)
    write_page(rows)


if __name__ == "__main__":
    main()
