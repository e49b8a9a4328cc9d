"""`fedoptax deploy local` as a person uses it: Ctrl-C, a killed server, resume; and no process is ever left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from federations import (
    assert_params,
    deployment,
    expected_params,
    need_flower,
    network_lines,
    processes_of,
    wait_until,
)
from fedoptax.storage.folder import read_json

need_flower()

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


RUNNER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started to ignore it
from fedoptax.cli import main as cli
from fedoptax.cli import deploy as deploy_cli
if "deploy" not in [group.name for group in cli.app.registered_groups]:
    cli.app.add_typer(deploy_cli.deploy_app, name="deploy")
cli.main()
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUNNER, "deploy", "local", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def server_app(work: Path) -> list[int]:
    """The ServerApp's process."""
    return [pid for pid, command in processes_of(work).items() if "flwr-serverapp" in command]


def rounds_done(out: Path) -> Callable[[int], bool]:
    return lambda rounds: len(network_lines(out)) >= rounds


def test_ctrl_c_and_a_killed_server_lose_no_round_and_leave_no_process(tmp_path: Path) -> None:
    out, work = tmp_path / "run", tmp_path / "run-network"
    given = deployment("scaffold", rounds=5, out=str(out))
    settings = [f"--task-set={name}={value}" for name, value in given.task.items() if name != "name"]
    new = ["--nodes=3", "--algorithm=scaffold", "--set=client_lr=0.05", "--set=server_lr=1.0", "--rounds=5", "--seed=3"]
    new += ["--cohort-size=2", "--batch-size=50", "--quorum=1.0", f"--out={out}", *settings]
    done = rounds_done(out)

    first = start(*new)
    wait_until(lambda: done(1) or first.poll() is not None, 400, "a round")
    first.send_signal(signal.SIGINT)
    _, error = first.communicate(timeout=60)
    assert first.returncode == 130, error
    assert "stopped after round" in error and f"--resume {out}" in error
    assert processes_of(work) == {}
    assert (out / "checkpoints").is_dir()

    second = start("--resume", str(out))
    wait_until(lambda: done(2) or second.poll() is not None, 400, "another round")
    assert second.poll() is None, second.communicate()
    (server,) = server_app(work)
    os.kill(server, signal.SIGKILL)
    _, error = second.communicate(timeout=300)
    assert second.returncode == 1 and f"--resume {out}" in error, error
    assert processes_of(work) == {}

    third = start("--resume", str(out), "--json")
    text, error = third.communicate(timeout=600)
    assert third.returncode == 0, error
    assert '"rounds_done": 5' in text
    assert processes_of(work) == {}
    assert read_json(out / "summary.json")["status"] == "completed"
    hyperparameters = {"client_lr": 0.05, "server_lr": 1.0}
    lines = {line["round"]: line["accepted"] for line in network_lines(out)}  # of a repeated round the last
    whole = deployment("scaffold", hyperparameters=hyperparameters)
    assert_params(out, expected_params(whole, [lines[n] for n in range(1, 6)]))


def test_when_the_owner_is_killed_everything_ends(tmp_path: Path) -> None:
    out, work = tmp_path / "run", tmp_path / "run-network"
    owner = start("--nodes=1", "--cohort-size=1", "--rounds=3", f"--out={out}")
    wait_until(lambda: len(processes_of(work)) >= 2 or owner.poll() is not None, 120, "processes")
    assert owner.poll() is None, owner.communicate()
    owner.kill()
    owner.communicate()
    wait_until(lambda: processes_of(work) == {}, 60, "the end of all processes")
