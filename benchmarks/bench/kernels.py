"""Where a round's time goes: the kernels of the compiled program, from `jax.profiler`'s trace of warm rounds.

    python benchmarks/bench/kernels.py mlp                                    # the round that the peers are timed on
    python benchmarks/bench/kernels.py cnn --algorithm fedlamb --rounds 2 --top 30

A row is an instruction of the optimized program: microseconds for one local step of one client, how often it runs a
step, its name, what it computes and the operation of the source it came from. Loops and branches are left out, as they
hold the others; so is what takes less than `--least` of the whole. On a CPU each core is a device, as at the command
line. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import jax  # noqa: E402
import numpy as np  # noqa: E402

import fedoptax as fx  # noqa: E402
from bench.shapes import ALGORITHM, SHAPES, task_of  # noqa: E402
from fedoptax import threefry  # noqa: E402
from fedoptax.engine.batches import LocalWork  # noqa: E402
from fedoptax.engine.client_states import OnDevice  # noqa: E402
from fedoptax.engine.cores import use_cores  # noqa: E402
from fedoptax.engine.data import device_data, mesh_data  # noqa: E402
from fedoptax.engine.mesh import choose_mesh  # noqa: E402
from fedoptax.engine.plan import Plan  # noqa: E402
from fedoptax.engine.program import Fixed, program  # noqa: E402

ALGORITHMS = {
    "fedadam": ALGORITHM,
    "fedavg": fx.fedavg(client_lr=0.05),
    "fedlamb": fx.fedlamb(lr=1e-4),
    "fafed": fx.fafed(lr=1e-4),
    "scaffold": fx.scaffold(client_lr=0.05),
}
HOLDERS = ("while", "conditional", "call")  # their kernels are counted by themselves
NEVER = np.int32(10**6)  # no round so late is run, so none is evaluated


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="fedadam")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are traced")
    parser.add_argument("--top", type=int, default=25, help="rows at most")
    parser.add_argument("--least", type=float, default=0.002, help="part of the whole below which a row is left out")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error(f"argument --rounds: {given.rounds} given, allowed is a whole number >= 1")
    use_cores()
    text, spent, runs = traced(given.shape, ALGORITHMS[given.algorithm], given.rounds)
    kernels = {name: form for name, form in instructions(text).items() if opcode(form) not in HOLDERS}
    shape = SHAPES[given.shape]
    steps = given.rounds * shape.clients * shape.steps
    whole = sum(spent[name] for name in kernels)
    if not whole:
        parser.exit(1, "kernels.py: the trace names no kernel of the program\n")
    rows = [(spent[name], name) for name in kernels if spent[name] >= given.least * whole]
    for nanoseconds, name in sorted(rows, reverse=True)[: given.top]:
        what, source = told(kernels[name])
        print(f"{nanoseconds / steps / 1e3:9.1f} us x {runs[name] / steps:5.2f}  {name:36} {what:60} {source}")
    print(f"{whole / steps / 1e3:9.1f} us a local step, all kernels together; {given.shape}, {given.algorithm}")
    return 0


def traced(name: str, algorithm: fx.FedAlgorithm, rounds: int) -> tuple[str, Counter[str], Counter[str]]:
    """The optimized program of some rounds, and the nanoseconds and runs of its instructions by name."""
    task, shape, key = task_of(name), SHAPES[name], threefry.key(0)
    mesh = choose_mesh(None, shape.clients)
    plan = Plan(shape.clients, LocalWork(shape.batch), mesh=mesh, weighting=algorithm.weighting)
    built = program(task, Fixed(algorithm), plan)
    data: Any = mesh_data(task, mesh) if mesh > 1 else device_data(task)
    server, client = built.start({}, key)
    clients = OnDevice(client, task.num_clients).tree

    def advance(server: Any, clients: Any, start: int, stop: int) -> tuple[Any, Any]:
        done = built.advance({}, server, clients, data, key, np.int32(start), np.int32(stop), NEVER, NEVER)
        jax.block_until_ready(done)
        return done.server, done.clients

    server, clients = advance(server, clients, 0, 2)
    with tempfile.TemporaryDirectory(prefix="fedoptax-trace-") as folder:
        with jax.profiler.trace(folder):
            advance(server, clients, 2, 2 + rounds)
        (trace,) = Path(folder).glob("**/*.xplane.pb")
        spent, runs = events(jax.profiler.ProfileData.from_file(str(trace)))
    return built.advance.compiled.as_text(), spent, runs


def events(profile: Any) -> tuple[Counter[str], Counter[str]]:
    """Nanoseconds and number of a trace's events, by instruction: on a GPU `hlo_op` names it, on a CPU the event."""
    spent, runs = Counter[str](), Counter[str]()
    for line in (line for plane in profile.planes for line in plane.lines):
        for event in line.events:
            name = str(dict(event.stats).get("hlo_op", event.name))
            spent[name] += event.duration_ns
            runs[name] += 1
    return spent, runs


def instructions(text: str) -> dict[str, str]:
    """The right-hand sides of a program's instructions, by name."""
    return dict(re.findall(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.+)$", text, flags=re.MULTILINE))


def opcode(form: str) -> str:
    found = re.match(r"(?:\(.*?\)|\S+) ([\w\-]+)\(", form)
    return found[1] if found else ""


def told(form: str) -> tuple[str, str]:
    """An instruction's result and operation, and the end of the name that the source gave it."""
    named = re.search(r'op_name="([^"]*)"', form)
    short = re.sub(r"\{[\d,]*\}", "", form.split(", metadata", 1)[0].split(", kind=", 1)[0])
    return short[:60], "/".join(named[1].split("/")[-3:]) if named else ""


if __name__ == "__main__":
    sys.exit(main())
