"""Two real processes over loopback: one result, one folder, one line when one of them fails, and the run goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedoptax import supervision
from fedoptax.cli.main import main
from fedoptax.errors import RunError, UsageError
from fedoptax.joining import join
from fedoptax.supervision import supervise

SMALL = ["--task", "digits", "--model", "logistic", "--num-clients", "8", "--cohort-size", "3"]
FOREVER = ["run", *SMALL, "--algorithm", "scaffold", "--rounds", "1000000", "--checkpoint-every", "0.5", "--out", "a"]
LIMIT = 60  # seconds within which a process notices that another failed; heartbeats of 10 seconds
Start = Callable[..., "Pair"]


class Pair:
    """Two processes of one run, started as a person would."""

    def __init__(self, folder: Path, *arguments: str, second: tuple[str, ...] | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        where = ["--distributed", "--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--heartbeat", "10"]
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
        environment.pop("XLA_FLAGS", None)
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "fedoptax.cli.main", *given, *where, "--process", str(number)],
                cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            )
            for number, given in enumerate([arguments, second or arguments])
        ]  # fmt: skip

    def worker(self, number: int) -> int:
        """The process that does the work of one of them."""
        pid = self.processes[number].pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def ends(self, number: int, limit: float = 300) -> tuple[int, str, str]:
        process = self.processes[number]
        out, err = process.communicate(timeout=limit)
        return process.returncode, out, err

    def running(self, history: Path, rows: int) -> None:
        """Waits for so many rounds."""
        for _ in range(1200):
            if history.is_file() and history.read_text().count("\n") >= rows:
                return
            for number, process in enumerate(self.processes):
                assert process.poll() is None, self.ends(number)
            time.sleep(0.1)
        raise AssertionError(f"{history} has no {rows} rows after two minutes")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    pairs: list[Pair] = []

    def begin(*arguments: str, second: tuple[str, ...] | None = None) -> Pair:
        pairs.append(Pair(tmp_path, *arguments, second=second))
        return pairs[-1]

    yield begin
    for process in (process for pair in pairs for process in pair.processes):
        if process.poll() is None:
            process.kill()  # its worker ends with it, unless it was stopped: then by its own test
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def alone(*arguments: object) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    assert stopped.value.code in (None, 0)


def equal_to_rounding(one: Path, other: Path) -> None:
    with np.load(one / "params.npz") as a, np.load(other / "params.npz") as b:
        assert set(a) == set(b)
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-6)


def rows_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_two_processes_give_what_one_gives(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = ["run", *SMALL, "--algorithm", "scaffold", "--rounds", "6"]
    pair = start(*run, "--out", "a")
    alone(*run, "--out", tmp_path / "b")
    for number in (0, 1):
        status, out, err = pair.ends(number)
        assert (status, err) == (0, "")
        assert out.endswith("results: a\n") if number == 0 else out == ""
    equal_to_rounding(tmp_path / "a", tmp_path / "b")
    for a, b in zip(rows_of(tmp_path / "a"), rows_of(tmp_path / "b"), strict=True):
        assert a.keys() == b.keys()
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
    assert json.loads((tmp_path / "a" / "config.json").read_text())["mesh"] == 2


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 1])
def test_when_one_is_killed_the_other_says_so_and_the_run_goes_on(
    killed: int, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pair = start(*FOREVER)
    pair.running(tmp_path / "a" / "history.jsonl", 30)
    time.sleep(3)  # for a checkpoint
    pair.processes[killed].kill()
    begun = time.monotonic()
    status, out, err = pair.ends(1 - killed, LIMIT)
    assert time.monotonic() - begun < LIMIT
    assert (status, out) == (1, "")
    assert re.fullmatch(
        r"fedoptax: another process of this run ended.*; continue with: fedoptax resume a --distributed\n", err
    )
    done = max(int(path.name) for path in (tmp_path / "a" / "checkpoints").iterdir() if path.name.isdecimal())
    rounds = str(done + 40)
    again = start("resume", "a", "--rounds", rounds)
    assert [again.ends(number)[::2] for number in (0, 1)] == [(0, ""), (0, "")]
    alone("run", *SMALL, "--algorithm", "scaffold", "--rounds", rounds, "--out", tmp_path / "b")
    assert [row["round"] for row in rows_of(tmp_path / "a")] == list(range(1, done + 41))
    with np.load(tmp_path / "a" / "params.npz") as a, np.load(tmp_path / "b" / "params.npz") as b:
        for name in a:  # after many rounds
            np.testing.assert_allclose(a[name], b[name], rtol=1e-2, atol=1e-3)
    alone("resume", tmp_path / "a", "--rounds", done + 45)  # one process can go on alone
    assert len(rows_of(tmp_path / "a")) == done + 45


@pytest.mark.long
@pytest.mark.parametrize("stopped", [0, 1])
def test_when_one_hangs_the_other_says_so_within_the_limit(stopped: int, tmp_path: Path, start: Start) -> None:
    pair = start(*FOREVER)
    pair.running(tmp_path / "a" / "history.jsonl", 30)
    worker = pair.worker(stopped)
    os.kill(worker, signal.SIGSTOP)
    try:
        status, out, err = pair.ends(1 - stopped, LIMIT)
    finally:
        os.kill(worker, signal.SIGKILL)
    assert (status, out) == (1, "") and err.count("\n") == 1
    assert "another process of this run ended or" in err and "fedoptax resume a --distributed" in err
    status, out, err = pair.ends(stopped, LIMIT)
    assert (status, out) == (1, "")
    assert err == "fedoptax: its working process was ended by SIGKILL; continue with: fedoptax resume a --distributed\n"


@pytest.mark.long
@pytest.mark.parametrize("asked", [0, 1])
def test_ctrl_c_at_one_stops_both_after_the_same_round(asked: int, tmp_path: Path, start: Start) -> None:
    pair = start(*FOREVER)
    pair.running(tmp_path / "a" / "history.jsonl", 30)
    pair.processes[asked].send_signal(signal.SIGINT)
    ends = [pair.ends(number, LIMIT) for number in (0, 1)]
    assert [status for status, _, _ in ends] == [130, 130]
    done = len(rows_of(tmp_path / "a"))
    for _, out, err in ends:
        assert out == "" and f"stopped after round {done} of 1000000" in err and "resume a --distributed" in err
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "interrupted"


@pytest.mark.long
def test_what_fails_in_one_fails_in_all(tmp_path: Path, start: Start) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.txt").write_text("in the way")
    run = ("run", *SMALL, "--rounds", "3")
    pair = start(*run, "--out", "a")
    assert [pair.ends(number)[::2] for number in (0, 1)] == [
        (2, "fedoptax: out: 'a' holds other files, allowed is a new or empty folder\n"),
        (2, "fedoptax: process 0: out: 'a' holds other files, allowed is a new or empty folder\n"),
    ]
    pair = start(*run, "--out", "b", second=(*run, "--out", "b", "--batch-size", "7"))
    for number in (0, 1):
        status, _, err = pair.ends(number)
        assert status == 1
        assert err == "fedoptax: process 1 was given another experiment than process 0: other options, data or code\n"
    assert not (tmp_path / "b").exists()


@pytest.mark.long
def test_without_the_others_it_ends_in_time(tmp_path: Path) -> None:
    where = ["--coordinator", "127.0.0.1:9", "--processes", "2", "--process", "1", "--connect", "2"]
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "fedoptax.cli.main", "run", *SMALL, "--distributed", *where],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "") and time.monotonic() - begun < 60
    assert re.fullmatch(r"fedoptax: --distributed: not all processes met at .*\n", done.stderr)
    assert list(tmp_path.iterdir()) == []


GIVEN = {"distributed": True, "coordinator": "127.0.0.1:9", "processes": 2, "process": 0, "heartbeat": 60, "connect": 9}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"distributed": False}, "--coordinator: given without --distributed"),
        ({"process": None}, "--process: missing beside --coordinator"),
        ({"coordinator": "here"}, "--coordinator: 'here' given, allowed is HOST:PORT"),
        ({"coordinator": "here:70000"}, "--coordinator: 'here:70000' given"),
        ({"processes": 0}, "--processes: 0 given"),
        ({"process": 2}, "--process: 2 given, allowed is a whole number from 0 to 1"),
        ({"heartbeat": 1}, "--heartbeat: 1 given, allowed is a whole number of seconds >= 5"),
        ({"connect": 0}, "--connect: 0 given"),
        (dict.fromkeys(("coordinator", "processes", "process")), "no Slurm, Open MPI, Kubernetes or TPU cluster found"),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, object], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_", "JAX_COORDINATOR")):
            monkeypatch.delenv(name)

    def refused(*given: object, **more: object) -> None:
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr("jax.distributed.initialize", refused)
    with pytest.raises(UsageError, match=re.escape(text)):
        join(GIVEN | changes)


def test_without_the_option_nothing_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*given: object, **more: object) -> None:
        raise RuntimeError("late")

    monkeypatch.setattr("jax.distributed.initialize", unwanted)
    join({})
    with pytest.raises(RunError, match=r"not all processes met at 127.0.0.1:9 within 9 seconds \(late\)"):
        join(GIVEN)


@pytest.mark.parametrize(
    ("code", "status", "line"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("os.kill(os.getpid(), 9)", 1, "fedoptax: its working process was ended by SIGKILL\n"),
        (
            "os.write(2, b'fedoptax: the results are in runs/x\\nheartbeat\\n'); os.abort()",
            1,
            "fedoptax: another process of this run ended or does not answer; "
            "continue with: fedoptax resume runs/x --distributed\n",
        ),
        ("os.write(2, b'fedoptax: ends with status 2\\n'); os.abort()", 2, ""),
    ],
)
def test_however_a_worker_ends_it_is_one_line_and_a_status(
    code: str, status: int, line: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's own command line is replaced by a piece of Python."""
    popen = subprocess.Popen
    monkeypatch.setattr(supervision.subprocess, "Popen", lambda command, **options: popen(
        [sys.executable, "-c", f"import os; {code}"], **options
    ))  # fmt: skip
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        assert supervise(["run"]) == status
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capfd.readouterr() == ("", line)
