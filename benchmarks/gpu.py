"""fedoptax on one NVIDIA GPU: tests, rounds against the peers, and CIFAR-10 with ResNet-18; writes a page of results.

    pip install ".[cuda]" && make bench-peers
    python benchmarks/gpu.py                              # at most 25 minutes
    python benchmarks/gpu.py --minutes 3 --shapes tiny    # less of it; runs without a GPU, too

The parts share the minutes: a sixth for the tests, half for the rounds, the rest for CIFAR-10. One that exceeds its
share is stopped as Ctrl-C would stop it, and the page says how far it came. CIFAR-10 is taken from FEDOPTAX_DATA.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/engine/test_round.py", "tests/engine/test_program.py", "tests/engine/test_mesh.py",
    "tests/engine/test_client_states.py", "tests/engine/test_evaluation.py",
    "tests/models/test_layers.py", "tests/models/test_recurrent.py", "tests/models/test_resnet.py",
    "tests/algorithms/test_numerics.py", "tests/torch/test_torch_agrees.py",
)  # fmt: skip
"""What computes otherwise on an accelerator: layers, the round, states on the device, PyTorch's arrays."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--tests", default=" ".join(TESTS), help="files, with blanks between")
    parser.add_argument("--shapes", default="mlp,cnn,tiny,lstm", help="of benchmarks/bench")
    parser.add_argument("--peers", default="torch,pfl", help="of benchmarks/bench")
    parser.add_argument("--run", default="", help="further options of the run on CIFAR-10, in one argument")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args()
    seconds, begun = given.minutes * 60, time.monotonic()
    given.out.mkdir(parents=True, exist_ok=True)
    name = device_name()
    page = given.out / f"gpu-{name.lower().replace(' ', '-')}-{time.strftime('%Y-%m-%d')}.md"
    text = f"# fedoptax on {name}, {time.strftime('%Y-%m-%d')}\n\njax {version('jax')}, commit {commit()}, "
    text += f"`python benchmarks/gpu.py --minutes {given.minutes:g}`.\n"
    for title, part in (
        ("Tests", lambda: run_tests(given.tests.split(), seconds / 6)),
        ("Rounds", lambda: time_rounds(given.shapes, given.peers, seconds / 2)),
        ("CIFAR-10, ResNet-18", lambda: train_cifar(given.run.split(), seconds - (time.monotonic() - begun))),
    ):
        text += f"\n## {title}\n\n{part()}"
        page.write_text(text, encoding="utf-8")  # what is stopped keeps the parts before
    print(page)
    return 0


def run(command: Sequence[str], seconds: float, env: dict[str, str]) -> str:
    """Run a command, stop it after so many seconds, and return what it printed."""
    print(" ".join(command), flush=True)
    environment = {"PYTHONPATH": str(ROOT / "src")} | os.environ | env
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        for ending in (signal.SIGINT, signal.SIGKILL):
            try:
                return process.communicate(timeout=seconds)[0]
            except subprocess.TimeoutExpired:
                process.send_signal(ending)
                seconds = 60
        return process.communicate()[0]


def run_tests(files: Sequence[str], seconds: float) -> str:
    """Return pytest's failures and summary; matrix products in float32 are those that the tests expect."""
    several = ["-n", str(min(os.cpu_count() or 1, 12)), "-p", "no:benchmark"]  # which warns of processes side by side
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", *several, *files]
    share = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # else the first process takes most of the GPU's memory
    printed = run(command, seconds, {"JAX_DEFAULT_MATMUL_PRECISION": "highest"} | share)
    lines = [line for line in printed.splitlines() if line.startswith("FAILED")] + printed.splitlines()[-1:]
    return f"`pytest {' '.join(files)}`\n\n```\n" + "\n".join(lines) + "\n```\n"


def time_rounds(shapes: str, peers: str, seconds: float) -> str:
    """Return the tables of `make bench` for these shapes and peers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "benchmarks/bench/run.py", "--only", shapes, "--peers", peers]
        command += ["--turns", "1", "--out", folder]
        printed = run(command, seconds, {})
        pages = list(Path(folder).iterdir())
        if not pages:
            return f"No times:\n\n```\n{printed[-500:]}\n```\n"
        return pages[0].read_text(encoding="utf-8").replace("\n## ", "\n### ").removeprefix("# ")


def train_cifar(options: Sequence[str], seconds: float) -> str:
    """Train FedAdam with the paper's settings for as many rounds as the time allows."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["run", "--task", "cifar10", "--preset", "paper", "--algorithm", "fedadam", *options]
        command = [sys.executable, "-m", "fedoptax.cli.main", *arguments, "--out", f"{folder}/run"]
        printed = run(command, seconds, {})
        history = Path(folder) / "run" / "history.jsonl"
        if not history.is_file():
            return f"`fedoptax {' '.join(arguments)}`\n\nNo round:\n\n```\n{printed[-500:]}\n```\n"
        rows = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    tested = [row for row in rows if row.get("test_accuracy") is not None]
    best = f"; best test accuracy {max(row['test_accuracy'] for row in tested):.4f}" if tested else ""
    middle = sorted(row["seconds"] for row in rows)[len(rows) // 2]
    ends = f"{len(rows)} rounds; {middle:.3f} s per round (median); last training loss {rows[-1]['train_loss']:.4f}"
    return f"`fedoptax {' '.join(arguments)}`\n\n{ends}{best}.\n"


def device_name() -> str:
    code = "import jax; print(jax.devices()[0].device_kind)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
