"""fedoptax against its peers and against the machine, in one run; writes one page of tables.

    make bench                                                     # all of it; nothing else should run meanwhile
    python benchmarks/bench/run.py --only mlp,tiny --peers torch   # a part

Peers are timed by their scripts in `--scripts` (../shared/bench), each in an environment of its own, `.venv-peer-NAME`,
which `make bench-peers` installs. What is not installed is left out, and the page says so. A peer runs with one thread
and with all of them, and its better time counts. Our own times stand before and after the peers' in the page: their
difference is the machine's mood.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PEERS = {
    "torch": ("mlp", "cnn", "tiny", "lstm"),
    "pfl": ("mlp", "cnn", "tiny"),
    "fedjax": ("mlp", "cnn", "tiny"),
    "flower": ("mlp", "cnn", "tiny"),
}
PACKAGES = {"torch": "torch", "pfl": "pfl", "fedjax": "fedjax", "flower": "flwr"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SHAPES = ("mlp", "cnn", "tiny", "lstm")
PARTS = (*SHAPES, "ways", "convolutions", "ragged", "states", "clients", "algorithms", "start")
TARGETS = {  # of the ratio peer / fedoptax, as the project set them
    ("tiny", "pfl"): 4.0,
    ("tiny", "torch"): 4.0,
    ("tiny", "fedjax"): 2.0,
    ("tiny", "flower"): 15.0,
    ("lstm", "torch"): 1 / 0.75,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--scripts", type=Path, default=ROOT.parent / "shared" / "bench")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args()
    parts, peers = given.only.split(","), [name for name in given.peers.split(",") if name]
    for name, allowed in [*((p, PARTS) for p in parts), *((p, tuple(PEERS)) for p in peers)]:
        if name not in allowed:
            parser.error(f"'{name}' given, allowed is one of {', '.join(allowed)}")
    given.out.mkdir(parents=True, exist_ok=True)
    what = "-".join(["bench", *(parts if parts != list(PARTS) else [])])
    place = unused(given.out / f"{what}-{os.cpu_count()}cpu-{platform.machine()}-{time.strftime('%Y-%m-%d')}.md")
    text = heading(parts, peers)
    for title, part, work in (
        ("Rounds against the peers and the limit", SHAPES, lambda: against_peers(parts, peers, given.scripts)),
        ("How the clients of a round are run", ("ways",), ways),
        ("3 x 3 convolutions", ("convolutions",), convolutions),
        ("Clients of unequal size", ("ragged",), ragged),
        ("Client states", ("states",), states),
        ("A growing federation", ("clients",), growing),
        ("What algorithms cost", ("algorithms",), algorithms),
        ("From the shell", ("start",), start),
    ):
        if any(one in parts for one in part):
            text += f"\n## {title}\n\n{work()}"
            print(text.rsplit("\n## ", 1)[-1], flush=True)
            place.write_text(text, encoding="utf-8")  # a run that is stopped keeps what it has
    print(place)
    return 0


def unused(place: Path) -> Path:
    """`place`, or with -2, -3, ... behind its name: two machines of one kind may run on one day."""
    others = (place.with_stem(f"{place.stem}-{count}") for count in itertools.count(2))
    return next(one for one in itertools.chain([place], others) if not one.exists())


def matmul_rate() -> float:
    """Floating-point operations a second of a large float32 matrix multiply in XLA: the median, as rounds are."""
    code = """
import statistics, time, jax, jax.numpy as jnp
n = 2048
a = jax.random.normal(jax.random.key(0), (n, n)); f = jax.jit(lambda a: a @ a); f(a).block_until_ready()
seconds = []
for _ in range(30):
    begun = time.perf_counter(); f(a).block_until_ready(); seconds.append(time.perf_counter() - begun)
