"""Runs: history, files, resuming, divergence, signals, refusals."""

import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.experiments import observers
from fedoptax.experiments.result import DivergedError, Interrupted
from fedoptax.storage.folder import read_json
from same_results import assert_same_results, rows_without_time
from small import small_task

OPTIONS: dict[str, Any] = {"cohort_size": 3, "batch_size": 4, "eval_every": 2, "seed": 3}
TASK, ALGORITHM = small_task(), fx.fedadam(0.3, 0.1)
VALIDATED = fx.with_validation(TASK, 0.3)


def test_equal_seeds_give_equal_files_and_other_seeds_do_not(tmp_path):
    for name, seed in (("a", 3), ("b", np.int64(3)), ("c", 4)):
        fx.run(TASK, ALGORITHM, rounds=4, out=tmp_path / name, **(OPTIONS | {"seed": seed}))
    assert_same_results(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "config.json").read_bytes() == (tmp_path / "b" / "config.json").read_bytes()
    with pytest.raises(AssertionError):
        assert_same_results(tmp_path / "a", tmp_path / "c")


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (fx.fedadam(0.3, 0.1), {}),
        (fx.scaffold(0.1), {"client_states": "host", "faults": {"dropout": 0.2, "deadline": 2.6, "speed_spread": 0.6}}),
        pytest.param(fx.fafed(0.1, 0.9, rho=0.1), {"local_steps": 2}, marks=pytest.mark.long),
        (fx.fedadam(0.1, 0.05), {"asynchronous": 5, "speeds": "lognormal:1"}),  # its checkpoint has the messages in use
    ],
    ids=["fedadam", "scaffold on the host with faults", "fafed", "asynchronous"],
)
def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path, algorithm, options):
    options = OPTIONS | options
    fx.run(TASK, algorithm, rounds=9, out=tmp_path / "whole", **options)
    for first in (2, 8):  # even: what is evaluated does not depend on where it stopped
        part = tmp_path / f"part-{first}"
        fx.run(TASK, algorithm, rounds=first, out=part, **options)
        result = fx.run(TASK, algorithm, rounds=9, resume_from=part, **options)
        assert len(result.history) == 9 and result.folder == part
        assert_same_results(part, tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_current_rounds_and_the_run_can_be_resumed(tmp_path, number):
    whole, part = tmp_path / "whole", tmp_path / "part"
    fx.run(TASK, ALGORITHM, rounds=9, out=whole, **OPTIONS)

    def send(done: int, note: str) -> None:
        os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match="stopped after round 1 of 9") as stopped:
        fx.run(TASK, ALGORITHM, rounds=9, out=part, progress=send, **OPTIONS)
    assert stopped.value.result.signal == number
    assert read_json(part / "summary.json")["status"] == "interrupted"
    with pytest.raises(fx.UsageError, match="rounds must be > 1, as the state after round 1 was not evaluated"):
        fx.run(TASK, ALGORITHM, rounds=1, resume_from=part, **OPTIONS)
    fx.run(TASK, ALGORITHM, rounds=9, resume_from=part, **OPTIONS)
    assert_same_results(part, whole)


def test_a_killed_process_loses_only_the_rounds_after_its_checkpoint(tmp_path):
    """Killed at any moment, by SIGKILL, while it writes a checkpoint after each call."""
    run = ["--task", "digits", "--model", "logistic", "--num-clients", "8", "--cohort-size", "3", "--eval-every", "1"]
    command = [sys.executable, "-m", "fedoptax.cli.main", "run", *run, "--algorithm", "scaffold"]
    command += ["--checkpoint-every", "0", "--rounds", "1000000", "--out", str(tmp_path / "part")]
    process = subprocess.Popen(command)
    history = tmp_path / "part" / "history.jsonl"
    try:
        for _ in range(1200):
            if history.is_file() and history.read_bytes().count(b"\n") > 20:
                break
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    rounds = max(int(path.name) for path in (tmp_path / "part" / "checkpoints").iterdir() if path.name.isdecimal()) + 5
    task = fx.load_task("digits", model="logistic", num_clients=8)
    config = read_json(tmp_path / "part" / "config.json")
    values = config["algorithm"]["hyperparameters"]
    options = {name: config[name] for name in ("cohort_size", "batch_size", "local_epochs", "weighting", "mesh")}
    described = {"label": "scaffold", "hyperparameters": values}
    algorithm = fx.scaffold(**values)
    fx.run(task, algorithm, rounds=rounds, resume_from=tmp_path / "part", **options, **described)
    fx.run(task, algorithm, rounds=rounds, out=tmp_path / "whole", **options, **described)
    assert_same_results(tmp_path / "part", tmp_path / "whole")


