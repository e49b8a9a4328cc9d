"""What `make demo` runs: the real command and its curves."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
ADAPTIVE = ("fedadagrad", "fedadam", "fedyogi", "fedams")
pytestmark = pytest.mark.long  # a minute; `make demo` itself shows as much


def demo_arguments(out: Path) -> list[str]:
    """The arguments of `make demo`, as the Makefile has them."""
    line = re.search(r"\$\(BIN\)/fedoptax (compare .*)", (ROOT / "Makefile").read_text())
    return shlex.split(line[1].replace("$(DEMO_OUT)", str(out)))


def curves(demo: Path, name: str, column: str) -> np.ndarray:
    """A column of an algorithm's histories, (seeds, rounds)."""
    files = sorted((demo / name).glob("seed-*/history.jsonl"))
    assert len(files) == 3
    return np.array([[json.loads(line)[column] for line in file.read_text().splitlines()] for file in files])


def test_adaptive_methods_converge_faster(tmp_path):
    """Reddi et al. 2021, Section 5: they converge faster than FedAvg, to a model as good within a point."""
    demo = tmp_path / "out"
    command = [sys.executable, "-m", "fedoptax.cli.main", *demo_arguments(demo)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"report: {demo / 'report.html'}"
    plain = curves(demo, "fedavg", "test_accuracy")
    start = plain[:, :20].mean()
    for name in ADAPTIVE:
        accuracy = curves(demo, name, "test_accuracy")
        assert accuracy[:, :20].mean() > start + 0.05, f"{name} is not faster in the first 20 rounds"
        assert accuracy[:, -10:].mean() > plain[:, -10:].mean() - 0.01, f"{name} ends worse"
        assert accuracy[:, -10:].mean() > 0.93
        loss, of_fedavg = (curves(demo, one, "train_loss")[:, -10:].mean() for one in (name, "fedavg"))
        assert loss < 1.3 * of_fedavg
