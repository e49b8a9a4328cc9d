"""fedoptax against its peers, against the machine and against an earlier checkout, in one run; writes a page of tables.

    make bench                                                     # all of it; nothing else should run meanwhile
    python benchmarks/bench/run.py --only mlp,tiny --peers torch   # a part
    python benchmarks/bench/run.py --baseline ../before --peers "" # before and after a change, in turn

Each peer runs its script in `peers/` in an environment of its own, `.venv-peer-NAME` (`make bench-peers`; both of
PyTorch share one), or else in this one if it has the package: on a CPU with one thread and with all of them, of which
the better counts; pfl with one alone, FedJAX on one device. `--baseline` is a checkout with this benchmark whose
rounds are timed in turn with this one's.

On a GPU the shapes' rounds are timed in bfloat16, too, with the kernels that take most of them. Their processes and the
peers' are started together: they compile side by side, and then take turns to be timed (`work.turn`).
"""

import argparse
import fcntl
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import which

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HAS_GPU = which("nvidia-smi") is not None
SHAPES = ("mlp", "cnn", "tiny", "lstm", "resnet18") if HAS_GPU else ("mlp", "cnn", "tiny", "lstm")
PEERS = {
    "torch": ("torch", ("mlp", "cnn", "tiny", "lstm")),
    "torch_func": ("torch", ("mlp", "cnn", "tiny", "lstm")),
    "pfl": ("pfl", ("mlp", "cnn", "tiny")),
    "fedjax": ("fedjax", ("mlp", "cnn", "tiny")),
    "flower": ("flwr", ("mlp", "cnn", "tiny")),
}
"""By name: the package, and the shapes that the peer can do."""

OTHERS = {
    "ragged": ("ragged-10", "equal-10", "ragged-100", "equal-100"),
    "states": ("states-fedavg-device", "states-scaffold-device", "states-scaffold-host"),
    "clients": ("clients-1000", "clients-10000", "clients-100000", "clients-1000000"),
    "algorithms": ("fedlamb-mlp", "fedlamb-cnn", "fafed-mlp", "fafed-cnn"),
    "sweep": ("sweep-1", "sweep-8"),
}
PARTS = (*SHAPES, *OTHERS, "start")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

Times = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--baseline", type=Path, help="another checkout, timed in turn")
    parser.add_argument("--turns", type=int, default=2, help="of this checkout and the baseline")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args()
    parts, peers = given.only.split(","), [name for name in given.peers.split(",") if name]
    for name, allowed in [*((p, PARTS) for p in parts), *((p, tuple(PEERS)) for p in peers)]:
        if name not in allowed:
            parser.error(f"'{name}' must be one of {', '.join(allowed)}")
    given.out.mkdir(parents=True, exist_ok=True)
    page = given.out / f"bench-{os.cpu_count()}cpu-{platform.machine()}-{time.strftime('%Y-%m-%d-%H%M')}.md"
    text = heading(parts, peers, given.baseline)
    if HAS_GPU and not given.baseline:  # ResNet-18 alone: its compilation takes all cores
        for is_large in (False, True):
            run_together([part for part in parts if part in SHAPES and (part == "resnet18") == is_large], peers)
    for part in parts:
        if part in SHAPES:
            section = against_peers(part, [name for name in peers if part in PEERS[name][1]], given)
        elif part == "start":
            section = time_starts()
        else:
            section = table([["case", *COLUMNS], *(row for case in OTHERS[part] for row in in_turn(case, given))])
        print(f"{part}\n\n{section}", flush=True)
        text += f"\n## {part}\n\n{section}"
        page.write_text(text, encoding="utf-8")  # a benchmark that is stopped keeps what it has
    print(page)
    return 0


COLUMNS = ("ms per round", "after / before", "first call, s", "begin and end, s", "peak MB", "times FedAvg")


Ended = tuple[int, str, str]  # status, output, errors
_ended: dict[tuple[str, ...], Ended] = {}
_kernels: dict[str, str] = {}
"""By case: a table of the kernels of its last run, if it ran on a GPU."""


def run_together(shapes: list[str], peers: list[str]) -> None:
    """Run these shapes and peers side by side, each with a shared lock on one file that it holds until it is warm."""
    memory = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # else the first process takes most of the GPU's
    commands = [(case_command(case), HERE, case_env(ROOT) | memory) for s in shapes for case in (s, f"{s}-bfloat16")]
    for shape, peer in ((shape, peer) for shape in shapes for peer in peers if shape in PEERS[peer][1]):
        if (python := peer_python(peer)) is not None:
            commands.append((peer_command(python, peer, shape), HERE / "peers", {}))
    running = {}
    with tempfile.TemporaryDirectory() as folder:
        for command, cwd, env in commands:
            with (Path(folder) / "turn").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                running[tuple(command)] = start(command, cwd, env | {"BENCH_TURN": str(file.fileno())}, file.fileno())
        for key, process in running.items():
            _ended[key] = finish(process)