print(2 * n**3 / statistics.median(seconds))
"""
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def ours(pattern: str) -> dict[str, dict[str, Any]]:
    """Our times by pytest-benchmark, each test in a process of its own: `{test id: {"ms", "min_ms", extra info}}`."""
    listed = pytest("--collect-only", "-q", "-k", pattern).stdout.splitlines()
    found = {}
    for test in (line for line in listed if "::" in line):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "times.json"
            done = pytest(f"--benchmark-json={report}", "-q", test.rsplit("/", 1)[-1], check=False)
            if not report.is_file() or done.returncode:
                print(done.stdout[-2000:], file=sys.stderr)
                continue
            for row in json.loads(report.read_text(encoding="utf-8"))["benchmarks"]:
                info, stats = row["extra_info"], row["stats"]
                rounds = info["rounds_per_call"]
                times = {"ms": stats["median"] * 1e3 / rounds, "min_ms": stats["min"] * 1e3 / rounds}
                found[row["name"].removeprefix("test_")] = {**times, **info}
    return found


def pytest(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "pythonpath=..", "--rootdir", str(HERE)]
    tests = [] if any("::" in argument for argument in arguments) else ["test_rounds.py"]
    done = subprocess.run([*command, *arguments, *tests], cwd=HERE, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done


def peer(name: str, shape: str, scripts: Path) -> tuple[float, float] | None:
    """The peer's median and least milliseconds a round, with its better number of threads."""
    python = ROOT / f".venv-peer-{name}" / "bin" / "python"
    if not python.is_file() or not (scripts / f"peer_{name}.py").is_file():
        return None
    found = []
    for threads in ({}, ONE_THREAD) if name != "pfl" else (ONE_THREAD,):  # pfl's sampler spins: never with all threads
        done = subprocess.run(
            [str(python), f"peer_{name}.py", shape],
            cwd=scripts,
            env=os.environ | threads | {"PYTHONDONTWRITEBYTECODE": "1", "RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        lines = [line.split() for line in done.stdout.splitlines() if line.startswith(f"{name} {shape} ")]
        if lines:
            found.append((float(lines[-1][3]), float(lines[-1][5])))
        else:
            print(f"{name} {shape}: {done.stderr[-500:]}", file=sys.stderr)
    return min(found) if found else None


def against_limit(shape: str) -> dict[str, Any]:
    """Our times, with the matrix multiply's rate of the same minute: the better of before and after."""
    before = matmul_rate()
    return {**ours(f"shape and {shape}")[f"shape[{shape}]"], "rate": max(before, matmul_rate())}


def against_peers(parts: list[str], peers: list[str], scripts: Path) -> str:
    sys.path.insert(0, str(HERE.parent))
    from bench.shapes import flops

    rows = [["shape", "who", "median ms a round", "least ms", "against fedoptax", "wanted"]]
    for shape in (name for name in SHAPES if name in parts):
        before = against_limit(shape)
        theirs = {name: peer(name, shape, scripts) for name in peers if shape in PEERS[name]}
        after = against_limit(shape)
        best = min(before, after, key=lambda one: one["ms"])
        limit = flops(shape) / best["rate"] * 1e3
        own = f"{before['ms']:.1f}, {after['ms']:.1f}"
        rows.append([shape, "fedoptax, before and after", own, f"{best['min_ms']:.1f}", "1", ""])
        bound = f"at least 1 / 1.3 = 0.77: {told(limit / best['ms'], 1 / 1.3)}" if shape in ("mlp", "cnn") else ""
        rows.append(
            [
                shape,
                f"limit: its FLOPs at {best['rate'] / 1e9:.0f} GFLOP/s",
                f"{limit:.1f}",
                "",
                f"{limit / best['ms']:.2f}",
                bound,
            ]
        )
        for name, times in theirs.items():
            if times is None:
                rows.append([shape, name, "not installed, or failed", "", "", ""])
                continue
            wanted = TARGETS.get((shape, name), 1.0)
            ratio = times[0] / best["ms"]
            verdict = f"{'at least ' if wanted != 1 else 'above '}{wanted:.2g}: {told(ratio, wanted)}"
            rows.append([shape, name, f"{times[0]:.1f}", f"{times[1]:.1f}", f"{ratio:.2f}", verdict])
        compiled = f"{best['first_call_seconds']:.1f} s"
        rows.append([shape, "fedoptax: first call, with compiling", compiled, "", "", ""])
        rows.append([shape, "fedoptax: peak memory", f"{best['peak_mb']:.0f} MB", "", "", ""])
    return table(rows)


def told(ratio: float, wanted: float) -> str:
    return "yes" if ratio >= wanted else "NO"


def ways() -> str:
    found = ours("way or shape")
    names = {"loop": "one device, loop", "vmap": "one device, vmap", "cores-vmap": "a device a core, vmap"}
    rows = [["shape", "a device a core, loop (default)", *names.values()]]
    for shape in SHAPES:
        own = found[f"shape[{shape}]"]["ms"]
        others = [found.get(f"way[{shape}-{way}]") for way in names]
        cells = [f"{one['ms']:.1f} ({one['ms'] / own:.2f} x)" if one else "failed" for one in others]
        rows.append([shape, f"{own:.1f}", *cells])
    return "Milliseconds a round.\n\n" + table(rows)


def convolutions() -> str:
    sys.path.insert(0, str(HERE.parent))
    from bench.test_rounds import CONVOLUTIONS
    from fedoptax.models import winograd

    found = ours("test_convolution")
    rows = [["n, height, width, in, out", "patches, ms", "winograd, ms", "winograd / patches", "`auto` takes"]]
    for case in CONVOLUTIONS:
        n, size, fan_in, out = case
        name = "x".join(map(str, case))
        ways = [found[f"convolution[{name}-{way}]"]["ms"] for way in ("patches", "winograd")]
        chosen = winograd.pays(n, size - 2, size - 2, fan_in, out)
        shape = f"{n}, {size}, {size}, {fan_in}, {out}"
        told = [f"{ms:.2f}" for ms in ways]
        rows.append([shape, *told, f"{ways[1] / ways[0]:.2f}", "winograd" if chosen else "patches"])
    return "Forward and both gradients, in a compiled loop, on every core at once.\n\n" + table(rows)


def ragged() -> str:
    found = ours("ragged")
    rows = [["cohort", "clients", "ms a round", "examples a round", "us an example"]]
    for cohort in (10, 100):
        for kind in ("ragged", "equal"):
            one = found[f"ragged[{kind}-{cohort}]"]
            each = one["ms"] * 1e3 / one["examples_per_round"]
            rows.append([str(cohort), kind, f"{one['ms']:.1f}", f"{one['examples_per_round']:.0f}", f"{each:.2f}"])
    told = (
        "3,400 clients, log-normal sizes with mean 100 (sigma 1) or all of 100; the MLP, batch 20. Wanted: ragged "
        "within 1.2 x of equal, by example.\n\n"
    )
    return told + table(rows)


def states() -> str:
    found = ours("many_states")
    rows = [["algorithm", "states", "ms a round", "s to begin and end a run", "peak MB"]]
    for name, one in found.items():
        algorithm, place = name.removeprefix("many_states[").rstrip("]").split("-")
        each, begin = by_difference(one)
        rows.append([algorithm, place, f"{each * 1e3:.1f}", f"{begin:.2f}", f"{one['peak_mb']:.0f}"])
    return "3,400 clients of 100 examples, cohort 10, the MLP: SCAFFOLD keeps 2.2 GB of states.\n\n" + table(rows)


def growing() -> str:
    found = ours("number_of_clients")
    rows = [["clients", "ms a round", "s to begin and end a run", "peak MB"]]
    for name, one in found.items():
        each, begin = by_difference(one)
        rows.append([name.split("[")[1].rstrip("]"), f"{each * 1e3:.2f}", f"{begin:.2f}", f"{one['peak_mb']:.0f}"])
    told = (
        "One example a client, cohort 100, logistic regression; runs of 600 and of 2 rounds tell rounds from the rest."
    )
    return f"{told}\n\n{table(rows)}"


def by_difference(one: dict[str, Any]) -> tuple[float, float]:
    """Seconds of a round, and to begin and end a run, from runs of many and of two rounds."""
    total, short = one["ms"] * one["rounds_per_call"] / 1e3, one["two_rounds_seconds"]
    each = (total - short) / (one["rounds_per_call"] - 2)
    return each, max(short - 2 * each, 0.0)


def algorithms() -> str:
    found = ours("test_algorithm")
    rows = [["shape", "algorithm", "ms a round", "FedAvg's in turn", "times FedAvg", "wanted"]]
    for algorithm, wanted in (("fedlamb", "at most 1.3"), ("fafed", "at most 2.2")):
        for shape in ("mlp", "cnn"):
            if (one := found.get(f"algorithm[{algorithm}-{shape}]")) is None:
                rows.append([shape, algorithm, "failed", "", "", wanted])
                continue
            own, base = one["each_ms"][algorithm], one["each_ms"]["fedavg"]
            rows.append([shape, algorithm, f"{own:.1f}", f"{base:.1f}", f"{own / base:.2f}", wanted])
    told = "Medians of 15 turns (MLP) or 5 (CNN); a run of one round is subtracted from each longer one."
    return f"{told}\n\n{table(rows)}"


def start() -> str:
    program = str(Path(sys.executable).with_name("fedoptax"))
    rows = [["what", "seconds, median of 5", "wanted"]]
    rows.append(["import fedoptax", seconds([sys.executable, "-c", "import fedoptax"])[0], "< 1"])
    rows.append(["fedoptax --help", seconds([program, "--help"])[0], "< 0.5"])
    run = [program, "run", "--task", "mnist", "--preset", "none", "--algorithm", "fedadam", "--rounds", "1"]
    run += ["--set", "client_lr=0.05", "--set", "server_lr=0.01", "--cohort-size", "25", "--batch-size", "32"]
    run += ["--num-clients", "50", "--partition", "iid", "--out"]
    data = {"FEDOPTAX_DATA": os.environ.get("FEDOPTAX_DATA", str(ROOT.parent / "shared" / "data"))}
    for what, cache, wanted in (
        ("compiling anew", "cold-{repeat}", "< 5"),
        ("with the compilation cache", "warm", "less than anew"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            env = data | {"JAX_COMPILATION_CACHE_DIR": f"{folder}/{cache}"}
            whole, first = seconds([*run, folder + "/run-{repeat}"], env, folder + "/run-{repeat}/history.jsonl")
        rows.append([f"first round of `mlp` on MNIST, {what}: its row is in the history", first, wanted])
        rows.append(["the whole command", whole, ""])
    return table(rows)


def seconds(
    command: list[str], env: dict[str, str] | None = None, awaited: str = "", repeats: int = 5
) -> tuple[str, str]:
    """The median wall times of a command, and until the file `awaited` is there, after one that does not count.

    `{repeat}` stands for its number. Bytecode is kept between them, as an installed package has it.
    """
    base = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for repeat in range(repeats + 1):
        number = str(repeat)
        given = {name: value.replace("{repeat}", number) for name, value in (env or {}).items()}
        file, first = Path(awaited.replace("{repeat}", number)), 0.0
        begun = time.perf_counter()
        with subprocess.Popen(
            [part.replace("{repeat}", number) for part in command],
            env=base | given,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            while awaited and not first and process.poll() is None:
                time.sleep(0.005)
                if file.is_file() and file.stat().st_size:
                    first = time.perf_counter() - begun
            _, error = process.communicate()
        if process.returncode:
            return f"failed: {error.strip()[-200:]}", "failed"
        times.append((time.perf_counter() - begun, first))
    return tuple(f"{sorted(column)[repeats // 2]:.2f}" for column in zip(*times[1:]))


def heading(parts: list[str], peers: list[str]) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    installed = {name: peer_version(name) for name in peers}
    return f"""# Benchmark, {time.strftime("%Y-%m-%d")}

`python benchmarks/bench/run.py --only {",".join(parts)} --peers {",".join(peers)}`, commit {commit.stdout.strip()}.

{platform.machine()}, {os.cpu_count()} cores, {cpu()}; Python {platform.python_version()}, jax {version("jax")}.
Peers: {", ".join(f"{name} {told}" for name, told in installed.items()) or "none"}.
The limit is the rate of a large float32 matrix multiply (2,048 x 2,048) in the same minute, its median. The machine is
shared with others, so only ratios within this run mean anything.
"""


def peer_version(name: str) -> str:
    python = ROOT / f".venv-peer-{name}" / "bin" / "python"
    if not python.is_file():
        return "(not installed)"
    code = f"from importlib.metadata import version; print(version('{PACKAGES[name]}'))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")


def table(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
