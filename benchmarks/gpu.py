"""fedoptax on one NVIDIA GPU: tests, rounds against the peers, a language model, the queue of runs; writes a page.

    pip install ".[cuda]" && make bench-peers
    python benchmarks/gpu.py                               # at most 25 minutes
    python benchmarks/gpu.py --minutes 10 --only queue     # runs for the reproductions alone
    python benchmarks/gpu.py --data /tmp/first --data second --wheels wheels --out results   # on a bare machine

The tests take at most 90 seconds, the rounds at most 4 minutes, the model 90 seconds, the queue the rest. What exceeds
its time is stopped as Ctrl-C would stop it, and the page says how far it came; a second call goes on. It runs without a
GPU, too.

Data come from FEDOPTAX_DATA, or from folders that are merged by links, as where they had to be copied in parts; pieces
of one file, NAME.part-*, are joined. A folder of wheels brings the packages that the machine lacks.
`reproductions/queue.toml` says what is run first. The histories of all jobs are written to queue.parquet in the output
folder: copied to `reproductions/`, it tells the next call what is done.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gpu_queue import ENDED, collect_histories, describe, read_queue, work_off

ROOT = Path(__file__).parents[1]
REPRODUCTIONS = ROOT / "benchmarks" / "reproductions"
PARTS = ("tests", "rounds", "llm", "queue")
TESTS = (
    "tests/engine/test_round.py", "tests/engine/test_program.py", "tests/engine/test_mesh.py",
    "tests/engine/test_client_states.py", "tests/engine/test_evaluation.py",
    "tests/models/test_layers.py", "tests/models/test_recurrent.py", "tests/models/test_resnet.py",
    "tests/algorithms/test_numerics.py", "tests/torch/test_torch_agrees.py",
)  # fmt: skip
"""What computes otherwise on an accelerator: layers, the round, states on the device, PyTorch's arrays."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--tests", default=" ".join(TESTS), help="files, with blanks between")
    parser.add_argument("--shapes", default="mlp,cnn,tiny,lstm,resnet18", help="of benchmarks/bench")
    parser.add_argument("--peers", default="torch,torch_func", help="of benchmarks/bench")
    parser.add_argument("--queue", type=Path, default=REPRODUCTIONS / "queue.toml")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "queue", help="folder of the jobs' checkpoints")
    parser.add_argument("--data", type=Path, action="append", default=[], help="a folder of data; may be repeated")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels for packages that are not installed")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args(arguments)
    begun, total, parts = time.monotonic(), options.minutes * 60, options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only must be of {', '.join(PARTS)}, got '{unknown.pop()}'")
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        if options.wheels:
            install_wheels(options.wheels, site)
            sys.path.append(str(site))
        paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")]), str(site)]
        env = {"PYTHONPATH": os.pathsep.join(paths)}
        if options.data:
            env["FEDOPTAX_DATA"] = str(merge_folders(options.data, Path(folder) / "data"))
        name = device_name(env)
        page = options.out / f"gpu-{name.lower().replace(' ', '-')}-{time.strftime('%Y-%m-%d')}.md"
        options.out.mkdir(parents=True, exist_ok=True)
        facts = {"device": name, "commit": commit(), "jax": version("jax")}
        write = {
            "tests": lambda: run_tests(options.tests.split(), min(90, total / 3), env),
            "rounds": lambda: time_rounds(options.shapes, options.peers, min(240, total / 2), env),
            "llm": lambda: time_llm(Path(folder) / "model", min(90, total / 3), env),
            "queue": lambda: run_queue(options, begun + total, env, facts),
        }
        for part in PARTS:
            if part in parts:
                write_section(page, name, part.title(), f"jax {facts['jax']}, commit {facts['commit']}", write[part]())
    print(page)
    return 0


def write_section(page: Path, device: str, title: str, facts: str, text: str) -> None:
    """Write a section of the device's page of the day, whose other sections stay."""
    old = page.read_text(encoding="utf-8") if page.is_file() else f"# fedoptax on {device}, {page.stem[-10:]}\n"
    head, *sections = old.split("\n## ")
    others = [section for section in sections if not section.startswith(f"{title}\n")]
    page.write_text("\n## ".join([head, *others, f"{title}\n\n{facts}.\n\n{text}"]), encoding="utf-8")


