"""Two real processes over loopback: one result, one folder; what fails in one fails in all, and the run goes on."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import fedoptax
from fedoptax.distributed import join
from fedoptax.storage.history import read_rows
from refusals import refused

SMALL = ["--task", "digits", "--model", "logistic", "--num-clients", "8", "--cohort-size", "3"]
RUN = ["run", *SMALL, "--algorithm", "scaffold"]
FOREVER = [*RUN, "--rounds", "1000000", "--checkpoint-every", "0.5", "--out", "a"]
LIMIT = 150  # seconds within which a process notices that another failed: JAX's heartbeats take 100


class Group:
    """The processes of one run, started as a person would."""

    def __init__(self, folder: Path, *arguments: str, second: tuple[str, ...] | None = None, count: int = 2) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        where = ["--distributed", "--coordinator", f"127.0.0.1:{port}", "--processes", str(count)]
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
        environment.pop("XLA_FLAGS", None)
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "fedoptax.cli.main", *given, *where, "--process", str(number)],
                cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            )
            for number, given in enumerate([arguments, second or arguments, *[arguments] * (count - 2)])
        ]  # fmt: skip

    def end(self, number: int, limit: float = 300) -> tuple[int, str, str]:
        process = self.processes[number]
        out, err = process.communicate(timeout=limit)
        own = "".join(line for line in out.splitlines(keepends=True) if not line.startswith("[Gloo]"))
        return process.returncode, own, err

    def wait_for_rows(self, history: Path, rows: int) -> None:
        for _ in range(1200):
            if history.is_file() and history.read_text().count("\n") >= rows:
                return
            for number, process in enumerate(self.processes):
                assert process.poll() is None, self.end(number)
            time.sleep(0.1)
        raise AssertionError(f"{history} has no {rows} rows after two minutes")


@pytest.fixture
def start(tmp_path):
    groups: list[Group] = []

    def begin(*arguments: str, **options: Any) -> Group:
        groups.append(Group(tmp_path, *arguments, **options))
        return groups[-1]

    yield begin
    for process in (process for group in groups for process in group.processes):
        with process:
            process.kill()


def assert_equal_to_rounding(one: Path, other: Path, rtol: float) -> None:
    with np.load(one / "params.npz") as a, np.load(other / "params.npz") as b:
        assert set(a) == set(b)
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=rtol, atol=rtol / 10)


@pytest.mark.long
def test_two_processes_give_what_one_gives(tmp_path, start):
    pair = start(*RUN, "--rounds", "6", "--out", "a")
    assert fedoptax(*RUN, "--rounds", "6", "--out", tmp_path / "b") == 0
    for number in (0, 1):
        status, out, err = pair.end(number)
        assert status == 0, err
        assert out.endswith("results: a\n") if number == 0 else out == ""
    assert_equal_to_rounding(tmp_path / "a", tmp_path / "b", 1e-4)
    for a, b in zip(read_rows(tmp_path / "a"), read_rows(tmp_path / "b"), strict=True):
        assert a.keys() == b.keys() and a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
    assert json.loads((tmp_path / "a" / "config.json").read_text())["mesh"] == 2


@pytest.mark.long
def test_processes_own_states_stream_examples_and_go_on_in_another_number(tmp_path, start):
    run = [*RUN, "--client-states", "host", "--examples", "stream"]
    begun = start(*run, "--rounds", "4", "--out", "a", count=4)
    assert [begun.end(number)[0] for number in range(4)] == [0] * 4
    parts = sorted((tmp_path / "a" / "checkpoints" / "4" / "clients").iterdir())
    assert [part.name for part in parts] == ["0", "1", "2", "3"]
    for number, part in enumerate(parts):
        assert set(np.load(part / "ids.npy") % 4) <= {number}
    pair = start("resume", "a", "--rounds", "6")
    assert [pair.end(number)[0] for number in (0, 1)] == [0, 0]
    assert fedoptax("resume", tmp_path / "a", "--rounds", 8) == 0
    assert fedoptax(*run, "--rounds", 8, "--out", tmp_path / "b") == 0
    assert_equal_to_rounding(tmp_path / "a", tmp_path / "b", 1e-4)
    assert [row["round"] for row in read_rows(tmp_path / "a")] == list(range(1, 9))


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 1])
def test_when_one_is_killed_the_other_ends_and_the_run_goes_on(killed, tmp_path, start):
    pair = start(*FOREVER)
    pair.wait_for_rows(tmp_path / "a" / "history.jsonl", 30)
    time.sleep(3)  # for a checkpoint
    pair.processes[killed].kill()
    assert pair.end(1 - killed, LIMIT)[0] != 0
    done = max(int(path.name) for path in (tmp_path / "a" / "checkpoints").iterdir() if path.name.isdecimal())
    rounds = str(done + 40)
    again = start("resume", "a", "--rounds", rounds)
    assert [again.end(number)[0] for number in (0, 1)] == [0, 0]
    assert fedoptax(*RUN, "--rounds", rounds, "--out", tmp_path / "b") == 0
    assert [row["round"] for row in read_rows(tmp_path / "a")] == list(range(1, done + 41))
    assert_equal_to_rounding(tmp_path / "a", tmp_path / "b", 1e-2)  # after many rounds
    assert fedoptax("resume", tmp_path / "a", "--rounds", done + 45) == 0  # one process can go on alone
    assert len(read_rows(tmp_path / "a")) == done + 45


@pytest.mark.long
@pytest.mark.parametrize("asked", [0, 1])
def test_ctrl_c_at_one_stops_both_after_the_same_round(asked, tmp_path, start):
    pair = start(*FOREVER)
    pair.wait_for_rows(tmp_path / "a" / "history.jsonl", 30)
    pair.processes[asked].send_signal(signal.SIGINT)
    ends = [pair.end(number, LIMIT) for number in (0, 1)]
    assert [status for status, _, _ in ends] == [130, 130]
    done = len(read_rows(tmp_path / "a"))
    for _, out, err in ends:
        assert out == "" and f"stopped after round {done} of 1000000" in err and "resume a --distributed" in err
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"process": None}, "process is"), ({"coordinator": None}, "coordinator is"),
        ({"coordinator": "here"}, "coordinator"), ({"coordinator": "here:70000"}, "coordinator"),
        ({"processes": 0}, "processes"), ({"process": 2}, "process must"),
        (dict.fromkeys(("coordinator", "processes", "process")), "coordinator"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(arguments, argument, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_", "JAX_COORDINATOR")):
            monkeypatch.delenv(name)

    def refuse(*given: object, **more: object) -> None:
        raise error

    right: dict[str, Any] = {"coordinator": "127.0.0.1:9", "processes": 2, "process": 0}
    error: Exception = ValueError("coordinator_address should be defined.")
    monkeypatch.setattr("jax.distributed.initialize", refuse)
    refused(lambda: join(**right | arguments), argument)
    error = RuntimeError("late\nin many lines")
    refused(lambda: join(**right), "not all processes connected to 127.0.0.1:9 (late)")