def run(command: list[str], cwd: Path, env: dict[str, str]) -> Ended:
    """How a command ended that was run together with others, or else is run now."""
    return _ended.pop(tuple(command), None) or finish(start(command, cwd, env))


def start(command: list[str], cwd: Path, env: dict[str, str], *files: int) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, env=os.environ | env, pass_fds=files, **pipes)


def finish(process: subprocess.Popen[str], seconds: float = 900) -> Ended:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return 1, "", f"no answer within {seconds:.0f} s"
    return process.returncode, out, err


def case_command(case: str) -> list[str]:
    return [sys.executable, "rounds.py", case, *(["--profile"] if HAS_GPU else [])]


def case_env(checkout: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")])}


def peer_command(python: Path, name: str, shape: str) -> list[str]:
    return [str(python), f"run_{name}.py", shape]


def time_case(case: str, checkout: Path) -> Times:
    """The times of one case in a process of its own."""
    status, out, err = run(case_command(case), checkout / "benchmarks" / "bench", case_env(checkout))
    if status:
        raise SystemExit(f"{case} in {checkout} failed: {err[-2000:]}")
    *kernels, times = out.splitlines()
    _kernels[case] = "\n".join(kernels)
    return json.loads(times)


def median(times: list[Times]) -> Times:
    return {name: statistics.median(one[name] for one in times) for name in times[0]}


def measure(case: str, given: argparse.Namespace) -> tuple[Times, Times | None]:
    """Our times and the baseline's, in turn."""
    ours, before = list[Times](), list[Times]()
    for _ in range(given.turns):
        if given.baseline:
            before.append(time_case(case, given.baseline.resolve()))
        ours.append(time_case(case, ROOT))
    return median(ours), median(before) if before else None


def in_turn(case: str, given: argparse.Namespace) -> list[list[str]]:
    ours, before = measure(case, given)
    rows = [] if before is None else [cells(f"{case}, before", before, "")]
    return [*rows, cells(case, ours, "" if before is None else f"{ours['ms'] / before['ms']:.2f}")]


def cells(name: str, times: Times, ratio: str) -> list[str]:
    def told(column: str, form: str) -> str:
        return format(times[column], form) if column in times else ""

    fedavg = f"{times['ms'] / times['fedavg_ms']:.2f}" if "fedavg_ms" in times else ""
    ends = (told("first_call_seconds", ".1f"), told("ends_seconds", ".2f"), told("peak_mb", ".0f"))
    return [name, f"{times['ms']:.2f}", ratio, *ends, fedavg]


def against_peers(shape: str, peers: list[str], given: argparse.Namespace) -> str:
    """Our round, the baseline's and the peers', and the time of its multiplications alone."""
    sys.path.insert(0, str(HERE))
    from shapes import flops

    ours, before = measure(shape, given)
    narrow = time_case(f"{shape}-bfloat16", ROOT) if HAS_GPU else None
    rows = [["who", "ms per round", "times fedoptax", "first call, s", "peak MB"]]
    for name, times in (("fedoptax", ours), ("fedoptax, before", before), ("fedoptax, bfloat16", narrow)):
        if times is not None:
            ratio = f"{times['ms'] / ours['ms']:.2f}"
            first, peak = f"{times['first_call_seconds']:.1f}", f"{times['peak_mb']:.0f}"
            rows.append([name, f"{times['ms']:.2f}", ratio, first, peak])
    for dtype in ("float32", "bfloat16") if HAS_GPU else ("float32",):
        limit = flops(shape) / matmul_rate(dtype) * 1e3
        rows.append([f"its multiplications alone, {dtype}", f"{limit:.2f}", f"{limit / ours['ms']:.2f}", "", ""])
    for name in peers:
        ms, error = time_peer(name, shape)
        rows.append(
            [name, error if ms is None else f"{ms:.2f}", "" if ms is None else f"{ms / ours['ms']:.2f}", "", ""]
        )
    kernels = [
        f"\nKernels, {case}:\n\n{_kernels[case]}\n" for case in (shape, f"{shape}-bfloat16") if _kernels.get(case)
    ]
    return table(rows) + "".join(kernels)


def time_peer(name: str, shape: str) -> tuple[float | None, str]:
    """The peer's median milliseconds per round with its better number of threads; or None and what went wrong."""
    python = peer_python(name)
    if python is None:
        return None, "not installed (make bench-peers)"
    found, error = [], ""
    choices = [{}] if HAS_GPU else [{}, ONE_THREAD]  # with a GPU it hardly matters, and time is short
    if name == "pfl":  # whose sampler spins: never with all threads
        choices = [ONE_THREAD]
    for threads in choices:
        env = threads | {"RAY_USAGE_STATS_ENABLED": "0"}
        status, out, err = run(peer_command(python, name, shape), HERE / "peers", env)
        lines = [line.split() for line in out.splitlines() if line.startswith("milliseconds ")]
        if lines:
            found.append(float(lines[-1][1]))
        else:
            error = (err.strip().splitlines() or [f"status {status}"])[-1][:200]
    return (min(found), "") if found else (None, f"failed: {error}")


def peer_python(name: str) -> Path | None:
    """The Python of a peer's environment, else this one if it has the peer's package; else None."""
    package = PEERS[name][0]
    of_peer = ROOT / f".venv-peer-{name.partition('_')[0]}" / "bin" / "python"
    if of_peer.is_file():
        return of_peer
    return Path(sys.executable) if find_spec(package) else None


@cache
def matmul_rate(dtype: str) -> float:
    """Floating-point operations per second of a large matrix multiply in XLA, the median."""
    code = f"""
import statistics, time, jax
n = 2048 if jax.default_backend() == "cpu" else 8192
a = jax.random.normal(jax.random.key(0), (n, n), "{dtype}"); f = jax.jit(lambda a: a @ a); f(a).block_until_ready()
seconds = []
for _ in range(30):
    begin = time.perf_counter(); f(a).block_until_ready(); seconds.append(time.perf_counter() - begin)
print(2 * n**3 / statistics.median(seconds))
"""
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def time_starts() -> str:
    """What a user waits for: import, help, and the first round of a run on MNIST."""
    program = str(Path(sys.executable).with_name("fedoptax"))
    data = {"FEDOPTAX_DATA": os.environ.get("FEDOPTAX_DATA", str(ROOT.parent / "shared" / "data"))}
    run = [program, "run", "--task", "mnist", "--preset", "none", "--algorithm", "fedadam", "--rounds", "1"]
    run += ["--set", "client_lr=0.05", "--set", "server_lr=0.01", "--cohort-size", "25", "--batch-size", "32"]
    run += ["--num-clients", "50", "--partition", "iid", "--out"]
    rows = [["command", "seconds, median of 5"]]
    rows.append(["import fedoptax", command_seconds([sys.executable, "-c", "import fedoptax"], {})])
    rows.append(["fedoptax --help", command_seconds([program, "--help"], {})])
    for title, kind in (("one round on MNIST, compiled", "{n}"), ("one round on MNIST, from the cache", "kept")):
        with tempfile.TemporaryDirectory() as folder:
            env = data | {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache-{kind}"}
            rows.append([title, command_seconds([*run, f"{folder}/run-{{n}}"], env)])
    return table(rows)


def command_seconds(command: list[str], env: dict[str, str], repeats: int = 5) -> str:
    """The median wall time of a command, after one run that does not count; `{n}` stands for its number."""
    seconds = []
    for n in range(repeats + 1):
        begin = time.perf_counter()
        done = subprocess.run(
            [part.replace("{n}", str(n)) for part in command],
            env=os.environ | {name: value.replace("{n}", str(n)) for name, value in env.items()},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return f"failed: {done.stderr.strip()[-200:]}"
        seconds.append(time.perf_counter() - begin)
    return f"{statistics.median(seconds[1:]):.2f}"


def heading(parts: list[str], peers: list[str], baseline: Path | None) -> str:
    versions = [f"{name} {peer_version(name)}" for name in peers]
    before = "" if baseline is None else f" Before: commit {commit_of(baseline)}."
    return f"""# Benchmark, {time.strftime("%Y-%m-%d")}

Parts: {", ".join(parts)}; commit {commit_of(ROOT)}.{before}
{platform.machine()}, {os.cpu_count()} cores, {processor()}; Python {platform.python_version()}, jax {version("jax")}.
Peers: {", ".join(versions) or "none"}. The machine is shared, so only ratios within this run mean anything.
"""


def commit_of(checkout: Path) -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False).stdout.strip()


def peer_version(name: str) -> str:
    python = peer_python(name)
    if python is None:
        return "(not installed)"
    code = f"from importlib.metadata import version; print(version('{PEERS[name][0]}'))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def processor() -> str:
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