def test_slow_checkpoints_are_less_frequent(tmp_path, monkeypatch):
    """Each look at this clock takes a second, and each checkpoint twenty."""
    clock, saved = itertools.count(), []

    def save(folder: Path, round: int, *states: Any) -> None:
        saved.append(round)
        assert len(list(itertools.islice(clock, 20))) == 20

    monkeypatch.setattr(observers, "time", SimpleNamespace(monotonic=lambda: next(clock), time=time.time))
    monkeypatch.setattr(observers, "save_checkpoint", save)
    fx.run(TASK, fx.scaffold(0.1), rounds=30, out=tmp_path / "a", checkpoint_every=4.0, client_states="host", **OPTIONS)
    assert saved == [5, 30]


def test_resuming_into_another_folder_leaves_the_first(tmp_path):
    fx.run(TASK, ALGORITHM, rounds=2, out=tmp_path / "a", **OPTIONS)
    before = rows_without_time(tmp_path / "a")
    fx.run(TASK, ALGORITHM, rounds=4, resume_from=tmp_path / "a", out=tmp_path / "b", **OPTIONS)
    fx.run(TASK, ALGORITHM, rounds=4, out=tmp_path / "c", **OPTIONS)
    assert rows_without_time(tmp_path / "a") == before
    assert_same_results(tmp_path / "b", tmp_path / "c")


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path, monkeypatch):
    fx.run(TASK, ALGORITHM, rounds=2, out=tmp_path / "a", **OPTIONS)
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("checkpoints", "summary.json"))
    fx.run(TASK, ALGORITHM, rounds=2, resume_from=tmp_path / "b", **OPTIONS)
    assert_same_results(tmp_path / "a", tmp_path / "b")
    predicting = small_task(predict=lambda params, batch: batch["x"][:, 0])
    with monkeypatch.context() as patch:
        patch.setattr("fedoptax.storage.model.write_json", lambda *_: 1 / 0)  # the last file before the first round
        with pytest.raises(ZeroDivisionError):
            fx.run(predicting, ALGORITHM, rounds=2, out=tmp_path / "c", **OPTIONS)
    fx.run(predicting, ALGORITHM, rounds=2, resume_from=tmp_path / "c", **OPTIONS)
    assert (tmp_path / "c" / "model.json").is_file()


def test_another_experiment_is_not_continued(tmp_path):
    fx.run(TASK, ALGORITHM, rounds=2, out=tmp_path / "a", **OPTIONS)
    calls = [
        (ALGORITHM, "a", {"seed": 4}, "its seed is 3, got 4"),
        (fx.fedavg(0.1), "a", {}, "belong to another experiment"),
        (ALGORITHM, "a", {"faults": {"dropout": 0.1}}, "faults"),
        (ALGORITHM, "a", {"aggregate": "median"}, "aggregate"),
        (ALGORITHM, "a", {"task": small_task(test=TASK.clients.client(1))}, "data_checksum"),
        (ALGORITHM, "missing", {}, "cannot be read"),
    ]
    for algorithm, folder, options, reason in calls:
        with pytest.raises(fx.RunError, match=reason):
            fx.run(algorithm=algorithm, rounds=4, resume_from=tmp_path / folder, **{"task": TASK, **OPTIONS, **options})


