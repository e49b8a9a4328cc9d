"""fedoptax's own times, by pytest-benchmark: warm rounds, compilation, peak memory. Called by `make bench`.

    python -m pytest benchmarks/bench/test_rounds.py -k "mlp" --benchmark-json=out.json

A timed call is a whole `fx.run` of some rounds: sampling, gathering, history and all; `rounds_per_call` in the JSON
says how many. Compilation is timed apart, in the first call. Every core is a device, as at the command line.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import fedoptax as fx
from bench.shapes import ALGORITHM, RAGGED_BATCH, SHAPES, image_task, ragged_sizes, task_of
from fedoptax.engine.cores import use_cores
from fedoptax.engine.sampling import cohort_of_round
from fedoptax.models.layers import Lowering, conv

CALL = 2.5  # seconds that a timed call should take: beginning and ending a run are some hundredths of one
REPEATS = 5
CONVOLUTIONS = [  # n, height and width of x, in, out: what the models have, and what lies at the border of the choice
    (20, 34, 3, 16),
    (20, 34, 16, 16),
    (20, 34, 24, 24),
    (20, 10, 16, 32),
    (20, 26, 32, 64),
    (20, 34, 64, 64),
    (20, 66, 32, 32),
    (8, 130, 32, 32),
    (20, 8, 64, 64),
    (20, 5, 64, 64),
    (20, 18, 128, 128),
    (20, 10, 256, 256),
    (20, 6, 512, 512),
]

use_cores()


def measure(benchmark: Any, call: Callable[[int], fx.RunResult], rounds: int | None = None) -> None:
    """Times `call(rounds)`, as many as take about `CALL` seconds, after a first call that compiles."""
    begun = time.perf_counter()
    call(1)
    benchmark.extra_info["first_call_seconds"] = time.perf_counter() - begun
    call(2)  # a program of its own: compiles
    begun = time.perf_counter()
    call(2)
    two = time.perf_counter() - begun
    rounds = int(np.clip(CALL / (two / 2), 2, 400)) if rounds is None else rounds
    benchmark.extra_info["two_rounds_seconds"] = two
    benchmark.pedantic(call, args=(rounds,), rounds=REPEATS, warmup_rounds=1)
    benchmark.extra_info["rounds_per_call"] = rounds
    benchmark.extra_info["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("name", SHAPES)
def test_shape(benchmark: Any, name: str) -> None:
    task, shape = task_of(name), SHAPES[name]
    options = {"cohort_size": shape.clients, "batch_size": shape.batch, "eval_every": 10**6}
    measure(benchmark, lambda rounds: fx.run(task, ALGORITHM, rounds=rounds, **options))


@pytest.mark.parametrize("way", ["loop", "vmap", "cores-vmap"])
@pytest.mark.parametrize("name", SHAPES)
def test_way(benchmark: Any, name: str, way: str) -> None:
    """Other ways to run the clients than the default of a CPU, one after another on each core."""
    task, shape = task_of(name), SHAPES[name]
    options = {"cohort_size": shape.clients, "batch_size": shape.batch, "eval_every": 10**6}
    options |= {"client_loop": way.removeprefix("cores-"), "mesh": None if way.startswith("cores") else 1}
    measure(benchmark, lambda rounds: fx.run(task, ALGORITHM, rounds=rounds, **options))


@pytest.mark.parametrize("cohort", [10, 100])
@pytest.mark.parametrize("kind", ["ragged", "equal"])
def test_ragged(benchmark: Any, kind: str, cohort: int) -> None:
    sizes = ragged_sizes()
    if kind == "equal":
        sizes = np.full(len(sizes), round(sizes.mean()))
    task = image_task("mlp", sizes)
    options = {"cohort_size": cohort, "batch_size": RAGGED_BATCH, "eval_every": 10**6}
    measure(benchmark, lambda rounds: fx.run(task, ALGORITHM, rounds=rounds, **options))
    benchmark.extra_info["examples_per_round"] = examples_a_round(
        sizes, cohort, benchmark.extra_info["rounds_per_call"]
    )


def examples_a_round(sizes: np.ndarray, cohort: int, rounds: int) -> float:
    """The mean number of examples of the cohorts that a run of seed 0 draws."""
    key = jax.random.key(0)
    drawn = [sizes[np.asarray(cohort_of_round(key, r, len(sizes), cohort))].sum() for r in range(rounds)]
    return float(np.mean(drawn))


@pytest.mark.parametrize("states", ["device", "host"])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_many_states(benchmark: Any, algorithm: str, states: str) -> None:
    if algorithm == "fedavg" and states == "host":
        pytest.skip("FedAvg's clients keep nothing")
    task = image_task("mlp", np.full(3400, 100))
    made = fx.ALGORITHMS[algorithm](client_lr=1e-5)
    options = {"cohort_size": 10, "batch_size": 20, "eval_every": 10**6, "client_states": states}
    rounds = 300 if states == "host" else 1500  # to begin and end a run with states on the device takes many seconds
    measure(benchmark, lambda rounds: fx.run(task, made, rounds=rounds, **options), rounds=rounds)


@pytest.mark.parametrize("lowering", ["patches", "winograd"])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: "x".join(map(str, case)))
def test_convolution(benchmark: Any, case: tuple[int, int, int, int], lowering: Lowering) -> None:
    """A 3 x 3 convolution and its gradients in a compiled loop, one on each core: n, height and width, in, out."""
    n, size, fan_in, out = case
    cores = jax.local_device_count()
    x, kernel = jnp.ones((cores * n, size, size, fan_in)), jnp.full((cores * 3, 3, fan_in, out), 0.01)

    def energy(x: jax.Array, kernel: jax.Array) -> jax.Array:  # whose gradients need the output: a sum's would not
        return jnp.sum(conv(x, kernel, lowering=lowering) ** 2)

    def step(_: Any, both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, kernel = both
        slopes = jax.grad(energy, (0, 1))(x, kernel)
        return x - 1e-9 * slopes[0], kernel - 1e-9 * slopes[1]

    def on_a_core(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.fori_loop(0, 10, step, (x, kernel))

    each = PartitionSpec("core")
    mesh = jax.make_mesh((cores,), ("core",))
    run = jax.jit(jax.shard_map(on_a_core, mesh=mesh, in_specs=each, out_specs=each, check_vma=False))
    x, kernel = jax.device_put((x, kernel), NamedSharding(mesh, each))
    jax.block_until_ready(run(x, kernel))
    benchmark.pedantic(lambda: jax.block_until_ready(run(x, kernel)), rounds=7)
    benchmark.extra_info["rounds_per_call"] = 10


@pytest.mark.parametrize("clients", [10**3, 10**4, 10**5, 10**6])
def test_number_of_clients(benchmark: Any, clients: int) -> None:
    """One example a client, cohort 100: what a round costs when only the federation grows."""
    task = image_task("tiny", np.ones(clients, int))
    options = {"cohort_size": 100, "batch_size": 1, "eval_every": 10**6}
    measure(benchmark, lambda rounds: fx.run(task, ALGORITHM, rounds=rounds, **options), rounds=600)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("algorithm", ["fedlamb", "fafed"])
def test_algorithm(benchmark: Any, algorithm: str, name: str) -> None:
    """An algorithm and FedAvg in turn; of each a run of one round is subtracted, which holds beginning and ending.

    Short turns, and many: other users of the machine's memory come and go by the second, and weigh on both alike.
    """
    task, shape = task_of(name), SHAPES[name]
    made = {"fedavg": fx.fedavg(client_lr=0.05), algorithm: fx.ALGORITHMS[algorithm](lr=1e-4)}
    options = {"cohort_size": shape.clients, "batch_size": shape.batch, "eval_every": 10**6}
    rounds, turns = (4, 15) if name == "mlp" else (2, 5)
    times: dict[str, list[float]] = {which: [] for which in made}

    def seconds(which: str, rounds: int) -> float:
        begun = time.perf_counter()
        fx.run(task, made[which], rounds=rounds, **options)
        return time.perf_counter() - begun

    def turn() -> None:
        for which in made:
            short = seconds(which, 1)
            times[which].append((seconds(which, 1 + rounds) - short) / rounds * 1e3)

    turn()  # compiles
    for which in made:
        times[which].clear()
    benchmark.pedantic(turn, rounds=turns)
    benchmark.extra_info["rounds_per_call"] = len(made) * (2 + rounds)
    benchmark.extra_info["each_ms"] = {which: float(np.median(found)) for which, found in times.items()}
