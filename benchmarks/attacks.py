"""What failing and lying clients do to six algorithms, and which aggregators help: the table of docs/robustness.md.

    python benchmarks/attacks.py                       # everything, some 20 minutes on 2 idle cores
    python benchmarks/attacks.py --only fedavg,fafed   # some algorithms; prints, and writes nothing

Setting: task digits (50 clients, Dirichlet 0.3, MLP), 10 clients a round, batch 10, 1 local epoch, each algorithm with
its preset. Writes benchmarks/results/attacks-HARDWARE-DATE.md; `--out FOLDER` writes elsewhere.
"""

import argparse
import datetime
import math
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedoptax as fx
from fedoptax.experiments.presets import PRESETS
from fedoptax.experiments.result import DivergedError

ALGORITHMS = ("fedavg", "fedadam", "fedyogi", "scaffold", "fedlamb", "fafed")
SEEDS, ROUNDS, COHORT, BATCH = range(5), 60, 10, 10
FAULTS = {"30 % drop out": fx.Faults(dropout=0.3), "deadline": fx.Faults(deadline=3.0)}
CORRUPTIONS = {"10 % NaN": (0.1, math.nan), "20 % × −10": (0.2, -10.0), "20 % × 100": (0.2, 100.0)}  # rate, factor
ATTACKS = ("none", *FAULTS, *CORRUPTIONS)
AGGREGATORS = ("mean", "median", "trimmed_mean:0.2", "norm_clipping", "krum:2")
RESULTS = Path(__file__).parent / "results"

HEAD = """# Attacks

Made by `python benchmarks/attacks.py`. Test accuracy after {rounds} rounds, the mean of {seeds} seeds. *Diverged in
r*: the server's state became NaN or infinite, in round r at the earliest of the seeds.

- Task `digits`: {clients} clients, Dirichlet 0.3, the task's MLP; {cohort} clients a round, batch {batch}, 1 local
  epoch, hyper-parameters of `experiments/presets.toml`, weights of each paper (mean and norm clipping only).
- Attacks strike each client of each cohort with the given probability in each round, so that a cohort of {cohort} may
  have more liars than an aggregator bears. *NaN* and *×* spoil the whole upload: the updates of `fedavg`, `fedadam`,
  `fedyogi` and `scaffold`, but the parameters themselves (and moments) of `fedlamb` and `fafed`.
- *Deadline*: {deadline:g} virtual seconds; a step of the median client takes 1, log-normal spread 0.5 over clients.
- Clients whose uploads counted, of {cohort} a round, with `fedavg` and the mean: {participants}.
- `norm_clipping`: the bound is the largest cohort mean of the uploads' norms in any round of a run without attack, with
  seed 0: {bounds}.
- Hardware: {cores} CPU cores ({cpu}), JAX on {device}; {seconds:.0f} s, beside other work. Versions: fedoptax
  {fedoptax}, jax {jax}, numpy {numpy}, Python {python}. Commit {commit}. Date: {date}.
"""


class Outcome(NamedTuple):
    """The last test accuracy, NaN after a divergence; the round of it, else 0; participants a round."""

    accuracy: float
    diverged: int
    participants: float


def measure(task: fx.Task, name: str, aggregate: str, attack: str, seed: int) -> Outcome:
    faults = FAULTS.get(attack, fx.Faults())
    try:
        result = fx.run(task, make(name, attack), faults=faults, aggregate=aggregate, seed=seed, **options())
    except DivergedError as error:
        return Outcome(math.nan, len(error.result.history) + 1, math.nan)
    counts = [row["participants"] for row in result.history]
    return Outcome(result.history[-1]["test_accuracy"], 0, float(np.mean(counts)))


def options() -> dict[str, Any]:
    return {"rounds": ROUNDS, "cohort_size": COHORT, "batch_size": BATCH, "eval_every": ROUNDS, "progress": False}


@cache  # equal algorithms share a compiled program
def make(name: str, attack: str = "none") -> fx.FedAlgorithm:
    algorithm = fx.ALGORITHMS[name](**PRESETS["digits"][name])
    return with_corruption(algorithm, *CORRUPTIONS[attack]) if attack in CORRUPTIONS else algorithm


