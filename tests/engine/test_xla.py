"""Every core of a CPU is a device for the command line."""

import json
import os
import subprocess
import sys

import pytest

from fedoptax.engine import xla
from fedoptax.engine.xla import count_cores

RUN = ["run", "--task", "quadratic", "--algorithm", "fedavg", "--rounds", "3", "--cohort-size", "4"]


def command(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"} | changes
    program = [sys.executable, "-W", "error::FutureWarning", "-m", "fedoptax.cli.main", *arguments]
    return subprocess.run(program, env=environment, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("quota", "wanted"), [("max 100000", 6), ("150000 100000", 2), ("900000 100000", 6), ("50000 100000", 1), ("", 6)]
)
def test_a_container_has_the_cores_of_its_quota(quota, wanted, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(quota, encoding="ascii")
    monkeypatch.setattr(xla, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert count_cores() == wanted
    monkeypatch.setattr(xla, "CPU_QUOTA", tmp_path / "none")
    assert count_cores() == 6


@pytest.mark.long
def test_the_command_line_uses_the_cores_and_a_resumed_run_as_many_as_before(tmp_path):
    def mesh_after(*arguments: str, **changes: str) -> int:
        done = command(*arguments, **changes)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["mesh"]

    begun = mesh_after(*RUN, "--out", str(tmp_path / "run"))
    assert begun == min(count_cores(), 4)
    assert mesh_after("resume", str(tmp_path / "run"), "--rounds", "5", JAX_NUM_CPU_DEVICES="4") == begun


def test_missing_devices_are_named(tmp_path):
    done = command(*RUN, "--out", str(tmp_path / "run"), JAX_PLATFORMS="abacus")
    assert done.returncode == 1
    assert "JAX_PLATFORMS" in done.stderr and "abacus" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
