"""A deployment's run at the server, whatever ends it: what was done is kept, and resume goes on from there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_deploy_wrapped import InMemory

from federations import deployment, need_flower, network_lines, task_of
from fedoptax.deploy import run as run_module
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.network_file import NetworkFile
from fedoptax.deploy.rounds import RoundReport
from fedoptax.deploy.run import Diverged, Run
from fedoptax.deploy.server import RawReply
from fedoptax.deploy.wire import WireError, pack
from fedoptax.engine.client_states import OnDevice
from fedoptax.errors import RunError, Stopped, UsageError
from fedoptax.storage import folder as storage
from fedoptax.storage.checkpoint import Checkpoints, rounds_of
from fedoptax.storage.history import HistoryFile, read_rows


def small(out: Path, **changes: Any) -> Deployment:
    return deployment("fedadam", out=str(out), rounds=3, **changes)


def run_of(given: Deployment) -> Run:
    return Run(given, task_of(), lambda line: None)


def rounds_told(out: Path) -> list[int]:
    return [line["round"] for line in network_lines(out)]


@pytest.mark.parametrize("error", [SystemExit(0), RunError("no space left")], ids=["signal", "full disk"])
@pytest.mark.parametrize("written", [False, True], ids=["before the row", "after the row"])
def test_what_ends_a_round_loses_that_round_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, written: bool
) -> None:
    append = HistoryFile.append

    def ending(file: HistoryFile, rows: Any) -> None:
        if rows[0]["round"] == 2 and not written:
            raise error
        append(file, rows)
        if rows[0]["round"] == 2:
            raise error

    given = small(tmp_path / "run")
    monkeypatch.setattr(HistoryFile, "append", ending)
    with pytest.raises(type(error)):
        run_of(given).go(InMemory(given))
    monkeypatch.undo()
    summary = storage.read_json(tmp_path / "run" / "summary.json")
    assert (summary["status"], summary["rounds_done"]) == ("interrupted", 1)
    assert rounds_of(tmp_path / "run") == [0, 1]

    again = run_of(replace(given, resume=True))
    assert again.done == 1
    again.go(InMemory(given))
    assert [row["round"] for row in read_rows(tmp_path / "run", 3)] == rounds_told(tmp_path / "run") == [1, 2, 3]


def test_resume_passes_over_a_checkpoint_without_rows_and_cuts_no_round(tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = small(out)
    first = run_of(given)
    first.go(InMemory(given))
    mark = storage.read_json(out / "checkpoints" / "3" / "checkpoint.json")["history"]
    states = (first.server, jnp.asarray(first._at.accepted))
    Checkpoints(out).save(4, states, OnDevice((), 0), mark)  # as a run was left that advanced before it told
    with (out / "network.jsonl").open("a") as file:
        file.write('{"round": 3, "cohort": [1')

    with pytest.raises(UsageError, match="rounds: 2 given, allowed is 4 or more"):
        run_of(replace(given, resume=True, rounds=2))
    again = run_of(replace(given, resume=True, rounds=5))
    assert again.done == 3
    again.go(InMemory(given))
    assert len(read_rows(out, 5)) == 5 and rounds_told(out) == [1, 2, 3, 4, 5]
    assert rounds_of(out) == [4, 5]
    assert run_of(replace(given, resume=True, rounds=5)).done == 5


def test_the_networks_file_keeps_whole_lines_of_rounds_that_are_done(tmp_path: Path) -> None:
    lines = ['{"round": 1}', '{"round": 2, "old": 1}', "{torn", '{"round": 2}', '{"round": 3}', "[]", '{"round": "1"}']
    (tmp_path / "network.jsonl").write_text("\n".join([*lines, '{"round": 1, "without": "end"}']))
    file = NetworkFile(tmp_path, 2)
    assert network_lines(tmp_path) == [{"round": 1}, {"round": 2}]
    file.append(3, [0], RoundReport())
    assert rounds_told(tmp_path) == [1, 2, 3]


def test_only_a_state_that_is_not_finite_is_called_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = small(tmp_path / "disk")
    run = run_of(given)
    (tmp_path / "disk" / "network.jsonl").mkdir()
    with pytest.raises(RunError, match=r"network.jsonl' cannot be written"):
        run.go(InMemory(given))
    summary = storage.read_json(tmp_path / "disk" / "summary.json")
    assert summary["status"] == "interrupted" and "cannot be written" in summary["message"]

    given = small(tmp_path / "diverged")
    monkeypatch.setattr(run_module, "next_state", lambda *given: (None, 0.0, False))
    with pytest.raises(Diverged, match="diverged in round 1"):
        run_of(given).go(InMemory(given))
    assert storage.read_json(tmp_path / "diverged" / "summary.json")["status"] == "diverged"


def test_the_evaluation_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[int] = []
    evaluate = run_module.evaluate

    def counting(*given: Any) -> Any:
        traced.append(1)
        return evaluate(*given)

    monkeypatch.setattr(run_module, "evaluate", counting)
    given = small(tmp_path / "run")
    run_of(given).go(InMemory(given))
    assert len(traced) == 1


def test_codes_that_decode_to_infinity_are_refused_when_they_come(tmp_path: Path) -> None:
    run = run_of(small(tmp_path / "run", compress="qsgd:bits=2"))

    def largest(struct: Any) -> np.ndarray:
        floating = np.issubdtype(struct.dtype, np.floating)
        return np.full(struct.shape, 3.4e38 if floating else 255, struct.dtype)

    sent = pack(jax.tree.map(largest, run._upload))
    with pytest.raises(WireError, match="infinity once it is decoded"):
        run._check(RawReply(sent, {"num-examples": 1, "train-loss": 0.5}))


@pytest.fixture
def resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Callable[[int | None], None]]:
    """A folder whose run of 4 rounds was extended to 8, of which 6 are done; and `deploy local --resume` on it."""
    need_flower()
    from fedoptax.deploy import commands

    target, work = tmp_path / "run", tmp_path / "run-network"
    (target / "checkpoints" / "6").mkdir(parents=True)
    (work / "keys").mkdir(parents=True)
    (work / "keys" / "node-0.pub").touch()
    commands.write_app(work / "app", deployment("fedadam", rounds=4), "federation")
    storage.write_json(target / "config.json", {"rounds": 8})
    monkeypatch.setattr(commands, "_check", lambda *given: None)
    monkeypatch.setattr(commands, "_tell", lambda *given: None)
    options = dict.fromkeys(("task", "task_settings", "algorithm", "settings", *commands.FIELDS, *commands.NETWORK))
    place = dict.fromkeys(("nodes", "data_dir", "port", "node_port", "start_timeout", "time_limit"))

    def resume(rounds: int | None) -> None:
        commands.local(None, None, target, False, place, **(options | {"rounds": rounds}))

    return target, resume


def test_resume_goes_on_to_the_rounds_that_were_asked_for_last(
    resuming: tuple[Path, Callable[[int | None], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedoptax.deploy import commands

    _, resume = resuming
    asked: list[int] = []
    monkeypatch.setattr(commands, "_run", lambda work, target, settings, rounds, *given: asked.append(rounds))
    resume(None)
    resume(9)
    assert asked == [8, 9]
    for rounds, allowed in ((0, ">= 1"), (5, "6 or more")):
        with pytest.raises(UsageError, match=f"rounds: {rounds} given, allowed is .*{allowed}"):
            resume(rounds)


def test_the_command_that_is_printed_names_the_rounds(
    resuming: tuple[Path, Callable[[int | None], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedoptax.deploy import commands

    @contextmanager
    def stopped(*given: Any) -> Iterator[None]:
        raise KeyboardInterrupt
        yield

    target, resume = resuming
    monkeypatch.setattr(commands, "LocalFederation", stopped)
    with pytest.raises(Stopped, match=f"--resume {target} --rounds 10"):
        resume(10)


def test_a_client_keeps_the_states_of_two_checkpoints_and_finds_them_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = deployment("scaffold", out=str(tmp_path / "run"), rounds=7, checkpoint_every=3, cohort_size=3)
    network = InMemory(given)
    run_of(given).go(network)
    assert [sorted(kept) for kept in network.kept] == [[2, 5, 6]] * 3  # of rounds 3 and 6, and the last

    shutil.rmtree(tmp_path / "run" / "checkpoints" / "7")  # as if the server was killed in round 8
    told: list[dict[str, Any]] = []
    again = run_of(replace(given, resume=True))
    assert again.done == 6
    begin = network.begin

    def listening(arrays: Any, order: Any) -> None:
        told.append(dict(order(0)))
        begin(arrays, order)

    monkeypatch.setattr(network, "begin", listening)
    again.go(network)
    assert [(order["base"], order["keep"], "kept" in order) for order in told] == [(5, -1, False)]
    assert [sorted(kept) for kept in network.kept] == [[2, 5, 6]] * 3
