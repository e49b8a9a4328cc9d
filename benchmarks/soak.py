"""One long run of the real program, watched from outside: does memory grow, does a round get slower?

    python benchmarks/soak.py --minutes 30 --out benchmarks/results     # or --minutes 3 for a first look

Runs `fedoptax run` on digits (scaffold, client states on the device, an evaluation a round, a checkpoint every
five seconds) for at least `--minutes` and `--rounds`, and samples its process every ten seconds: resident and
proportional memory, its own memory, open files, threads, CPU seconds, rounds done, size of its folder. The run is then
stopped as a
batch system would, by SIGTERM. Written are a CSV, a PNG and a Markdown page with the verdict, from the samples after a
warm-up:

- memory: the slope over rounds of the process's own (anonymous) memory (Theil-Sen: half of all pairs of samples grow
  faster), less what the rows of the history take by design, below 5 MB in 10,000 rounds, or its growth below 1 %;
- work: CPU seconds a round in the last tenth within 5 % of the first tenth, both divided by the CPU seconds that a
  fixed piece of work takes at the same time (the yardstick): a core that others share does less in a second. Wall time
  is reported, not judged.

The exit status is 1 if a verdict fails.
"""

import argparse
import csv
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the yardstick is one thread's

import numpy as np

COLUMNS = (
    "seconds",
    "rounds",
    "rss_mb",
    "pss_mb",
    "own_mb",
    "open_files",
    "threads",
    "cpu_seconds",
    "folder_mb",
    "yardstick",
)
ROW_BYTES = 545  # of a row of the history in memory, a dict of ten numbers, by tracemalloc
WARM_UP = 0.2  # of the samples
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=10_000, help="at least so many, up to three times the minutes")
    parser.add_argument("--algorithm", default="scaffold")
    parser.add_argument("--client-states", default="device")
    parser.add_argument("--every", type=float, default=10, help="seconds between samples")
    parser.add_argument("--out", type=Path, default=Path("."))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    name = f"soak-{given.algorithm}-{given.client_states}-{os.cpu_count()}cpu-{platform.machine()}"
    place = given.out / f"{name}-{time.strftime('%Y-%m-%d')}"
    with tempfile.TemporaryDirectory(prefix="fedoptax-soak-") as folder:
        samples, status = watch(Path(folder), given)
    table = np.array(samples)
    with place.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([[f"{value:.6g}" for value in row] for row in samples])
    if len(table) < 20:
        print(f"only {len(table)} samples; the run ended with status {status}", file=sys.stderr)
        return 1
    text, passed = verdict(table, status, given)
    draw(table, place.with_suffix(".png"))
    place.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if passed else 1


