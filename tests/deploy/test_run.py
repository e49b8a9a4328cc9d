"""A deployment's run at the server: what was done is kept however it ends, and resuming goes on from there."""

import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedoptax as fx
from federations import (
    InMemory,
    assert_params,
    deployment,
    network_lines,
    replace_arrays,
    rounds_in,
    run_in_memory,
    small_deployment,
    task_of,
)  # fmt: skip
from fedoptax._files import read_json
from fedoptax.deploy.deployment import run_deployment
from fedoptax.deploy.server import RawReply
from fedoptax.errors import RunError, UsageError
from fedoptax.storage.checkpoint import rounds_of
from fedoptax.storage.folder import locked
from fedoptax.storage.history import HistoryFile, read_rows
from refusals import refused

READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "v of the device": ("fedlamb", {"lr": 0.01, "second_moment": "device", "gradient": "start"}),
    "one corrected gradient": ("fedlamb", {"lr": 0.01, "b2": 0.5, "gradient": "once", "bias_correction": "both"}),
    "corrected momentum": ("local_amsgrad", {"lr": 0.001, "momentum": "reset", "bias_correction": "momentum"}),
    "AdaGrad-Norm from one batch": ("fafed", {"lr": 0.02, "adaptive": "adagrad_norm", "initial_batches": 1}),
    "global adaptive rate": ("fafed", {"lr": 0.02, "adaptive": "global"}),
    "control variates and Adam": ("scaffold_adam", {"client_lr": 0.05, "server_lr": 0.03}),
    "AdaBound": ("fedadabound", {"client_lr": 0.05, "server_lr": 0.03}),
    "control of the cohort": ("mime", {"client_lr": 0.05}),
}
CASES = {name: (name, {}) for name in fx.ALGORITHMS} | READINGS
OPTIONS: dict[str, Any] = {"rounds": 3, "cohort_size": 2, "batch_size": 50, "seed": 3, "mesh": 1}
"""The simulation of `small_deployment`."""


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c == "scaffold" else pytest.mark.long) for c in CASES])
def test_a_deployment_is_the_simulation(tmp_path, case):
    """Compiled and in plain Python, with the same bytes: every algorithm, and each reading of a text."""
    algorithm, changes = CASES[case]
    given = small_deployment(tmp_path / "run", algorithm, **({"hyperparameters": changes} if changes else {}))
    lines = list[str]()
    run_in_memory(given, lines=lines)
    rows = read_rows(tmp_path / "run", 3)
    for engine in ("compiled", "eager"):
        wanted = fx.run(task_of(), given.build_algorithm(), engine=engine, **OPTIONS)
        for row, simulated in zip(rows, wanted.history):
            assert row.keys() == simulated.keys()
            assert row["train_loss"] == pytest.approx(simulated["train_loss"], rel=1e-4)
            assert all(row[name] == simulated[name] for name in ("round", "bytes_up", "bytes_down"))
        assert_params(tmp_path / "run", wanted.params)
    assert read_json(tmp_path / "run" / "summary.json")["status"] == "completed"
    assert lines[0].startswith("one message holds 0.0") and lines[0].endswith("needs about 1 GB of memory, a node 1 GB")
    assert len(lines) == 5 and lines[1].startswith("round 1 of 3: train_loss")
    assert lines[4].startswith("completed after round 3 of 3")


