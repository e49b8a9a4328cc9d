"""Past one process: the memory of one run by P processes, and many runs by two workers: `results/scale.md`.

    python benchmarks/scale.py memory     # 100,000 clients, by 1 and by 4 processes
    python benchmarks/scale.py workers    # 12 runs, three times each, on a machine that does nothing else

`memory`: SCAFFOLD on a linear model. Every process calls `fx.run` with `client_states="host"` and `examples="stream"`;
they meet over loopback, whose traffic is counted. `workers`: `fedoptax compare` on digits in one process and with
`--workers 2`, in turn. What was measured is in `results/scale.json`, from which the page is made.
"""

import argparse
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np

import fedoptax as fx
from fedoptax import distributed

RESULTS = Path(__file__).parent / "results"
CLASSES = 100


def write_data(folder: Path, clients: int, features: int) -> None:
    """Write one example per client, {"x": (1, features), "y": (1,)}."""
    rng = np.random.default_rng(0)
    rule = rng.standard_normal((features, CLASSES), np.float32)

    def examples() -> Any:
        for _ in range(clients):
            x = rng.standard_normal((1, features), np.float32)
            yield {"x": x, "y": (x @ rule).argmax(1).astype(np.int32)}

    fx.FederatedData.write(folder, examples())


def loss(params: Any, batch: Any, key: Any) -> Any:
    """Cross-entropy of the linear model."""
    logits = batch["x"] @ params
    chosen = jax.numpy.take_along_axis(logits, batch["y"][:, None], 1)[:, 0]
    return fx.masked_mean(jax.nn.logsumexp(logits, 1) - chosen, batch)


def loopback_bytes() -> int:
    """Read how many bytes were sent over loopback, by all processes of this network namespace."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def train(options: argparse.Namespace) -> None:
    """Be one of the processes."""
    if options.count > 1:
        distributed.join(options.coordinator, options.count, options.process)
    data = fx.FederatedData.open(options.folder / "data")
    features = data.examples["x"].shape[1]
    functions: Any = {"init": lambda key: jax.numpy.zeros((features, CLASSES)), "loss": loss}
    task = fx.Task("linear", clients=data, test=None, metrics=lambda params, batch: {}, **functions)
    sent: dict[int, int] = {}  # bytes over loopback by rounds done
    fx.run(
        task, fx.scaffold(0.1), rounds=options.rounds, cohort_size=options.cohort, batch_size=1, seed=0,
        client_states="host", examples="stream", checkpoint_every=1e6, out=options.folder / f"run-{options.count}",
        progress=lambda done, note: sent.update({done: loopback_bytes()}),
    )  # fmt: skip
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {"megabytes": used.ru_maxrss / 2**10, "processor_seconds": used.ru_utime + used.ru_stime}
    if sent:  # at the leader
        figures["sent"] = (sent[max(sent)] - sent[min(sent)]) / (max(sent) - min(sent)) / 1e6
    (options.folder / f"{options.count}-{options.process}.json").write_text(json.dumps(figures))


def run_processes(options: argparse.Namespace, count: int) -> list[dict[str, float]]:
    """Start the processes of one run, and return what each measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = ["train", "--cohort", str(options.cohort), "--rounds", str(options.rounds)]
    arguments += ["--folder", str(options.folder), "--count", str(count), "--coordinator", coordinator]
    processes = [
        subprocess.Popen([sys.executable, __file__, *arguments, "--process", str(i)], stdout=subprocess.DEVNULL)
        for i in range(count)
    ]
    try:
        assert [process.wait(options.seconds) for process in processes] == [0] * count
    finally:
        for process in processes:
            process.kill()
    return [json.loads((options.folder / f"{count}-{i}.json").read_text()) for i in range(count)]


