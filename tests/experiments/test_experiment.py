"""Runs: history, files, resuming, divergence, refusals."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedoptax as fx
from fedoptax.engine.batches import LocalWork, client_batches
from fedoptax.engine.client_states import OnDevice
from fedoptax.experiments import run as experiment
from fedoptax.experiments.result import DivergedError, Interrupted
from fedoptax.storage import folder as storage
from fedoptax.storage.checkpoint import Checkpoints
from fedoptax.storage.history import History
from fedoptax.storage.history_file import HistoryFile
from small import small_task

OPTIONS: dict[str, Any] = {"cohort_size": 3, "batch_size": 4, "eval_every": 2, "seed": 3}
TASK, ALGORITHM = small_task(), fx.fedadam(0.3, 0.1)


def rows_without_time(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in path.read_text().splitlines()]


def assert_same_results(a: Path, b: Path) -> None:
    """Equal parameters bit for bit, equal histories but for the time."""
    with np.load(a / "params.npz") as left, np.load(b / "params.npz") as right:
        assert sorted(left) == sorted(right)
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])
    assert rows_without_time(a / "history.jsonl") == rows_without_time(b / "history.jsonl")


def test_history_has_a_row_a_round() -> None:
    result = fx.run(TASK, ALGORITHM, rounds=5, **OPTIONS)
    assert [row["round"] for row in result.history] == [1, 2, 3, 4, 5]
    assert [row["test_nll"] is not None for row in result.history] == [False, True, False, True, True]
    size = 4 * sum(a.size for a in jax.tree.leaves(result.params))
    assert all(row["bytes_down"] == row["bytes_up"] == 3 * size for row in result.history)
    assert all(row["seconds"] > 0 and row["train_loss"] > 0 for row in result.history)
    frame = result.history.to_pandas()
    assert isinstance(frame, pd.DataFrame) and len(frame) == 5 and np.isnan(frame["test_nll"][0])
    assert (result.status, result.message, result.folder) == ("completed", None, None)


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_history_is_saved_by_ending(tmp_path: Path, ending: str) -> None:
    history = fx.run(TASK, ALGORITHM, rounds=3, **OPTIONS).history
    path = history.save(tmp_path / f"history{ending}")
    read = pd.read_csv(path) if ending == ".csv" else pd.read_json(path, lines=True)
    np.testing.assert_allclose(read["train_loss"], history.column("train_loss"))
    with pytest.raises(fx.UsageError, match=r"allowed endings are \.csv"):
        history.save(tmp_path / "history.xls")


def test_the_evaluation_is_the_mean_over_the_test_examples() -> None:
    result = fx.run(TASK, ALGORITHM, rounds=2, **OPTIONS)
    values = np.asarray(TASK.metrics(result.params, TASK.test)["nll"])
    assert result.history[-1]["test_nll"] == pytest.approx(values.mean(), rel=1e-5)


def test_equal_seeds_give_equal_files_and_other_seeds_do_not(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        fx.run(TASK, ALGORITHM, rounds=4, out=tmp_path / name, **(OPTIONS | {"seed": seed}))
    assert_same_results(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "config.json").read_bytes() == (tmp_path / "b" / "config.json").read_bytes()
    with pytest.raises(AssertionError):
        assert_same_results(tmp_path / "a", tmp_path / "c")


def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path: Path) -> None:
    fx.run(TASK, ALGORITHM, rounds=9, out=tmp_path / "whole", **OPTIONS)
    for first in (2, 4, 8):  # even: what is evaluated does not depend on where it stopped
        part = tmp_path / f"part-{first}"
        fx.run(TASK, ALGORITHM, rounds=first, out=part, **OPTIONS)
        result = fx.run(TASK, ALGORITHM, rounds=9, resume_from=part, **OPTIONS)
        assert len(result.history) == 9 and result.folder == part
        assert_same_results(part, tmp_path / "whole")


def test_resuming_into_another_folder_leaves_the_first(tmp_path: Path) -> None:
    fx.run(TASK, ALGORITHM, rounds=2, out=tmp_path / "a", **OPTIONS)
    before = rows_without_time(tmp_path / "a" / "history.jsonl")
    fx.run(TASK, ALGORITHM, rounds=4, resume_from=tmp_path / "a", out=tmp_path / "b", **OPTIONS)
    fx.run(TASK, ALGORITHM, rounds=4, out=tmp_path / "c", **OPTIONS)
    assert rows_without_time(tmp_path / "a" / "history.jsonl") == before
    assert_same_results(tmp_path / "b", tmp_path / "c")


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    whole = fx.run(TASK, ALGORITHM, rounds=6, out=tmp_path / "whole", **OPTIONS)
    part = tmp_path / "part"
    fx.run(TASK, ALGORITHM, rounds=2, out=part, **OPTIONS)
    fx.run(TASK, ALGORITHM, rounds=4, resume_from=part, **OPTIONS)
    next((part / "checkpoints" / "4" / "states").rglob("0*")).joinpath(".zarray").write_bytes(b"broken")
    result = fx.run(TASK, ALGORITHM, rounds=6, resume_from=part, **OPTIONS)
    jax.tree.map(np.testing.assert_array_equal, result.params, whole.params)
    shutil.rmtree(part / "checkpoints")
    with pytest.raises(fx.RunError, match=r"no checkpoint .* can be used .there is none"):
        fx.run(TASK, ALGORITHM, rounds=8, resume_from=part, **OPTIONS)


def test_a_checkpoint_of_another_experiment_is_refused(tmp_path: Path) -> None:
    fx.run(TASK, ALGORITHM, rounds=2, out=tmp_path / "a", **OPTIONS)
    with pytest.raises(fx.RunError, match="belongs to another experiment: its seed is 3, 4 given"):
        fx.run(TASK, ALGORITHM, rounds=4, resume_from=tmp_path / "a", **(OPTIONS | {"seed": 4}))
    with pytest.raises(fx.RunError, match=r"its arrays are not those of this experiment"):
        fx.run(TASK, fx.fedavg(0.1), rounds=4, resume_from=tmp_path / "a", **OPTIONS)
    with pytest.raises(fx.RunError, match="cannot be read: No such file"):
        fx.run(TASK, ALGORITHM, rounds=4, resume_from=tmp_path / "missing", **OPTIONS)


def test_old_checkpoints_are_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    server, clients = {"a": jnp.arange(3.0)}, OnDevice((), 5)
    for number in (1, 2, 3, 4):
        checkpoints.save(number, server, clients)
    assert checkpoints.restore(server, clients, 3)[0] == 3
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["3", "4"]


def test_a_diverged_run_says_where_and_keeps_its_last_finite_state(tmp_path: Path) -> None:
    wild = fx.fedavg(lambda r: jnp.where(r < 3, 0.1, jnp.inf))
    with pytest.raises(DivergedError, match=r"wild diverged in round 4 \(seed 3\).*after round 3 is kept") as caught:
        fx.run(TASK, wild, rounds=50, label="wild", out=tmp_path / "a", **OPTIONS)
    result = caught.value.result
    assert result.status == "diverged" and len(result.history) == 3
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(result.params))
    summary = storage.read_json(tmp_path / "a" / "summary.json")
    assert summary["status"] == "diverged" and summary["rounds_done"] == len(result.history)
    with np.load(tmp_path / "a" / "params.npz") as params:
        assert all(np.isfinite(params[name]).all() for name in params)
    for error in (caught.value, Interrupted(result)):  # as a pool of processes brings them home
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) == result.message
        assert again.result.history.rows == result.history.rows
        jax.tree.map(np.testing.assert_array_equal, again.result.params, result.params)
    with pytest.raises(DivergedError) as eager:
        fx.run(TASK, wild, rounds=50, label="wild", engine="eager", **OPTIONS)
    assert str(eager.value) == str(caught.value)


@pytest.mark.parametrize("place", ["device", pytest.param("host", marks=pytest.mark.long)])
def test_a_diverged_round_changes_no_client_state_either(place: str) -> None:
    rates = [fx.scaffold(lambda r, end=end: jnp.where(r < 3, 0.1, end)) for end in (jnp.inf, 0.1)]
    with pytest.raises(DivergedError) as caught:
        fx.run(TASK, rates[0], rounds=9, client_states=place, **OPTIONS)
    good = fx.run(TASK, rates[1], rounds=3, **OPTIONS)
    clients = caught.value.result.clients
    states = clients.tree if place == "device" else clients.of(np.arange(7))
    jax.tree.map(np.testing.assert_array_equal, states, good.clients.tree)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rounds": 0}, "rounds: 0 given, allowed is a whole number >= 1"),
        ({"cohort_size": 8}, "cohort_size: 8 given, allowed is at most the number of clients, 7"),
        ({"cohort_size": 0}, "cohort_size: 0 given"),
        ({"batch_size": 2.5}, "batch_size: 2.5 given"),
        ({"local_epochs": 0}, "local_epochs: 0 given"),
        ({"local_steps": 0}, "local_steps: 0 given"),
        ({"weighting": "size"}, "weighting: 'size' given, allowed is one of examples, uniform"),
        ({"engine": "fast"}, "engine: 'fast' given"),
        ({"client_loop": "scan"}, "client_loop: 'scan' given"),
        ({"seed": -1}, "seed: -1 given"),
        ({"eval_every": 0}, "eval_every: 0 given"),
        ({"rounds": True}, "rounds: True given, allowed is a whole number >= 1"),
        ({"rounds": np.float64(2)}, "rounds: np.float64(2.0) given"),
        ({"cohort_size": np.True_}, "cohort_size: np.True_ given"),
        ({"seed": np.int64(2**32)}, "seed: np.int64(4294967296) given, allowed is a whole number from 0 to 2^32 - 1"),
    ],
)
def test_wrong_arguments_leave_nothing_behind(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(fx.UsageError) as caught:
        fx.run(TASK, ALGORITHM, out=tmp_path / "a", **(OPTIONS | options))
    assert str(caught.value).startswith(text)
    assert list(tmp_path.iterdir()) == []


def test_whole_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    given = {"rounds": 2, "cohort_size": 3, "batch_size": 4, "local_steps": 2, "local_epochs": 1, "seed": 3}
    for name, kind in (("a", int), ("b", np.int64)):
        numbers = {key: kind(value) for key, value in (given | {"eval_every": 2}).items()}
        fx.run(TASK, ALGORITHM, out=tmp_path / name, **numbers)
    assert_same_results(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "config.json").read_bytes() == (tmp_path / "b" / "config.json").read_bytes()


@pytest.mark.parametrize("algorithm", ["fedavg", fx.fedavg, None])
def test_what_is_no_algorithm_is_one_line(algorithm: Any) -> None:
    with pytest.raises(fx.UsageError, match=r"^algorithm: .* given, allowed is a FedAlgorithm, such as fedavg"):
        fx.run(TASK, algorithm)


@pytest.mark.parametrize("task", ["digits", None, 5])
def test_what_is_no_task_is_one_line(task: Any, tmp_path: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: fx.run(task, ALGORITHM),
        lambda: fx.sweep(task, fx.fedavg, {"client_lr": [0.1]}),
        lambda: fx.tune(task, "fedavg", {"client_lr": [0.1]}, tmp_path),
        lambda: fx.with_compute_dtype(task, "bfloat16"),
    ]
    for call in calls:
        with pytest.raises(fx.UsageError, match=r"^task: .* given, allowed is a fedoptax\.Task, such as load_task"):
            call()
    if task != "digits":
        with pytest.raises(fx.UsageError, match=r"^task: .* given, allowed is the name of one, such as 'digits'"):
            fx.load_task(task)


def test_overwriting_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    real, link, nowhere = (tmp_path / name for name in ("real", "link", "nowhere"))
    link.symlink_to(real)
    with pytest.raises(fx.UsageError, match=r"link' is a link to what is not there, allowed is a folder"):
        storage.prepare(link)
    (real / "checkpoints").mkdir(parents=True)
    storage.write_json(real / "config.json", {})
    assert storage.prepare(link, overwrite=True) == link
    assert link.is_symlink() and list(real.iterdir()) == []
    assert storage.prepare(nowhere) == nowhere and not nowhere.exists()


def test_results_are_not_overwritten_by_accident(tmp_path: Path) -> None:
    fx.run(TASK, ALGORITHM, rounds=1, out=tmp_path / "a", **OPTIONS)
    with pytest.raises(fx.UsageError, match="holds results already"):
        fx.run(TASK, ALGORITHM, rounds=1, out=tmp_path / "a", **OPTIONS)
    fx.run(TASK, ALGORITHM, rounds=2, out=tmp_path / "a", overwrite=True, **OPTIONS)
    assert len(rows_without_time(tmp_path / "a" / "history.jsonl")) == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(fx.UsageError, match="holds other files"):
        fx.run(TASK, ALGORITHM, rounds=1, out=tmp_path / "mine", overwrite=True, **OPTIONS)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_second_process_on_a_folder_is_kept_out(tmp_path: Path) -> None:
    fx.run(TASK, ALGORITHM, rounds=1, out=tmp_path / "a", **OPTIONS)
    with storage.locked(tmp_path / "a"), pytest.raises(fx.RunError, match="is in use by another process"):
        fx.run(TASK, ALGORITHM, rounds=2, resume_from=tmp_path / "a", **OPTIONS)
    with storage.locked(tmp_path / "a"), pytest.raises(fx.RunError, match="is in use by another process"):
        fx.run(TASK, ALGORITHM, rounds=2, out=tmp_path / "a", overwrite=True, **OPTIONS)
    assert len(rows_without_time(tmp_path / "a" / "history.jsonl")) == 1


def test_a_killed_writer_leaves_a_history_that_is_read(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path, [{"round": 1, "train_loss": 0.5}])
    file.append([{"round": 2, "train_loss": float("nan")}])
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"round": 3, "tra')
    assert storage.read_rows(tmp_path, 2) == [{"round": 1, "train_loss": 0.5}, {"round": 2, "train_loss": None}]
    with pytest.raises(fx.RunError, match="holds 2 rounds, the checkpoint is of round 3"):
        storage.read_rows(tmp_path, 3)


def test_a_task_without_test_examples_or_classes_runs(tmp_path: Path) -> None:
    task = small_task(test=None, label=None, primary_metric=None)
    result = fx.run(task, ALGORITHM, rounds=2, out=tmp_path / "a", **OPTIONS)
    assert set(result.history[0]) == {"round", "train_loss", "bytes_down", "bytes_up", "seconds"}


def test_a_long_history_makes_no_call_slower() -> None:
    """The bar's note looks at few rows, also for columns that no row has; a soak of 150,000 rounds found it did not."""

    class Counted(dict[str, Any]):
        asked = 0

        def get(self, *given: Any) -> Any:
            Counted.asked += 1
            return super().get(*given)

    history = History([Counted(round=r, train_loss=None) for r in range(20_000)])
    assert experiment._note(TASK, history) == ""
    assert 0 < Counted.asked <= 10_000


def test_epochs_are_permutations_of_their_own_however_many() -> None:
    """Epoch e of several is epoch e of any other number: the orders come from a loop."""
    data = {"x": jnp.arange(7)}

    def first_of(epochs: int) -> list[list[int]]:
        work = LocalWork(batch_size=7, epochs=epochs)
        batches = client_batches(data, jnp.int32(0), jnp.int32(7), jax.random.key(3), work, 7)
        return [np.asarray(batches.get(jnp.int32(k)).examples["x"]).tolist() for k in range(epochs)]

    three = first_of(3)
    assert first_of(1) == three[:1]
    assert first_of(2) == three[:2]
    assert len({tuple(one) for one in three}) == 3
    assert all(sorted(one) == list(range(7)) for one in three)
