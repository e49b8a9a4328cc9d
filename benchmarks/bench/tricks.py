"""Measures each trick of fedoptax/engine/xla.py against doing without it, in turn, and prints the ratios.

    python benchmarks/bench/tricks.py             # about 10 minutes; nothing else should run meanwhile
    python benchmarks/bench/tricks.py --turns 3

Each measurement is a process of its own. `cores`: milliseconds per round of a shape with a device per core, or with one
device. The others: seconds from the first line of `fx.run` to the end of its first round of the MLP.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STARTS = ("cache", "quick")  # tricks that shorten the first round
SHAPES = ("mlp", "tiny")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--child", nargs=2, metavar=("CASE", "WITHOUT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(*given.child)))
        return
    print("| trick | with | without | ratio |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "kept"
        for case, trick in [*((shape, "cores") for shape in SHAPES), *(("start", trick) for trick in STARTS)]:
            times: dict[str, list[float]] = {"none": [], trick: []}
            if trick == "cache":
                run(case, "none", kept)  # fills it
            for turn in range(given.turns):
                for without, found in times.items():
                    is_kept = trick == "cache" and without == "none"
                    found.append(run(case, without, kept if is_kept else Path(folder) / f"{trick}-{without}-{turn}"))
            on, off = (statistics.median(found) for found in times.values())
            print(f"| {trick}, {case} | {on:.3g} | {off:.3g} | {on / off:.2f} |", flush=True)


def run(case: str, without: str, cache: Path) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    command = [sys.executable, __file__, "--child", case, without]
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def measure(case: str, without: str) -> float:
    """Seconds of the first round, or milliseconds of a later one, without one of the tricks."""
    from fedoptax.engine import program, xla

    if without != "cores":
        xla.use_cores()
    if without == "quick":
        program.quick_options = dict  # type: ignore[assignment]
    xla.use_cache(0)
    from shapes import ALGORITHM, task_of
    from shapes import SHAPES as ALL

    import fedoptax as fx

    shape = "mlp" if case == "start" else case
    task, options = task_of(shape), {"cohort_size": ALL[shape].clients, "batch_size": ALL[shape].batch}

    def seconds(rounds: int) -> float:
        begun = time.perf_counter()
        fx.run(task, ALGORITHM, rounds=rounds, eval_every=10**6, **options)
        return time.perf_counter() - begun

    if case == "start":
        return seconds(1)
    seconds(2)
    short, long = seconds(2), seconds(22)
    return (long - short) / 20 * 1e3


if __name__ == "__main__":
    main()
