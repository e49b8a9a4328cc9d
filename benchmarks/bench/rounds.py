"""Times one case of the benchmark and prints it as a line of JSON: `python rounds.py CASE [--profile]`.

A timed call is a whole `fx.run` of some rounds with sampling, gathering and history. The first call, which compiles, is
timed apart. Every core is a device, as on the command line. With --profile, on a GPU, a table of the kernels that take
most of a round goes before it.
"""

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))

import numpy as np  # noqa: E402
from shapes import ALGORITHM, RAGGED_BATCH, SHAPES, image_task, ragged_sizes, task_of, work  # noqa: E402

import fedoptax as fx  # noqa: E402

IS_CPU = jax.default_backend() == "cpu"
CALL_SECONDS = 2.5 if IS_CPU else 1.0  # of a timed call: to begin and end a run takes some hundredths of a second
REPEATS = 5 if IS_CPU else 3


def time_shape(name: str, dtype: str = "float32") -> dict[str, float]:
    """The rounds that the peers are timed on."""
    task = fx.with_compute_dtype(task_of(name), dtype)
    return time_runs(lambda rounds: fx.run(task, ALGORITHM, rounds=rounds, **options_of(name)))


def time_clients(kind: str, cohort: int) -> dict[str, float]:
    """Clients of log-normal sizes with mean 100, or all of 100 examples."""
    sizes = ragged_sizes()
    sizes = sizes if kind == "ragged" else np.full(len(sizes), round(sizes.mean()))
    task = image_task("mlp", sizes)
    options = {"cohort_size": cohort, "batch_size": RAGGED_BATCH, "eval_every": 10**6}
    return time_runs(lambda rounds: fx.run(task, ALGORITHM, rounds=rounds, **options))


def time_states(algorithm: str, place: str) -> dict[str, float]:
    """3,400 clients with states of their own; most of a short run is to make and return them."""
    task = image_task("mlp", np.full(3400, 100))
    made = fx.ALGORITHMS[algorithm](client_lr=1e-5)
    options = {"cohort_size": 10, "batch_size": 20, "eval_every": 10**6, "client_states": place}
    return time_runs(lambda rounds: fx.run(task, made, rounds=rounds, **options), 300)


def time_federation(clients: int) -> dict[str, float]:
    """One example per client and a cohort of 100, while the federation grows."""
    task = image_task("tiny", np.ones(clients, int))
    options = {"cohort_size": 100, "batch_size": 1, "eval_every": 10**6}
    return time_runs(lambda rounds: fx.run(task, ALGORITHM, rounds=rounds, **options), 600)


def time_algorithm(name: str, shape: str) -> dict[str, float]:
    """An algorithm and FedAvg in turn; a run of one round is subtracted from each longer one."""
    task = task_of(shape)
    made = {"fedavg": fx.fedavg(client_lr=0.05), name: fx.ALGORITHMS[name](lr=1e-4)}
    rounds, turns = (4, 15) if shape == "mlp" else (2, 5)
    times: dict[str, list[float]] = {which: [] for which in made}
    for turn in range(turns + 1):
        for which, algorithm in made.items():
            run = partial(fx.run, task, algorithm, **options_of(shape))
            each = (seconds_of(partial(run, rounds=1 + rounds)) - seconds_of(partial(run, rounds=1))) / rounds
            if turn:  # the first one compiles
                times[which].append(each * 1e3)
    return {"ms": statistics.median(times[name]), "fedavg_ms": statistics.median(times["fedavg"])}


def time_sweep(points: int) -> dict[str, float]:
    """A sweep of so many points, from its first compilation to the last result."""
    task, make = task_of("tiny"), partial(fx.fedadam, server_lr=0.01)
    grid = {"client_lr": np.geomspace(0.01, 0.1, points).tolist()}
    return {"ms": seconds_of(lambda: fx.sweep(task, make, grid, rounds=5, **options_of("tiny"))) * 1e3}


def options_of(name: str) -> dict[str, Any]:
    """All clients take part in every round, and nothing is evaluated."""
    return {"cohort_size": SHAPES[name].clients, "batch_size": SHAPES[name].batch, "eval_every": 10**6}


def time_runs(run: Callable[[int], object], rounds: int | None = None) -> dict[str, float]:
    """Milliseconds per round of runs of so many rounds, or of as many as take about `CALL_SECONDS`."""
    first = seconds_of(lambda: run(1))
    run(2)  # may compile once more
    two = seconds_of(lambda: run(2))
    rounds = rounds or int(np.clip(CALL_SECONDS / (two / 2), 2, 400))
    more = seconds_of(lambda: run(rounds))
    if not IS_CPU and rounds > 2:  # where a run's beginning and end take longer than its rounds
        rounds = int(np.clip(CALL_SECONDS / max((more - two) / (rounds - 2), 1e-5), rounds, 5000))
        run(rounds)
    with work.turn():
        two = min(two, seconds_of(lambda: run(2)))
        times = [seconds_of(lambda: run(rounds)) for _ in range(REPEATS)]
        if "--profile" in sys.argv:
            print_kernels(lambda: run(2), 2)
    median = statistics.median(times)
    each = (median - two) / (rounds - 2) if rounds > 2 else two / 2
    return {
        "ms": median / rounds * 1e3,
        "min_ms": min(times) / rounds * 1e3,
        "ms_without_ends": each * 1e3,
        "ends_seconds": max(two - 2 * each, 0.0),
        "first_call_seconds": first,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def print_kernels(call: Callable[[], object], rounds: int, rows: int = 12) -> None:
    """Print the milliseconds per round of a GPU's kernels, the longest first."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            call()
        (file,) = Path(folder).rglob("*.xplane.pb")
        planes = jax.profiler.ProfileData.from_file(str(file)).planes
        lines = [line for plane in planes if "GPU" in plane.name for line in plane.lines if "Stream" in line.name]
        spent, calls = Counter[str](), Counter[str]()
        for event in (event for line in lines for event in line.events):
            spent[event.name] += event.duration_ns / 1e6 / rounds
            calls[event.name] += 1
    totals = f"ms per round, of {spent.total():.2f} | launches, of {calls.total() / rounds:.0f}"
    print(f"| kernel | {totals} |\n| --- | --- | --- |")
    for name, ms in spent.most_common(rows):
        print(f"| {name[:90]} | {ms:.3f} | {calls[name] / rounds:.0f} |")


CASES: dict[str, Callable[[], dict[str, float]]] = {
    **{name: partial(time_shape, name) for name in SHAPES},
    **{f"{name}-bfloat16": partial(time_shape, name, "bfloat16") for name in SHAPES},
    **{f"{kind}-{cohort}": partial(time_clients, kind, cohort) for kind in ("ragged", "equal") for cohort in (10, 100)},
    "states-fedavg-device": partial(time_states, "fedavg", "device"),
    "states-scaffold-device": partial(time_states, "scaffold", "device"),
    "states-scaffold-host": partial(time_states, "scaffold", "host"),
    **{f"clients-{count}": partial(time_federation, count) for count in (10**3, 10**4, 10**5, 10**6)},
    **{f"{a}-{shape}": partial(time_algorithm, a, shape) for a in ("fedlamb", "fafed") for shape in ("mlp", "cnn")},
    **{f"sweep-{points}": partial(time_sweep, points) for points in (1, 8)},
}  # fmt: skip

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in CASES or sys.argv[2:] not in ([], ["--profile"]):
        sys.exit(f"usage: python rounds.py CASE [--profile], one of {', '.join(CASES)}")
    print(json.dumps(CASES[sys.argv[1]]()))