class Timed(InMemory):
    """Clients that work for 1, 3 and 7.5 virtual seconds; each look but a round's first finds the next reply."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.now, self.working = 0.0, list[tuple[float, int, Any]]()

    def begin(self, *given: Any, **more: Any) -> None:
        super().begin(*given, **more)
        self.has_begun = False

    def send(self, partitions: Sequence[int]) -> Sequence[int]:
        sent = super().send(partitions)
        for arrived in self._due:
            heappush(self.working, (self.now + SECONDS[arrived.partition], arrived.partition, arrived))
        self._due, self.has_begun = [], True
        return sent

    def receive(self) -> list[Any]:
        if not self.has_begun:
            return []
        self.now, _, arrived = heappop(self.working)
        return [arrived]


SECONDS = (1.0, 3.0, 7.5)


@pytest.mark.parametrize("algorithm", [pytest.param("fedavg", marks=pytest.mark.long), "fedadam"])
def test_an_asynchronous_deployment_is_the_simulation(tmp_path, algorithm):
    """One local step of all examples, the same whichever round it is drawn in."""
    out, speeds = tmp_path / "run", tmp_path / "speeds.csv"
    speeds.write_text("client,seconds\n" + "".join(f"{i},{seconds}\n" for i, seconds in enumerate(SECONDS)))
    given = small_deployment(out, algorithm, rounds=8, batch_size=2000, asynchronous=3, staleness_exponent=1.0)
    run_in_memory(given, Timed(given, tmp_path / "nodes"))
    options: dict[str, Any] = {"rounds": 8, "cohort_size": 2, "batch_size": 2000, "seed": 3}
    options |= {"asynchronous": 3, "staleness_exponent": 1.0, "speeds": str(speeds)}
    wanted = fx.run(task_of(), given.build_algorithm(), **options)
    rows = read_rows(out, 8)
    assert [row["staleness"] for row in rows] == wanted.history.column("staleness") != [0.0] * 8
    assert [row["train_loss"] for row in rows] == pytest.approx(wanted.history.column("train_loss"), rel=1e-4)
    assert_params(out, wanted.params)


def test_a_resumed_asynchronous_deployment_forgets_what_was_under_way(tmp_path):
    given = small_deployment(tmp_path / "whole", asynchronous=3)
    part = replace(given, out=str(tmp_path / "part"))
    run_in_memory(given, Timed(given, tmp_path / "nodes"))
    assert [line["staleness"] for line in network_lines(tmp_path / "whole")] == [[0, 0], [0, 0], [0, 2]]
    run_in_memory(replace(part, rounds=2), Timed(given, tmp_path / "nodes"))
    run_in_memory(replace(part, resume=True), Timed(given, tmp_path / "nodes"))
    assert rounds_in(tmp_path / "part") == ([1, 2, 3], [1, 2, 3])
    assert [line["staleness"] for line in network_lines(tmp_path / "part")] == [[0, 0]] * 3


@pytest.mark.parametrize(
    ("algorithm", "changes", "reason"),
    [("scaffold", {}, "asynchronous.*scaffold"), ("fedavg", {"asynchronous": 4}, "asynchronous must be <= 3"),
     ("fedavg", {"eval_fraction": 0.5}, "eval_fraction.*asynchronous"),
     ("fedavg", {"aggregate": "median"}, "asynchronous.*median"),
     ("fedavg", {"cohort_size": 3, "secure_aggregation": 8.0}, "asynchronous.*secure"),
     ("fedavg", {"asynchronous": None, "cohort_size": 3, "aggregate": "krum:0", "quorum": 0.3}, "quorum"),
     ("mime", {"asynchronous": None, "personal": "*kernel"}, "one exchange per step")],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_asynchronous_and_too_small_a_quorum_are_refused_by_name(tmp_path, algorithm, changes, reason):
    with pytest.raises(UsageError, match=reason):
        run_in_memory(small_deployment(tmp_path / "run", algorithm, **({"asynchronous": 2} | changes)))


def test_nodes_that_evaluate_their_own_examples_find_what_the_server_does(tmp_path):
    class Lying(InMemory):
        def change(self, partition: int, reply: RawReply) -> RawReply:
            if self._kind == "train" or partition not in liars:
                return reply
            wrong = {0: np.float32(np.nan), 2: np.zeros(2, np.float32)}[partition]
            return reply._replace(arrays=replace_arrays(reply.arrays, **{"accuracy/0": wrong}))

    given, liars = small_deployment(tmp_path / "run", eval_fraction=1.0, eval_every=2), set[int]()
    run_in_memory(given, Lying(given, tmp_path / "nodes"))
    first, *rows = read_rows(tmp_path / "run", 3)
    assert first["nodes_accuracy"] is None and first["evaluated"] == 0
    for row in rows:  # the nodes hold all of the server's test examples among them
        assert row["nodes_accuracy"] == pytest.approx(row["test_accuracy"]) and row["evaluated"] == 3
        assert row["nodes_loss"] == pytest.approx(row["test_loss"], rel=1e-4)
    assert [line["evaluated"] for line in network_lines(tmp_path / "run")] == [[], [0, 1, 2], [0, 1, 2]]
    assert read_json(tmp_path / "run" / "summary.json")["final"]["nodes_accuracy"] == rows[-1]["nodes_accuracy"]

    run_in_memory(replace(given, out=str(tmp_path / "part"), eval_fraction=0.3, eval_every=1))
    assert len({tuple(line["evaluated"]) for line in network_lines(tmp_path / "part")}) > 1, "drawn for each round"
    liars, given = {0, 2}, replace(given, out=str(tmp_path / "lied"), rounds=1, eval_min_nodes=2)
    run_in_memory(given, Lying(given, tmp_path / "nodes"))
    assert read_rows(tmp_path / "lied", 1)[0]["nodes_accuracy"] is None
    given = replace(given, out=str(tmp_path / "some"), eval_min_nodes=1)
    run_deployment(given, replace(task_of(), test=None), Lying(given, tmp_path / "nodes"), lambda line: None)
    (row,) = read_rows(tmp_path / "some", 1)
    assert "test_accuracy" not in row and row["nodes_accuracy"] is not None and row["evaluated"] == 1
    assert read_json(tmp_path / "some" / "config.json")["primary_metric"] == "nodes_accuracy"


def test_nodes_evaluate_with_their_personal_parameters(tmp_path: Path) -> None:
    given = small_deployment(tmp_path / "run", "fedavg", eval_fraction=1.0, personal="*kernel")
    run_in_memory(given)
    simulated = fx.run(task_of(), given.build_algorithm(), **OPTIONS).history
    rows = read_rows(tmp_path / "run", 3)
    assert [row["nodes_accuracy"] for row in rows] == pytest.approx(simulated.column("test_accuracy"), abs=1e-6)
    assert "test_accuracy" not in rows[-1], "the server has nobody's personal parameters"


def test_a_given_model_is_evaluated_by_the_nodes_and_not_trained(tmp_path):
    trained, lines = small_deployment(tmp_path / "run", rounds=2), list[str]()
    run_in_memory(trained)
    for number, source in enumerate(["run", "run/params.npz"]):
        given = small_deployment(tmp_path / f"evaluated-{number}", "scaffold", evaluate=str(tmp_path / source))
        run_in_memory(given, lines=lines)
        (row,), last = read_rows(Path(given.out), 1), read_rows(tmp_path / "run", 2)[-1]
        assert row["test_accuracy"] == last["test_accuracy"] and row["evaluated"] == 3
        assert row["nodes_accuracy"] == pytest.approx(last["test_accuracy"])  # of all test examples, among the nodes
        assert row["train_loss"] is None and network_lines(Path(given.out))[0]["accepted"] == []
        with np.load(tmp_path / "run" / "params.npz") as params:
            assert_params(
                Path(given.out), {"dense1": {name: params[f"dense1/{name}"] for name in ("bias", "kernel")}}, 0
            )
        assert lines[-1].startswith("completed after round 1 of 1")
    refused(lambda: replace(given, personal="*kernel"), "evaluate cannot be used with personal")
    np.savez(tmp_path / "other.npz", kernel=np.zeros((64, 9), np.float32))
    for wrong in ("other.npz", "nothing", "run/config.json"):
        with pytest.raises(UsageError, match="evaluate must"):
            run_in_memory(replace(given, evaluate=str(tmp_path / wrong), out=str(tmp_path / "wrong")))


@pytest.mark.long
@pytest.mark.parametrize("compress", ["topk:fraction=0.2", "qsgd:bits=4"])
def test_a_private_and_compressed_deployment_is_the_simulation(compress, tmp_path, monkeypatch):
    monkeypatch.setattr(secrets, "randbits", lambda bits: 7)  # the noise's seed, which a deployment draws
    privacy = "clip=0.5,noise_multiplier=1.0,delta=1e-3"
    given = small_deployment(tmp_path / "run", privacy=privacy, compress=compress)
    run_in_memory(given)
    result = fx.run(task_of(), given.build_algorithm(), weighting="uniform", **OPTIONS)
    rows = read_rows(tmp_path / "run", 3)
    assert [row["epsilon"] for row in rows] == [row["epsilon"] for row in result.history]
    assert 0 < rows[0]["epsilon"] < rows[-1]["epsilon"]
    assert rows[-1]["bytes_up"] == result.history[-1]["bytes_up"] < rows[-1]["bytes_down"]
    assert_params(tmp_path / "run", result.params)


@pytest.mark.parametrize("written", [False, True], ids=["before the row", "after the row"])
def test_a_full_disk_loses_the_current_round_alone(tmp_path, monkeypatch, written):
    append = HistoryFile.append

    def fail(file: HistoryFile, rows: Any) -> None:
        is_second = rows and rows[0]["round"] == 2
        if not is_second or written:
            append(file, rows)
        if is_second:
            raise RunError("no space left")

    out = tmp_path / "run"
    monkeypatch.setattr(HistoryFile, "append", fail)
    refused(lambda: run_in_memory(small_deployment(out)), "no space left")
    monkeypatch.undo()
    assert rounds_of(out)[-1] == 1 == read_json(out / "summary.json")["rounds_done"]
    with (out / "network.jsonl").open("a") as file:
        file.write('{"round": 3, "cohort": [1')  # as a killed process leaves it
    run_in_memory(small_deployment(out, resume=True))
    assert rounds_in(out) == ([1, 2, 3], [1, 2, 3])


def test_a_sigterm_ends_a_round_that_waits_and_leaves_a_summary(tmp_path):
    class Silent(InMemory):
        def receive(self) -> list[Any]:
            if len(self.orders) > 2:
                os.kill(os.getpid(), signal.SIGTERM)
                return []
            return super().receive()

    given = small_deployment(tmp_path / "run")
    refused(lambda: run_in_memory(given, Silent(given, tmp_path / "nodes")), "stopped after round 1 of 3")
    summary = read_json(tmp_path / "run" / "summary.json")
    assert (summary["status"], summary["rounds_done"]) == ("interrupted", 1)


def test_going_back_to_a_checkpoint_repeats_what_came_after_it(tmp_path):
    out, given = tmp_path / "run", small_deployment(tmp_path / "run", "scaffold")
    run_in_memory(given)
    whole = (out / "params.npz").read_bytes()
    refused(lambda: run_in_memory(replace(given, resume=True, resume_round=1)), "[2, 3], got 1")
    run_in_memory(replace(given, resume=True, resume_round=2, rounds=2))
    assert rounds_in(out)[0] == [1, 2] and rounds_of(out) == [2]
    refused(lambda: run_in_memory(replace(given, rounds=1, resume=True)), "rounds")
    run_in_memory(replace(given, resume=True))
    assert rounds_in(out) == ([1, 2, 3], [1, 2, 3])
    assert (out / "params.npz").read_bytes() == whole
    refused(lambda: run_in_memory(small_deployment(tmp_path / "other", resume_round=2)), "resume")


def test_clients_keep_the_states_of_two_checkpoints_and_find_them_after_a_resume(tmp_path):
    given = small_deployment(tmp_path / "run", "scaffold", rounds=4, cohort_size=3)
    network = InMemory(given, tmp_path / "nodes")
    run_in_memory(given, network)
    names = ("round", "base", "checkpoints")
    assert [{name: order[name] for name in names} for order in network.orders[::3]] == [
        {"round": round, "base": round - 1, "checkpoints": sorted({max(round - 2, -1), round - 1})}
        for round in range(4)
    ]
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "4")  # as if the server was killed in round 4
    for round in (None, 3):  # to the last checkpoint, and back to the one before the new last
        again = InMemory(given, tmp_path / "nodes")
        run_in_memory(replace(given, resume=True, resume_round=round), again)
        assert [order["base"] for order in again.orders] == [2] * 3 and again.orders[0]["checkpoints"] == [1, 2]
        assert again.orders[0]["session"] > network.orders[0]["session"]
    assert not any(line["state_lost"] for line in network_lines(tmp_path / "run"))


def test_resuming_waits_for_the_process_that_still_holds_the_folder(tmp_path):
    given, lines = small_deployment(tmp_path / "run", rounds=1, wait_limit=2.0), list[str]()
    run_in_memory(given)
    with locked(tmp_path / "run"), pytest.raises(RunError, match="in use"):
        run_in_memory(replace(given, rounds=2, resume=True))
    release = threading.Event()

    def hold() -> None:
        with locked(tmp_path / "run"):
            release.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    threading.Timer(1.0, release.set).start()
    time.sleep(0.2)
    run_in_memory(replace(given, rounds=2, resume=True, wait_limit=20.0), lines=lines)
    holder.join()
    assert lines[0].startswith("waiting, at most 20 s, until") and rounds_in(tmp_path / "run")[0] == [1, 2]


def test_resuming_needs_the_folder_of_a_deployment(tmp_path):
    fx.run(task_of(), deployment().build_algorithm(), out=tmp_path / "simulation", **OPTIONS)
    for folder in ("simulation", "nothing"):
        refused(lambda: run_in_memory(small_deployment(tmp_path / folder, resume=True)), "resume")  # noqa: B023
    run_in_memory(small_deployment(tmp_path / "run"))
    refused(lambda: run_in_memory(small_deployment(tmp_path / "run")), "out")
    refused(lambda: run_in_memory(small_deployment(tmp_path / "run", resume=True, seed=4)), "another experiment")
