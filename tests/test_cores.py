"""Every core of a CPU is a device for the command line, and as many as JAX is told elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedoptax.engine import cores as module
from fedoptax.engine.cores import cores

RUN = [
    "run",
    "--task",
    "digits",
    "--algorithm",
    "scaffold",
    "--local-steps",
    "1",
    "--rounds",
    "3",
    "--cohort-size",
    "5",
]


@pytest.mark.parametrize(
    ("quota", "wanted"), [("max 100000", 6), ("150000 100000", 2), ("900000 100000", 6), ("50000 100000", 1), ("", 6)]
)
def test_a_container_has_the_cores_of_its_quota(
    quota: str, wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(quota, encoding="ascii")
    monkeypatch.setattr(module, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert cores() == wanted
    monkeypatch.setattr(module, "CPU_QUOTA", tmp_path / "none")
    assert cores() == 6


def test_the_command_line_uses_the_cores_and_a_resumed_run_as_many_as_before(tmp_path: Path) -> None:
    def fedoptax(*arguments: str, devices: str | None) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
        environment |= {} if devices is None else {"JAX_NUM_CPU_DEVICES": devices}
        program = [sys.executable, "-m", "fedoptax.cli", *arguments]
        subprocess.run(program, env=environment, check=True, capture_output=True)

    def mesh(folder: str) -> int:
        return json.loads((tmp_path / folder / "config.json").read_text(encoding="utf-8"))["mesh"]

    fedoptax(*RUN, "--out", str(tmp_path / "own"), devices=None)
    assert mesh("own") == min(cores(), 5)
    fedoptax(*RUN, "--out", str(tmp_path / "three"), devices="3")
    assert mesh("three") == 3
    fedoptax("resume", str(tmp_path / "three"), "--rounds", "5", devices="4")
    assert mesh("three") == 3
    fedoptax(*RUN, "--rounds", "5", "--out", str(tmp_path / "whole"), devices="3")
    ends = [dict(np.load(tmp_path / name / "params.npz")) for name in ("three", "whole")]
    assert ends[0].keys() == ends[1].keys()
    for name, array in ends[0].items():
        np.testing.assert_array_equal(array, ends[1][name])