@pytest.mark.parametrize("place", ["device", pytest.param("host", marks=pytest.mark.long)])
def test_a_diverged_run_says_where_and_keeps_its_last_finite_state(tmp_path, place):
    """Of the server and of every client."""
    wild, options = fx.scaffold(lambda r: jnp.where(r < 3, 0.1, jnp.inf)), OPTIONS | {"client_states": place}
    with pytest.raises(DivergedError, match=r"wild diverged in round 4 \(seed 3\).*after round 3 is saved") as caught:
        fx.run(TASK, wild, rounds=50, label="wild", out=tmp_path / "a", **options)
    result, good = caught.value.result, fx.run(TASK, wild, rounds=3, **options)
    assert result.status == "diverged" and len(result.history) == 3
    jax.tree.map(np.testing.assert_array_equal, result.params, good.params)
    states = [r.clients.tree if place == "device" else r.clients.of(np.arange(7)) for r in (result, good)]
    jax.tree.map(np.testing.assert_array_equal, *states)
    summary = read_json(tmp_path / "a" / "summary.json")
    assert summary["status"] == "diverged" and summary["rounds_done"] == 3
    with np.load(tmp_path / "a" / "params.npz") as params:
        assert all(np.isfinite(params[name]).all() for name in params)
    for error in (caught.value, Interrupted(result)):  # as a pool of processes brings them home
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) == result.message
        jax.tree.map(np.testing.assert_array_equal, again.result.params, result.params)


def refused(**options: Any) -> Callable[[Path], object]:
    return lambda folder: fx.run(TASK, ALGORITHM, out=folder / "a", **(OPTIONS | options))


REFUSALS: list[tuple[Callable[[Path], object], str]] = [
    (refused(rounds=0), "rounds"), (refused(cohort_size=8), "cohort_size"), (refused(seed=np.int64(2**32)), "seed"),
    (refused(checkpoint_every=-1), "checkpoint_every"), (refused(trackers=["paper"]), "trackers"),
    (refused(personalize=2), "test examples of the clients"), (refused(client_metrics=True), "client_metrics"),
    (lambda folder: fx.run(VALIDATED, ALGORITHM, client_metrics=True, **OPTIONS), "folder"),
    *(
        (lambda folder, own=own: fx.run(VALIDATED, ALGORITHM, out=folder / "a", **(OPTIONS | own)), argument)
        for own, argument in (
            ({"personalize": 2}, "STEPS:LR"), ({"personalize": 0}, "personalize"),
            ({"personalize": "2:fast"}, "personalize's LR must be a number"),
            ({"personalize": "2:0.1", "examples": "stream"}, "on the device"),
        )
    ),
    (refused(stop_after="soon:nll"), "stop_after"),
    (lambda folder: fx.run(small_task(test=None), ALGORITHM, stop_after=1, out=folder / "a", **OPTIONS), "stop_after"),
    (lambda folder: fx.run(TASK, ALGORITHM, trackers=[object()]), "trackers"),
    *((lambda folder, given=given: fx.run(TASK, given), "algorithm") for given in ("fedavg", fx.fedavg, None)),
    *((lambda folder, given=given: fx.run(given, ALGORITHM), "task") for given in ("digits", None, 5)),
    (lambda folder: fx.sweep("digits", fx.fedavg, {"client_lr": [0.1]}), "task"),
    (lambda folder: fx.sweep(TASK, fx.fedavg, {"client_lr": [0.1]}, out=folder / "a"), "out"),
    (lambda folder: fx.sweep(TASK, fx.fedavg, {"client_lr": ["x"]}), "client_lr"),
    (lambda folder: fx.sweep(TASK, "fedavg", {"client_lr": [0.1]}), "make_algorithm"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "argument"), REFUSALS)
def test_a_wrong_argument_is_one_line_and_leaves_nothing_behind(tmp_path, call, argument):
    with pytest.raises(fx.UsageError, match=argument) as error:
        call(tmp_path)
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []


def test_a_refused_run_removes_nothing(tmp_path):
    fx.run(TASK, ALGORITHM, out=tmp_path / "a", **OPTIONS)
    (tmp_path / "speeds.csv").write_text("client,seconds\n0,1\n")
    with pytest.raises(fx.DataError, match="each number from 0"):
        fx.run(TASK, ALGORITHM, out=tmp_path / "a", overwrite=True, speeds=str(tmp_path / "speeds.csv"), **OPTIONS)
    assert (tmp_path / "a" / "params.npz").is_file()