def measure_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Run with every number of processes."""
    rows, first = [], None
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        write_data(options.folder / "data", options.clients, options.parameters // CLASSES)
        for count in map(int, options.processes.split(",")):
            each = run_processes(options, count)
            params = np.load(options.folder / f"run-{count}" / "params.npz")["params"]
            first = params if first is None else first
            error = float(np.abs(params - first).max() / np.abs(first).max())
            most = max(each, key=lambda one: one["megabytes"])
            rows.append({**each[0], **most, "sent": each[0]["sent"], "processes": count, "error": error})
            print(rows[-1], flush=True)
    return {name: getattr(options, name) for name in ("clients", "parameters", "cohort", "rounds")} | {"rows": rows}


def measure_workers(options: argparse.Namespace) -> dict[str, Any]:
    """Compare two algorithms over seeds, in one process and by two workers in turn; the first turn compiles."""
    command = [
        sys.executable,
        "-m",
        "fedoptax.cli.main",
        "compare",
        "--task",
        "digits",
        "--algorithms",
        "fedavg,fedadam",
    ]
    command += ["--seeds", str(options.runs // 2), "--rounds", str(options.rounds), "--mesh", "1", "--overwrite"]
    seconds: dict[str, list[float]] = {"one process": [], "two workers": []}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        for _ in range(options.repeats + 1):
            for name, more in (("one process", []), ("two workers", ["--workers", "2"])):
                start = time.perf_counter()
                out = ["--out", str(Path(folder) / "out"), *more]
                subprocess.run([*command, *out], env=environment, check=True, capture_output=True)
                seconds[name].append(time.perf_counter() - start)
    return {"runs": options.runs, "rounds": options.rounds, "seconds": {k: v[1:] for k, v in seconds.items()}}


def write_page(results: dict[str, Any]) -> None:
    """Write the page of what was measured so far."""
    text = ["# Past one process\n"]
    if memory := results.get("memory"):
        alone, states = memory["rows"][0]["megabytes"], memory["clients"] * memory["parameters"] * 4 / 1e9
        seen = 1 - (1 - memory["cohort"] / memory["clients"]) ** memory["rounds"]
        work = f"{memory['rounds']} rounds of {memory['cohort']} clients"
        touched = 1 - (1 - seen) ** (2**21 / memory["parameters"] / 4)
        rows = [
            f"| {row['processes']} | {row['megabytes']:,.0f} | {row['megabytes'] / alone:.3f} | "
            f"{row['processor_seconds'] / memory['rounds']:.3f} | {row['sent']:.1f} | {row['error']:.1e} |"
            for row in memory["rows"]
        ]
        text.append(f"""## One run by several processes of one machine

`python benchmarks/scale.py memory`, {memory["about"]}, all processes on the same cores: {memory["clients"]:,} clients
with states of {memory["parameters"]:,} float32 parameters, {states:.1f} GB in all; {work},
after which {seen:.0%} of the states have been written, and {touched:.1%} of the large pages (2 MB, Linux's for NumPy)
that hold them: a page with one written state is in memory as a whole.

| processes | peak memory of one, MB | of one process's | processor seconds | MB sent | difference |
|---|---|---|---|---|---|
{chr(10).join(rows)}

Processor seconds are those of one process, start and compiling included, and MB those that all processes send over
loopback, for each round. The difference is the largest of any parameter, relative to the largest, from the first row's.
""")
    if workers := results.get("workers"):
        one, two = (workers["seconds"][name] for name in ("one process", "two workers"))
        ratios = sorted(a / b for a, b in zip(one, two))
        rows = [f"| {name} | {median(took):.1f} | {min(took):.1f} |" for name, took in workers["seconds"].items()]
        text.append(f"""## Many runs by two workers

`python benchmarks/scale.py workers`, {workers["about"]}: `fedoptax compare` on digits, {workers["runs"]} runs
of {workers["rounds"]} rounds and the report, compiled before, {len(one)} times each in turn.

| | seconds, median | least |
|---|---|---|
{chr(10).join(rows)}

Throughput of two workers: {median(ratios):.2f} times that of one process ({ratios[0]:.2f} to {ratios[-1]:.2f}).
""")
    (RESULTS / "scale.md").write_text("\n".join(text))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("memory", "workers", "train", "page"))
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--parameters", type=int, default=10_000)
    parser.add_argument("--processes", default="1,4")
    parser.add_argument("--cohort", type=int, default=250)
    parser.add_argument("--rounds", type=int, help="60 for memory, 2000 for workers")
    parser.add_argument("--seconds", type=int, default=3600, help="the limit of one run")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    for internal in ("--folder", "--count", "--process", "--coordinator"):
        kind: Any = {"--folder": Path, "--coordinator": str}.get(internal, int)
        parser.add_argument(internal, type=kind, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure what is asked for, and write the page."""
    options, file = parse(), RESULTS / "scale.json"
    options.rounds = options.rounds or {"memory": 60}.get(options.what, 2000)
    if options.what == "train":
        train(options)
        return
    results = json.loads(file.read_text()) if file.is_file() else {}
    if options.what != "page":
        measured = (measure_memory if options.what == "memory" else measure_workers)(options)
        about = f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores"
        results[options.what] = {"about": about, **measured}
        file.write_text(json.dumps(results, indent=1) + "\n")
    write_page(results)


if __name__ == "__main__":
    main()
