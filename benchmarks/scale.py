"""Memory of one run by P processes of a machine, when one cannot hold all client states: `results/scale.md`.

    python benchmarks/scale.py --clients 100000 --parameters 10000 --processes 1,2,4

SCAFFOLD on a linear model. Every process calls `fx.run` with `client_states="host"` and `examples="stream"`; they meet
over loopback. The page has the peak of a process's resident memory, and how far the models are from the first.
"""

import argparse
import json
import platform
import resource
import socket
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedoptax as fx
from fedoptax import distributed

PAGE = Path(__file__).parent / "results" / "scale.md"
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


def train(options: argparse.Namespace) -> None:
    """Be one of the processes."""
    if options.count > 1:
        distributed.join(options.coordinator, options.count, options.process)
    data = fx.FederatedData.open(options.folder / "data")
    features = data.examples["x"].shape[1]
    functions: Any = {"init": lambda key: jax.numpy.zeros((features, CLASSES)), "loss": loss}
    task = fx.Task("linear", clients=data, test=None, metrics=lambda params, batch: {}, **functions)
    result = fx.run(
        task, fx.scaffold(0.1), rounds=options.rounds, cohort_size=options.cohort, batch_size=1, seed=0,
        client_states="host", examples="stream", checkpoint_every=1e6, out=options.folder / f"run-{options.count}",
    )  # fmt: skip
    seconds = [row["seconds"] for row in result.history][1:]
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    figures = {"megabytes": megabytes, "seconds": float(np.median(seconds))}
    (options.folder / f"{options.count}-{options.process}.json").write_text(json.dumps(figures))


def measure(options: argparse.Namespace, count: int) -> list[dict[str, float]]:
    """Start the processes of one run, and return what each measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = ["--cohort", str(options.cohort), "--rounds", str(options.rounds), "--folder", str(options.folder)]
    arguments += ["--count", str(count), "--coordinator", coordinator]
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


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--parameters", type=int, default=10_000)
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--cohort", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=1800, help="the limit of one run")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--count", type=int)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--coordinator")
    return parser.parse_args()


def main() -> None:
    """Measure all numbers of processes, and write the page."""
    options = parse()
    if options.count:
        train(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        write_data(options.folder / "data", options.clients, options.parameters // CLASSES)
        rows, first, alone = [], None, 0.0
        for count in map(int, options.processes.split(",")):
            figures = measure(options, count)
            params = np.load(options.folder / f"run-{count}" / "params.npz")["params"]
            first = params if first is None else first
            most = max(one["megabytes"] for one in figures)
            alone = alone or most
            error = float(np.abs(params - first).max() / np.abs(first).max())
            seconds = figures[0]["seconds"]
            rows.append(f"| {count} | {most:,.0f} | {most / alone:.2f} | {seconds:.2f} | {error:.1e} |")
            print(rows[-1], flush=True)
    states = options.clients * options.parameters * 4 / 1e9
    seen = 1 - (1 - options.cohort / options.clients) ** options.rounds
    PAGE.write_text(f"""# One run by several processes of one machine

Made by `python benchmarks/scale.py --clients {options.clients} --parameters {options.parameters}
--processes {options.processes}` on {date.today()}, {platform.machine()}, all processes on the same cores:
{options.clients:,} clients with states of {options.parameters:,} float32 parameters, {states:.1f} GB in all;
{options.rounds} rounds of {options.cohort:,} clients, after which {seen:.0%} of the states have been written.

| processes | peak memory of one, MB | of one process's | seconds a round | difference of the model |
|---|---|---|---|---|
{chr(10).join(rows)}

The difference is the largest of any parameter, relative to the largest parameter, from the first row's.
""")


if __name__ == "__main__":
    main()
