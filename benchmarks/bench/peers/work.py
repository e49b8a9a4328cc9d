"""The work of every peer, and how its rounds are timed. NumPy only: each peer has an environment of its own."""

import statistics
import time
from collections.abc import Callable, Sequence
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
}
SEQUENCE = 80  # characters of an example of lstm


def examples(name: str, client: int) -> tuple[np.ndarray, np.ndarray]:
    """One client's examples: images (n, 28, 28, 1) and labels (n,), or sequences (n, 80) and their targets."""
    shape = SHAPES[name]
    rng = np.random.RandomState(client)
    n = shape.steps * shape.batch
    if name == "lstm":
        return rng.randint(0, shape.classes, (n, SEQUENCE)), rng.randint(0, shape.classes, (n, SEQUENCE))
    return rng.randn(n, 28, 28, 1).astype(np.float32), rng.randint(0, shape.classes, n)


def time_rounds(run_round: Callable[[], None]) -> list[float]:
    """Seconds of each of some rounds, after one that warms up."""
    run_round()
    seconds = []
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