def with_corruption(algorithm: fx.FedAlgorithm, rate: float, factor: float) -> fx.FedAlgorithm:
    """The algorithm, of whose uploads each is multiplied by `factor` with probability `rate`."""

    def client_update(grad_fn: Any, message: Any, client: Any, batches: Any) -> tuple[Any, Any, jax.Array]:
        upload, client, loss = algorithm.client_update(grad_fn, message, client, batches)
        lies = jax.random.uniform(jax.random.fold_in(batches.get(0).key, 1)) < rate  # of the client in this round

        def corrupt(a: jax.Array) -> jax.Array:
            return jnp.where(lies, factor * a, a).astype(a.dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a

        return jax.tree.map(corrupt, upload), client, loss

    return algorithm._replace(client_update=client_update)


def bound_of(task: fx.Task, name: str) -> float:
    """The largest cohort mean of the uploads' norms in a run without attack, to three digits."""
    result = fx.run(task, with_norms(make(name)), seed=0, **options())
    return float(f"{float(jnp.max(result.state[1])):.3g}")


def with_norms(algorithm: fx.FedAlgorithm) -> fx.FedAlgorithm:
    """The algorithm, whose uploads bring their norm and whose server keeps each round's mean of it."""

    def norm(upload: Any) -> jax.Array:
        leaves = [a for a in jax.tree.leaves(upload) if jnp.issubdtype(a.dtype, jnp.floating)]
        return jnp.sqrt(sum((jnp.sum(jnp.square(a)) for a in leaves), jnp.float32(0)))

    def client_update(*arguments: Any) -> tuple[Any, Any, jax.Array]:
        upload, client, loss = algorithm.client_update(*arguments)
        return (upload, norm(upload)), client, loss

    def server_update(server: Any, mean: Any, cohort: Any) -> Any:
        state, norms, round = server
        return algorithm.server_update(state, mean[0], cohort), norms.at[round].set(mean[1]), round + 1

    return algorithm._replace(
        init=lambda params: (algorithm.init(params), jnp.zeros(ROUNDS), jnp.int32(0)),
        broadcast=lambda server: algorithm.broadcast(server[0]),
        client_update=client_update,
        server_update=server_update,
        params=lambda server: algorithm.params(server[0]),
    )


def cell(outcomes: Sequence[Outcome]) -> str:
    broken = [outcome.diverged for outcome in outcomes if outcome.diverged]
    if broken:
        return f"diverged in {min(broken)}"
    return f"{np.mean([outcome.accuracy for outcome in outcomes]):.3f}"


def commit() -> str:
    here = Path(__file__).parent
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(ALGORITHMS), help="algorithms, separated by commas")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the table")
    given = parser.parse_args(arguments)
    names = given.only.split(",")
    task, begun, code = fx.load_task("digits"), time.perf_counter(), commit()  # of now, not of when it ends
    lines = [f"| algorithm | aggregator | {' | '.join(ATTACKS)} |", f"|---|---|{'---:|' * len(ATTACKS)}"]
    print("\n".join(lines), flush=True)
    bounds, participants = {}, dict.fromkeys(ATTACKS, math.nan)
    for name in names:
        bounds[name] = bound_of(task, name)
        for aggregator in AGGREGATORS:
            spelled = f"norm_clipping:{bounds[name]}" if aggregator == "norm_clipping" else aggregator
            cells = []
            for attack in ATTACKS:
                outcomes = [measure(task, name, spelled, attack, seed) for seed in SEEDS]
                cells.append(cell(outcomes))
                if math.isnan(participants[attack]):
                    participants[attack] = float(np.mean([outcome.participants for outcome in outcomes]))
            lines.append(f"| `{name}` | {aggregator} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    device, today = jax.devices()[0], datetime.date.today().isoformat()
    head = HEAD.format(
        rounds=ROUNDS,
        seeds=len(SEEDS),
        clients=task.num_clients,
        cohort=COHORT,
        batch=BATCH,
        deadline=FAULTS["deadline"].deadline,
        participants=", ".join(f"{attack} {count:.1f}" for attack, count in participants.items()),
        bounds=", ".join(f"`{name}` {bound:g}" for name, bound in bounds.items()),
        cores=os.cpu_count(),
        cpu=cpu(),
        device=f"{device.platform} ({device.device_kind})",
        seconds=time.perf_counter() - begun,
        fedoptax=fx.__version__,
        jax=jax.__version__,
        numpy=np.__version__,
        python=platform.python_version(),
        commit=code,
        date=today,
    )
    print(head)
    if names == list(ALGORITHMS):
        given.out.mkdir(parents=True, exist_ok=True)
        hardware = f"{device.platform}-{os.cpu_count()}-cores" if device.platform == "cpu" else device.platform
        text = head + "\n" + "\n".join(lines) + "\n"
        (given.out / f"attacks-{hardware}-{today}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
