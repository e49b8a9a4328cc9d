"""Examples read cohort by cohort: the same bits as from the device, for a federation larger than memory."""

import subprocess
import sys

import numpy as np
import pytest

import fedoptax as fx

BEYOND_MEMORY = """
import resource, sys
import jax, jax.numpy as jnp, numpy as np
import fedoptax as fx

clients = fx.FederatedData.open(sys.argv[1])

def run(examples, rounds):
    task = fx.Task("linear", lambda key: jnp.zeros(256), lambda w, b, key: jnp.mean((b["x"] @ w - b["y"]) ** 2),
                   lambda w, b: {"loss": (b["x"] @ w - b["y"]) ** 2}, clients, clients.client(0))
    return fx.run(task, fx.fedavg(1e-4), rounds=rounds, cohort_size=4, batch_size=100, examples=examples)

run("stream", 1)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
room = int(status["VmData"].split()[0]) * 1024 + 150 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (room, room))
print("streamed", run("stream", 12).history[-1]["train_loss"], flush=True)
run("device", 1)
print("resident", flush=True)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit is Linux's")
def test_a_federation_larger_than_the_memory_allowed_runs_by_streaming_only(tmp_path):
    """400 MB of examples and 150 MB of room: streaming works, and without it the same run fails."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1000, 256)), rng.normal(size=1000)
    fx.FederatedData.write(tmp_path / "f", ({"x": x + i / 100, "y": y} for i in range(200)))
    done = subprocess.run(
        [sys.executable, "-c", BEYOND_MEMORY, str(tmp_path / "f")], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.startswith("streamed "), done.stderr[-2000:]
    assert "resident" not in done.stdout
    assert done.returncode != 0 and "UsageError" not in done.stderr
