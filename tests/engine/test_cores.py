"""Every core of a CPU is a device for the command line, and as many as JAX is told elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedoptax.engine import cores as module
from fedoptax.engine.cores import cores, cores_a_device

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


@pytest.mark.parametrize(("count", "devices", "wanted"), [(8, 8, 1), (8, 1, 8), (8, 3, 2), (2, 8, 1)])
def test_cores_are_shared_by_the_devices(
    count: int, devices: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cores", lambda: count)
    monkeypatch.setattr(module.jax, "local_device_count", lambda: devices)
    assert cores_a_device() == wanted


def test_the_command_line_uses_the_cores_and_a_resumed_run_as_many_as_before(tmp_path: Path) -> None:
    def mesh_after(*arguments: str, **told: str) -> int:
        environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"} | told
        program = [sys.executable, "-m", "fedoptax.cli.main", *arguments]
        subprocess.run(program, env=environment, check=True, capture_output=True)
        return json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["mesh"]

    begun = mesh_after(*RUN, "--out", str(tmp_path / "run"))
    assert begun == min(cores(), 4)
    assert mesh_after("resume", str(tmp_path / "run"), "--rounds", "5", JAX_NUM_CPU_DEVICES="4") == begun


def test_a_mesh_in_double_precision_runs_without_a_warning_and_samples_the_same(tmp_path: Path) -> None:
    """Clients of unequal size, dealt to two devices, and an evaluation that they share."""
    columns = []
    for double in ("0", "1"):
        out = tmp_path / double
        run = ["run", "--task", "digits", "--partition", "dirichlet", "--algorithm", "fedavg", "--preset", "none"]
        run += ["--set", "client_lr=0.1", "--rounds", "2", "--out", str(out)]
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "JAX_ENABLE_X64": double}
        program = [sys.executable, "-W", "error::FutureWarning", "-m", "fedoptax.cli.main", *run]
        done = subprocess.run(program, env=environment, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert json.loads((out / "config.json").read_text(encoding="utf-8"))["mesh"] == 2
        lines = (out / "history.jsonl").read_text(encoding="utf-8").splitlines()
        columns.append([row[name] for row in map(json.loads, lines) for name in ("train_loss", "test_loss")])
    assert columns[0] == pytest.approx(columns[1], rel=1e-4)


@pytest.mark.parametrize("kind", ["cuda", "rocm", "abacus"])
def test_devices_that_are_not_there_are_named(kind: str, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "fedoptax.cli.main", *RUN, "--out", str(tmp_path / "run")]
    environment = os.environ | {"JAX_PLATFORMS": kind}
    done = subprocess.run(program, env=environment, check=False, capture_output=True, text=True)
    if kind == "cuda" and done.returncode == 0:
        pytest.skip("there is a GPU")
    assert done.returncode == 1
    assert f"fedoptax: JAX_PLATFORMS: '{kind}' given, and JAX cannot use such a device: " in done.stderr
    assert not (tmp_path / "run").exists()


def test_without_a_place_for_the_cache_a_run_only_compiles_anew(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "file"), "HOME": str(tmp_path / "file")}
    program = [sys.executable, "-m", "fedoptax.cli.main", *RUN, "--out", str(tmp_path / "run")]
    done = subprocess.run(program, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert "Warning" not in done.stderr
