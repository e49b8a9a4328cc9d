"""Ctrl-C, SIGTERM and SIGHUP: they wait for a whole round in a run, and end the program in good order elsewhere."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedoptax as fx
from fedoptax.cli import main as cli
from fedoptax.errors import Stopped
from fedoptax.experiments.comparison import Comparison, compare
from fedoptax.experiments.result import Interrupted
from fedoptax.experiments.signals import deferred_interrupt, ended_at_once, terminable
from fedoptax.storage.finished import is_whole
from fedoptax.storage.run_folder import RunFolder


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """As in a terminal, also where the tests run in the background or under nohup, which ignore some signals."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def same_handlers() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_waits_and_says_which(number: signal.Signals) -> None:
    with deferred_interrupt() as stop:
        assert stop() == 0
        os.kill(os.getpid(), number)
        assert stop() == number


def test_only_a_second_ctrl_c_stops_at_once() -> None:
    with deferred_interrupt() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert stop() == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable(), deferred_interrupt() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_are_left_alone() -> None:
    def work() -> None:
        with terminable(), deferred_interrupt() as stop:
            found.append(stop())

    found: list[int] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [0]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_the_exit_status_says_which_signal(
    number: signal.Signals, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: str) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr(cli, "load_commands", interrupted)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["list", "tasks"])
    assert stopped.value.code == status
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("fedoptax: ")
    assert Stopped("stopped", number).status == status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_imports_end_at_once(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def end(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("fedoptax.experiments.signals.os._exit", end)
    with pytest.raises(SystemExit) as stopped, ended_at_once():
        os.kill(os.getpid(), number)
    assert stopped.value.code == 128 + number and capfd.readouterr().err == "fedoptax: interrupted\n"


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def greedy(**options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(cli, "app", greedy)
    with pytest.raises(SystemExit) as stopped:
        cli.main([])
    assert stopped.value.code == 1 and capsys.readouterr().err == "fedoptax: not enough memory\n"


def test_a_signal_while_a_run_ends_stops_what_would_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is completed, as its last round was done; the next one of a search or a comparison is not begun."""
    end = RunFolder.end

    def slow_end(self: RunFolder, *given: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        end(self, *given)

    monkeypatch.setattr(RunFolder, "end", slow_end)
    task, options = fx.load_task("quadratic", num_clients=8), {"rounds": 2, "cohort_size": 3, "batch_size": 5}
    with pytest.raises(Interrupted, match="stopped after point-001") as stopped:
        fx.tune(task, "fedavg", {"client_lr": [0.1, 0.2]}, tmp_path / "search", **options)
    assert (stopped.value.result.signal, stopped.value.result.status) == (signal.SIGTERM, "completed")
    assert is_whole(tmp_path / "search" / "point-001") and not (tmp_path / "search" / "point-002").exists()
    compared = Comparison(["fedavg"], {"fedavg": {"client_lr": 0.1}}, [0, 1], {"name": "quadratic"}, options)
    with pytest.raises(Interrupted, match="stopped after fedavg, seed 0"):
        compare(task, compared, tmp_path / "compared", progress=False)
    places = [tmp_path / "compared" / "fedavg" / f"seed-{seed}" for seed in (0, 1)]
    assert is_whole(places[0]) and not places[1].exists()
