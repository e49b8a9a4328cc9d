"""A cohort over meshes of 2, 4 and 8 host devices gives what one device gives."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.engine.mesh import assign_clients
from fedoptax.storage.config import check_same_experiment

TESTS = Path(__file__).parent
SHORT = "scaffold:loop:7:4"


def on_eight(cases: list[str]) -> dict[str, Any]:
    """What `mesh_cases.py` finds in a process with 8 host devices."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(TESTS.parent / "helpers" / "mesh_cases.py"), *cases],
        env=environment, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check(cases: list[str]) -> dict[str, Any]:
    found = on_eight(cases)
    if counts := found.pop("steps", None):
        assert counts["counted"] == counts["wanted"]  # padding takes no step, and no client takes one twice
    for case, seen in found.items():
        assert seen["worst"] < 2e-5 and seen["moved"] > 1e-2, (case, seen)
    return found


def test_meshes_give_what_one_device_gives():
    (found,) = check([SHORT]).values()
    assert len(found["evaluated"]) > 3 and np.max([*found["evaluated"].values()]) < 1e-5, found


@pytest.mark.long
def test_places_and_interruptions_change_no_bit_on_a_mesh(tmp_path):
    found = on_eight([f"places:{tmp_path}"])
    assert set(found.pop(f"places:{tmp_path}").values()) == {0.0}


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedadam", "scaffold", "fafed", "asynchronous", "dropout", "median", "secure"])
def test_every_algorithm_on_every_mesh(name):
    kinds = (("loop", 5), ("vmap", 7), ("loop", 4))
    check(["steps", *(f"{name}:{loop}:{cohort}:{devices}" for loop, cohort in kinds for devices in (2, 8))])


@pytest.mark.parametrize("devices", [3, 8])
@pytest.mark.parametrize("limited", [False, True])
def test_clients_go_largest_first_to_the_device_with_the_least_work(devices, limited):
    work = np.random.default_rng(0).lognormal(3, 1, 10).astype(np.int32)
    places = -(-10 // devices) if limited else 10
    order = np.asarray(assign_clients(10, devices, jnp.asarray(work), places))
    wanted: list[list[int]] = [[] for _ in range(devices)]  # Graham's rule, in plain Python
    for client in np.argsort(-work, kind="stable"):
        free = [d for d in range(devices) if len(wanted[d]) < places]
        wanted[min(free, key=lambda d: work[wanted[d]].sum())].append(int(client))
    assert [[int(i) for i in row if i < 10] for row in order] == wanted
    assert all(row[len(wanted[d]) :].tolist() == [10] * (places - len(wanted[d])) for d, row in enumerate(order))


def test_a_run_may_continue_on_another_mesh(tmp_path):
    there = {"seed": 1, "mesh": 8, "client_loop": "vmap"}
    check_same_experiment(tmp_path, there, {"seed": 1})
    check_same_experiment(tmp_path, {"seed": 1}, there)
    with pytest.raises(fx.RunError, match="seed"):
        check_same_experiment(tmp_path, there, {"seed": 2})
