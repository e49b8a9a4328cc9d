"""A cohort over meshes of 2, 4 and 8 host devices gives what one device gives; with one all-reduce a round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.engine.mesh import assign, choose_mesh, deal, mesh_again
from fedoptax.storage.config import refuse_another
from small import small_task

TESTS = Path(__file__).parent
SHORT = ["fedadam:vmap:7:8", "scaffold:loop:7:4", "steps", "evaluation", "large"]
LONG = [
    f"{name}:{loop}:{cohort}:{devices}"
    for name in ("fedadam", "scaffold", "fafed", "median")
    for loop, cohort in (("loop", 5), ("vmap", 7), ("loop", 4))
    for devices in (2, 4, 8)
]


def on_eight(cases: list[str]) -> dict[str, Any]:
    """What `mesh_cases.py` finds in a process with 8 host devices."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(TESTS.parent / "helpers" / "mesh_cases.py"), *cases],
        env=environment, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check(cases: list[str]) -> None:
    found = on_eight(cases)
    if counts := found.pop("steps", None):
        assert counts["counted"] == counts["wanted"]  # padding takes no step, and no client takes one twice
    if columns := found.pop("evaluation", None):
        assert len(columns) > 3 and max(columns.values()) < 1e-5, columns
    if states := found.pop("large", None):
        assert set(states) == {"loop", "vmap"} and max(states.values()) < 2e-5, states
    for case, seen in found.items():
        assert seen["worst"] < 2e-5 and seen["moved"] > 1e-2, (case, seen)
        gathers = {"fedadam": 0, "scaffold": 1, "fafed": 1}.get(case.split(":")[0])
        if gathers is not None:  # none for a robust aggregator, which needs all uploads
            assert (seen["all-reduce"], seen["all-gather"]) == (1, gathers), (case, seen)
        assert seen["all-to-all"] == seen["collective-permute"] == seen["reduce-scatter"] == 0


def test_meshes_give_what_one_device_gives_with_one_all_reduce_a_round() -> None:
    check(SHORT)


@pytest.mark.long
def test_wherever_states_and_examples_live_and_however_often_interrupted_the_bits_are_the_same(tmp_path: Path) -> None:
    found = on_eight([f"lives:{tmp_path}"])
    assert set(found.pop(f"lives:{tmp_path}").values()) == {0.0}


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedadam", "scaffold", "fafed", "median"])
def test_every_algorithm_on_every_mesh(name: str) -> None:
    check([case for case in LONG if case.startswith(name)])


@pytest.mark.parametrize(("size", "devices"), [(1, 1), (7, 2), (8, 4), (3, 8), (100, 8), (9, 8)])
def test_everyone_is_dealt_one_place(size: int, devices: int) -> None:
    numbers, places = deal(size, devices)
    assert numbers.shape == (devices, -(-size // devices))
    assert sorted(n for n in numbers.reshape(-1) if n < size) == list(range(size))
    np.testing.assert_array_equal(numbers.reshape(-1)[places], np.arange(size))


def test_no_device_gets_all_the_large_clients() -> None:
    sizes = np.array([100, 90, 80, 70, 5, 4, 3, 2])  # the largest first, as they are dealt
    loads = sizes[deal(8, 4)[0]].sum(axis=1)
    assert loads.tolist() == [102, 93, 84, 75]


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_work_goes_to_the_device_that_has_least(devices: int) -> None:
    work = np.sort(np.random.default_rng(0).lognormal(3, 1, 10).astype(np.int32))[::-1]
    owner, place, count = (np.asarray(a) for a in assign(jnp.asarray(work), devices))
    loads = [0] * devices  # Graham's rule, in plain Python
    for i, piece in enumerate(work):
        least = loads.index(min(loads))
        assert (owner[i], place[i]) == (least, (owner[:i] == least).sum())
        loads[least] += piece
    assert count.tolist() == np.bincount(owner, minlength=devices).tolist()
    dealt = work[deal(10, devices)[0] % 10] * (deal(10, devices)[0] < 10)
    assert max(loads) <= dealt.sum(axis=1).max()


def test_more_devices_than_there_are_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        fx.UsageError, match=r"mesh: 99 given, allowed is a whole number from 1 to .*JAX_NUM_CPU_DEVICES"
    ):
        fx.run(small_task(), fx.fedavg(0.1), rounds=1, cohort_size=3, mesh=99)
    for wrong in (0, -1, True, 1.0):
        with pytest.raises(fx.UsageError, match="mesh: "):
            choose_mesh(wrong, 3)  # type: ignore[arg-type]
    with pytest.raises(fx.UsageError, match="mesh: 2 given with the engine eager, allowed is 1"):
        choose_mesh(2, 3, "eager")
    one: Any = np.int64(1)
    chosen = choose_mesh(one, 3)
    assert chosen == 1 and type(chosen) is int  # which JSON can hold
    assert choose_mesh(None, 3) == 1  # of the one device that tests have
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert (choose_mesh(None, 30), choose_mesh(None, 3), choose_mesh(5, 3), choose_mesh(None, 3, "eager")) == (
        8,
        3,
        5,
        1,
    )
    assert (mesh_again(None), mesh_again(8), mesh_again(9)) == (None, 8, None)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert choose_mesh(None, 3) == 8 and mesh_again(4) is None
    with pytest.raises(fx.UsageError, match="mesh: 4 given with 2 processes, allowed is 8, all their devices"):
        choose_mesh(4, 3)
    with pytest.raises(fx.UsageError, match="engine: 'eager' given with 2 processes, allowed is compiled"):
        choose_mesh(None, 3, "eager")


def test_another_division_among_devices_is_no_other_experiment(tmp_path: Path) -> None:
    there = {"seed": 1, "mesh": 8, "client_loop": "vmap"}
    refuse_another(tmp_path, there, {"seed": 1})
    refuse_another(tmp_path, {"seed": 1}, there)
    with pytest.raises(fx.RunError, match="its seed is 1, 2 given"):
        refuse_another(tmp_path, there, {"seed": 2})
