"""The work of every peer, and how its rounds are timed. NumPy only: each peer has an environment of its own."""

import fcntl
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

CLIENT_LR = 0.05
SERVER_LR, SERVER_BETAS, SERVER_EPS = 0.01, (0.9, 0.99), 1e-3  # Adam at the server
TIMED_ROUNDS = 5


class Shape(NamedTuple):
    """What a round does: all clients take part, each for so many steps of SGD."""

    clients: int
    steps: int
    batch: int
    classes: int


SHAPES = {
    "mlp": Shape(25, 38, 32, 10),
    "cnn": Shape(10, 10, 20, 62),
    "tiny": Shape(100, 6, 20, 10),
    "lstm": Shape(10, 10, 4, 90),
    "resnet18": Shape(10, 5, 20, 10),
}
SEQUENCE = 80  # characters of an example of lstm


def examples(name: str, client: int) -> tuple[np.ndarray, np.ndarray]:
    """One client's examples: images (n, 28, 28, 1), of resnet18 (n, 24, 24, 3), and labels (n,), or for lstm sequences
    (n, 80) and their targets."""
    shape = SHAPES[name]
    rng = np.random.RandomState(client)
    n = shape.steps * shape.batch
    if name == "lstm":
        return rng.randint(0, shape.classes, (n, SEQUENCE)), rng.randint(0, shape.classes, (n, SEQUENCE))
    size = (24, 24, 3) if name == "resnet18" else (28, 28, 1)
    return rng.randn(n, *size).astype(np.float32), rng.randint(0, shape.classes, n)


@contextmanager
def turn() -> Iterator[None]:
    """Wait until all processes of a benchmark that are started together are warm, and none of them is timed.

    `BENCH_TURN` is the descriptor of an open file, locked as shared, that the benchmark gives each of them (`run.py`).
    """
    lock = os.environ.get("BENCH_TURN")
    if lock is None:
        yield
        return
    fcntl.flock(int(lock), fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(int(lock), fcntl.LOCK_UN)


def time_rounds(run_round: Callable[[], None]) -> list[float]:
    """Seconds of each of some rounds, after one that warms up."""
    run_round()
    seconds = []
    with turn():
        for _ in range(TIMED_ROUNDS):
            begin = time.perf_counter()
            run_round()
            seconds.append(time.perf_counter() - begin)
    return seconds


def report(seconds: Sequence[float], loss: float | None = None) -> None:
    """Print the median and the least milliseconds per round, which the benchmark reads, and the loss at the end."""
    print(f"milliseconds {statistics.median(seconds) * 1e3:.2f} {min(seconds) * 1e3:.2f}", flush=True)
    if loss is not None:
        print(f"loss {loss:.6f}", flush=True)