def install_wheels(folder: Path, site: Path) -> None:
    """Install the wheels of packages that this Python lacks, into a folder."""
    missing = [str(wheel) for wheel in sorted(folder.glob("*.whl")) if not is_installed(wheel.name.split("-")[0])]
    if missing:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site)]
        subprocess.run([*command, *missing], check=True)


def is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def merge_folders(folders: Sequence[Path], merged: Path) -> Path:
    """Link the files of folders into one, and join those that come in pieces, NAME.part-aa and so on, in order."""
    for path in sorted((path, folder) for folder in folders for path in folder.rglob("*") if path.is_file()):
        place = merged / path[0].relative_to(path[1])
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(path[0].resolve())
    pieces: dict[Path, list[Path]] = {}
    for piece in sorted(merged.rglob("*.part-*")):
        pieces.setdefault(piece.with_name(piece.name.rpartition(".part-")[0]), []).append(piece)
    for whole, parts in pieces.items():
        with whole.open("wb") as file:
            for part in parts:
                file.write(part.read_bytes())
    return merged


def run(command: Sequence[str], seconds: float, env: dict[str, str]) -> str:
    """Run a command, stop it after so many seconds, and return what it printed."""
    print(" ".join(command), flush=True)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | env, **pipes) as process:
        for ending in (signal.SIGINT, signal.SIGKILL):
            try:
                return process.communicate(timeout=seconds)[0]
            except subprocess.TimeoutExpired:
                process.send_signal(ending)
                seconds = 10
        return process.communicate()[0]


def run_tests(files: Sequence[str], seconds: float, env: dict[str, str]) -> str:
    """Return pytest's failures and summary; matrix products in float32 are those that the tests expect."""
    several = ["-n", str(min(os.cpu_count() or 1, 12)), "-p", "no:benchmark"]  # which warns of processes side by side
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", *several, *files]
    share = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # else the first process takes most of the GPU's memory
    printed = run(command, seconds, env | {"JAX_DEFAULT_MATMUL_PRECISION": "highest"} | share)
    lines = [line for line in printed.splitlines() if line.startswith("FAILED")] + printed.splitlines()[-1:]
    return f"`pytest {' '.join(files)}`\n\n```\n" + "\n".join(lines) + "\n```\n"


def time_rounds(shapes: str, peers: str, seconds: float, env: dict[str, str]) -> str:
    """Return the tables of `make bench` for these shapes and peers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "benchmarks/bench/run.py", "--only", shapes, "--peers", peers]
        command += ["--turns", "1", "--out", folder]
        printed = run(command, seconds, env)
        pages = list(Path(folder).iterdir())
        if not pages:
            return f"No times:\n\n```\n{printed[-500:]}\n```\n"
        return pages[0].read_text(encoding="utf-8").replace("\n## ", "\n### ").removeprefix("# ")


def time_llm(folder: Path, seconds: float, env: dict[str, str]) -> str:
    """Return the tokens per second of SmolLM2-135M's shape with adapters, beside transformers and PEFT."""
    command = [sys.executable, "benchmarks/llm.py", "speed", "--model", str(folder)]
    share = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # PyTorch needs memory, too
    lines = [line for line in run(command, seconds, env | share).splitlines() if "tokens/s" in line or "ratio" in line]
    return "`benchmarks/llm.py speed`\n\n```\n" + "\n".join(lines) + "\n```\n"


def run_queue(options: argparse.Namespace, deadline: float, env: dict[str, str], facts: dict[str, str]) -> str:
    """Run the jobs that no history has the end of; return the table of those that have a folder here."""
    committed = options.queue.with_suffix(".parquet")
    before = collect_histories(committed, options.work)
    ended = set(before["command"][before["status"].isin(ENDED)])
    jobs = [job for job in read_queue(options.queue) if job.command not in ended]
    try:
        work_off(jobs, options.work.resolve(), deadline, env, facts)
    finally:
        histories = collect_histories(committed, options.work)
        if len(histories):
            histories.to_parquet(options.out / "queue.parquet", compression="zstd", index=False)
    return describe(collect_histories(Path(), options.work), options.work)


def device_name(env: dict[str, str]) -> str:
    command = [sys.executable, "-c", "import jax; print(jax.devices()[0].device_kind)"]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
