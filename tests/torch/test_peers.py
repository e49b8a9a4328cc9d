"""The benchmark's two peers in PyTorch do the same work: clients in turn, and all at once by `torch.func`."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PEERS = Path(__file__).parents[2] / "benchmarks" / "bench" / "peers"
SMALLER = """
import runpy, work
work.TIMED_ROUNDS, work.SEQUENCE = 1, 5
work.SHAPES = {name: shape._replace(clients=2, steps=2, batch=3) for name, shape in work.SHAPES.items()}
runpy.run_path("{script}", run_name="__main__")
"""


@pytest.mark.long
@pytest.mark.parametrize("shape", ["mlp", "cnn", "tiny", "lstm"])
def test_torch_func_trains_as_the_loop_does(shape: str) -> None:
    losses = []
    for script in ("run_torch.py", "run_torch_func.py"):
        command = [sys.executable, "-c", SMALLER.replace("{script}", script), shape]
        done = subprocess.run(command, cwd=PEERS, capture_output=True, text=True, check=True, timeout=300)
        losses.append(float(done.stdout.split()[-1]))
    assert losses[0] == pytest.approx(losses[1], abs=2e-6 * losses[0])