def watch(folder: Path, given: argparse.Namespace) -> tuple[list[list[float]], int]:
    """Samples the run until there are minutes and rounds enough, stops it, and gives its exit status."""
    out = folder / "run"
    command = [
        *(sys.executable, "-m", "fedoptax.cli.main", "run", "--task", "digits", "--algorithm", given.algorithm),
        *("--client-states", given.client_states, "--rounds", "100000000", "--eval-every", "1"),
        *("--cohort-size", "50"),  # all clients
        *("--checkpoint-every", "5", "--out", str(out)),
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `finally`: the run ends with its watcher
    begun, samples, counter = time.monotonic(), list[list[float]](), Rows(out / "history.jsonl")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            time.sleep(given.every)
            seconds, rounds = time.monotonic() - begun, counter.count()
            if rounds:
                samples.append([seconds, rounds, *usage(process.pid), size_mb(out), yardstick()])
            enough = seconds >= 60 * given.minutes and rounds >= given.rounds
            if enough or seconds >= 180 * given.minutes:
                break
        process.send_signal(signal.SIGTERM)
        return samples, process.wait(timeout=300)
    finally:
        process.kill()
        process.wait()


class Rows:
    """Counts the lines of a file that grows, reading each byte once."""

    def __init__(self, path: Path) -> None:
        self.path, self.at, self.lines = path, 0, 0

    def count(self) -> int:
        """The lines so far."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                file.seek(self.at)
                while data := file.read(2**20):
                    self.lines, self.at = self.lines + data.count(b"\n"), self.at + len(data)
        return self.lines


def usage(pid: int) -> list[float]:
    """Resident, proportional and anonymous memory in MB, open files, threads and CPU seconds of a process (Linux)."""
    place = Path("/proc") / str(pid)
    lines = dict(line.split(":", 1) for line in (place / "smaps_rollup").read_text().splitlines()[1:])
    memory = [float(lines[name].split()[0]) * 1024 / 1e6 for name in ("Rss", "Pss", "Anonymous")]
    fields = (place / "stat").read_text().rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / TICKS
    return [*memory, len(list((place / "fd").iterdir())), int(fields[17]), cpu]


def yardstick() -> float:
    """CPU seconds of a fixed piece of work, some 0.1 s: what a CPU second is worth now."""
    a = np.random.default_rng(0).normal(size=(192, 192)).astype(np.float32)
    begun = time.thread_time()
    for _ in range(200):
        a = a @ a
        a /= np.abs(a).max()
    return time.thread_time() - begun


def size_mb(folder: Path) -> float:
    """What the files of a folder take; files that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total / 1e6


def verdict(table: np.ndarray, status: int, given: argparse.Namespace) -> tuple[str, bool]:
    """The page, and whether memory and work stayed as they were."""
    steady = table[int(WARM_UP * len(table)) :]
    seconds, rounds, rss, pss, own, files, threads, cpu, size, yard = steady.T
    by_design = ROW_BYTES * 1e4 / 1e6
    growth = theil_sen(rounds, own) * 1e4
    whole = theil_sen(rounds, own) * (rounds[-1] - rounds[0]) / own[0]
    flat = growth - by_design < 5 or whole < 0.01
    first, last = (per_round(part, cpu, rounds) for part in ("first", "last"))
    tenth = max(2, len(yard) // 10)
    worth = float(np.median(yard[-tenth:]) / np.median(yard[:tenth]))
    change = last / first / worth - 1
    walls = [per_round(part, seconds, rounds) for part in ("first", "last")]
    even = abs(change) < 0.05
    ended = status == 128 + signal.SIGTERM
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "jaxlib", "numpy"))
    lines = [
        f"# Soak: {given.algorithm} on digits, client states on {given.client_states}",
        "",
        f"`{' '.join(['python', *sys.argv])}`, {time.strftime('%Y-%m-%d')}; Python {platform.python_version()}, "
        f"{packages}; {os.cpu_count()} CPUs, {platform.machine()}.",
        "",
        f"{table[-1, 0] / 60:.1f} minutes, {int(table[-1, 1]):,} rounds, {len(table)} samples, of which the first "
        f"{len(table) - len(steady)} are the warm-up.",
        "",
        "| | after warm-up | at the end | verdict |",
        "|---|---|---|---|",
        f"| its own memory, MB | {own[0]:.1f} | {own[-1]:.1f} | {growth:.2f} MB in 10,000 rounds, of which the "
        f"history's rows take {by_design:.0f} by design: {'flat' if flat else 'GROWS'} |",
        f"| resident memory, MB | {rss[0]:.1f} | {rss[-1]:.1f} | with the pages of files |",
        f"| proportional memory, MB | {pss[0]:.1f} | {pss[-1]:.1f} | these shared out among their users |",
        f"| CPU seconds a round | {first:.5f} | {last:.5f} | {last / first - 1:+.1%}, by the yardstick "
        f"{change:+.1%}: {'even' if even else 'UNEVEN'} |",
        f"| yardstick, CPU seconds | {np.median(yard[:tenth]):.4f} | {np.median(yard[-tenth:]):.4f} "
        f"| {worth - 1:+.1%} |",
        f"| wall seconds a round | {walls[0]:.5f} | {walls[1]:.5f} | {walls[1] / walls[0] - 1:+.1%} (not judged) |",
        f"| open files | {files[0]:.0f} | {files[-1]:.0f} | at most {files.max():.0f} |",
        f"| threads | {threads[0]:.0f} | {threads[-1]:.0f} | at most {threads.max():.0f} |",
        f"| folder, MB | {size[0]:.1f} | {size[-1]:.1f} | the history grows by a row a round |",
        f"| end by SIGTERM | | status {status} | {'in good order' if ended else 'FAILED'} |",
    ]
    return "\n".join(lines) + "\n", bool(flat and even and ended)


def theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    """The median slope of all pairs: a few samples taken during a checkpoint do not tilt it."""
    i, j = np.triu_indices(len(x), 1)
    apart = x[j] > x[i]
    return float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart]))


def per_round(part: str, amount: np.ndarray, rounds: np.ndarray) -> float:
    """What a round took in the first or the last tenth of the samples."""
    tenth = max(2, len(rounds) // 10)
    piece = slice(0, tenth) if part == "first" else slice(-tenth, None)
    return float(np.ptp(amount[piece]) / np.ptp(rounds[piece]))


def draw(table: np.ndarray, path: Path) -> None:
    """Memory, seconds a round, files and threads against rounds."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    seconds, rounds, rss, pss, own, files, threads, cpu, *_ = table.T
    figure, axes = plt.subplots(3, 1, figsize=(7, 8), sharex=True, layout="constrained")
    axes[0].plot(rounds, rss, label="resident")
    axes[0].plot(rounds, pss, label="proportional")
    axes[0].plot(rounds, own, label="its own (anonymous)")
    axes[0].set_ylabel("memory [MB]")
    steps = np.maximum(np.diff(rounds), 1)
    axes[1].plot(rounds[1:], 1e3 * np.diff(cpu) / steps, label="CPU")
    axes[1].plot(rounds[1:], 1e3 * np.diff(seconds) / steps, label="wall")
    axes[1].set_ylabel("milliseconds a round")
    axes[2].plot(rounds, files, label="open files")
    axes[2].plot(rounds, threads, label="threads")
    axes[2].set_xlabel("rounds")
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
