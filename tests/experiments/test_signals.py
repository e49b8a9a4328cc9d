"""Ctrl-C, SIGTERM and SIGHUP: they wait for the current rounds of a run, and end other work in good order."""

import os
import signal

import pytest

import fedoptax as fx
from fedoptax.experiments.observers import FolderWriter, RunEnd
from fedoptax.experiments.result import Interrupted
from fedoptax.experiments.signals import deferred_interrupt, terminable
from fedoptax.storage.folder import is_finished

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def usual_signals():
    """As in a terminal, also where the tests run in the background or under nohup, which ignore some signals."""
    usual = dict(zip(SIGNALS, (signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL)))
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    assert {number: signal.getsignal(number) for number in SIGNALS} == usual
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_waits(number):
    with deferred_interrupt() as stop:
        assert stop() == 0
        os.kill(os.getpid(), number)
        assert stop() == number


def test_a_signal_that_was_lost_with_its_exception_stops_the_rounds_that_follow():
    with terminable():
        with pytest.raises(KeyboardInterrupt):  # which JAX loses in a callback of the garbage collector
            os.kill(os.getpid(), signal.SIGINT)
        with deferred_interrupt() as stop:
            assert stop() == signal.SIGINT


def test_only_a_second_ctrl_c_stops_at_once():
    with deferred_interrupt() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert stop() == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_signals_that_nohup_ignores_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable(), deferred_interrupt() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_while_a_run_ends_stops_what_would_follow(tmp_path, monkeypatch):
    """The run is completed, as its last round was done; the next one of a search or a comparison is not begun."""
    at_end = FolderWriter.at_end

    def slow_end(self: FolderWriter, end: RunEnd) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        at_end(self, end)

    monkeypatch.setattr(FolderWriter, "at_end", slow_end)
    task, options = fx.load_task("quadratic", num_clients=8), {"rounds": 2, "cohort_size": 3, "batch_size": 5}
    with pytest.raises(Interrupted, match=r"stopped after .*point-001") as stopped:
        fx.tune(task, "fedavg", {"client_lr": [0.1, 0.2]}, tmp_path / "search", **options)
    assert (stopped.value.result.signal, stopped.value.result.status) == (signal.SIGTERM, "completed")
    assert is_finished(tmp_path / "search" / "point-001") and not (tmp_path / "search" / "point-002").exists()
    with pytest.raises(Interrupted, match=r"stopped after .*fedavg.seed-0"):
        fx.compare(task, ["fedavg"], tmp_path / "compared", seeds=2, progress=False, **options)
    places = [tmp_path / "compared" / "fedavg" / f"seed-{seed}" for seed in (0, 1)]
    assert is_finished(places[0]) and not places[1].exists()
    monkeypatch.undo()
    fx.compare(task, ["fedavg"], tmp_path / "compared", seeds=2, progress=False, **options)
    assert is_finished(places[1])
