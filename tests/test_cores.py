"""Every core of a CPU is a device for the command line, and as many as JAX is told elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedoptax.engine import cores as module
from fedoptax.engine.cores import cores

RUN = ["run", "--task", "quadratic", "--algorithm", "fedavg", "--rounds", "3", "--cohort-size", "4"]


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
    def mesh_after(*arguments: str, **told: str) -> int:
        environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"} | told
        program = [sys.executable, "-m", "fedoptax.cli", *arguments]
        subprocess.run(program, env=environment, check=True, capture_output=True)
        return json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["mesh"]

    begun = mesh_after(*RUN, "--out", str(tmp_path / "run"))
    assert begun == min(cores(), 4)
    assert mesh_after("resume", str(tmp_path / "run"), "--rounds", "5", JAX_NUM_CPU_DEVICES="4") == begun
