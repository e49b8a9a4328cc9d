"""A client's work and memory without Flower: equal to the simulation, faithful to the round it is asked for."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federations import ALGORITHMS, batches_of, deployment, task_of
from fedoptax.deploy.client import Answer, Client, Order, state_folder
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.memory import INITIAL, StateFolder, blob_size, from_blob, stale, to_blob
from fedoptax.deploy.server import RawReply, check_reply, forms, next_state, upload_form
from fedoptax.deploy.wire import WireError, pack
from fedoptax.engine.batches import task_grad_fn
from fedoptax.engine.eager import run_round
from fedoptax.storage import folder as storage

algorithm_of = cache(lambda name: deployment(name).build_algorithm())  # one each: programs compiled once
EXPERIMENT = "0123456789abcdef" * 2


class Node:
    """A client with what Flower keeps for it, and its folder."""

    def __init__(self, given: Deployment, partition: int, root: Path | None = None) -> None:
        algorithm = algorithm_of(given.algorithm)
        self.client = Client(task_of(), algorithm, given.options.work, partition, given.seed)
        self.root, self.blobs = root, dict[int, bytes]()

    def answer(self, message: Any, round: int, base: int, keep: int, kept: tuple[int, ...] | None = None) -> Answer:
        order = Order(EXPERIMENT, round, base, keep, kept)
        folder = state_folder(None if self.root is None else str(self.root), order, self.client.partition)
        answer = self.client.answer(pack(message), order, self.blobs, folder)
        self.blobs = answer.kept
        return answer


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n if n == "scaffold" else pytest.param(n, marks=pytest.mark.long) for n in ALGORITHMS]
)
def test_a_client_and_the_server_compute_what_the_eager_round_does(name: str) -> None:
    made = deployment(name)
    task, algorithm = task_of(), algorithm_of(made.algorithm)
    work = made.options.work
    params = task.init(jax.random.fold_in(jax.random.key(made.seed), 0))
    server, states = algorithm.init(params), [algorithm.init_client(params)] * 3
    wanted, cohort, grad_fn = server, [0, 2], jax.jit(task_grad_fn(task))
    nodes = {i: Node(made, i) for i in cohort}
    for round in range(2):
        batches = [batches_of(task, i, round, made.seed, work) for i in cohort]
        sizes = [int(task.clients.sizes[i]) for i in cohort]
        old = [states[i] for i in cohort]
        weights = sizes if algorithm.weighting == "examples" else None
        wanted, new, info = run_round(algorithm, grad_fn, wanted, old, batches, weights, 3)
        states = [new[0], states[1], new[1]]
        message = algorithm.broadcast(server)
        answers = [nodes[i].answer(message, round, round - 1, round - 1) for i in cohort]
        form = upload_form(task, algorithm, work)
        replies = [check_reply(RawReply(a.arrays, a.numbers), form, 2000) for a in answers]
        server, loss, finite = next_state(algorithm, server, replies, algorithm.weighting, 3)
        assert finite and loss == pytest.approx(float(info.train_loss), rel=1e-5)
    for a, b in zip(jax.tree.leaves(server), jax.tree.leaves(wanted)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_diverged_round_is_seen() -> None:
    made = deployment("fedadam")
    task, algorithm = task_of(), algorithm_of(made.algorithm)
    server = algorithm.init(task.init(jax.random.key(0)))
    node = Node(made, 1)
    answer = node.answer(algorithm.broadcast(server), 0, INITIAL, INITIAL)
    reply = check_reply(RawReply(answer.arrays, answer.numbers), upload_form(task, algorithm, node.client.work), 2000)
    huge = reply._replace(upload=jax.tree.map(lambda a: np.full_like(a, 3e38), reply.upload))
    assert not next_state(algorithm, server, [huge], "uniform", 3)[2]
    assert next_state(algorithm, server, [reply], "uniform", 3)[2]
    assert not next_state(algorithm, server, [reply._replace(loss=float("inf"))], "uniform", 3)[2]


@pytest.fixture
def scaffold(tmp_path: Path) -> tuple[Node, Any]:
    node = Node(deployment("scaffold"), 1, tmp_path)
    task, algorithm = node.client.task, node.client.algorithm
    return node, algorithm.broadcast(algorithm.init(task.init(jax.random.key(1))))


def same(a: Answer, b: Answer) -> bool:
    return a.arrays == b.arrays and a.numbers["train-loss"] == b.numbers["train-loss"]


def test_an_upload_that_was_lost_is_not_built_upon(scaffold: tuple[Node, Any]) -> None:
    node, message = scaffold
    first = node.answer(message, 0, INITIAL, INITIAL)
    again = node.answer(message, 0, INITIAL, INITIAL)
    assert same(first, again)
    after_lost = node.answer(message, 3, INITIAL, INITIAL)
    fresh = Node(deployment("scaffold"), 1)
    assert same(after_lost, fresh.answer(message, 3, INITIAL, INITIAL))
    assert sorted(node.blobs) == [3]  # the state after round 0, which the server never heard of, is gone


def test_a_server_that_goes_back_finds_the_state_of_then(scaffold: tuple[Node, Any]) -> None:
    node, message = scaffold
    node.answer(message, 0, INITIAL, INITIAL)
    second = node.answer(message, 1, 0, INITIAL)  # the checkpoint knows nothing of round 0 yet
    node.answer(message, 2, 1, INITIAL)
    assert same(node.answer(message, 1, 0, INITIAL), second)
    assert not same(node.answer(message, 1, INITIAL, INITIAL), second)


def test_the_state_outlives_the_process_on_disk_with_mode_600(scaffold: tuple[Node, Any], tmp_path: Path) -> None:
    node, message = scaffold
    node.answer(message, 0, INITIAL, INITIAL)
    restarted = Node(deployment("scaffold"), 1, tmp_path)
    kept, anew = restarted.answer(message, 1, 0, 0), Node(deployment("scaffold"), 1).answer(message, 1, 0, 0)
    assert same(kept, node.answer(message, 1, 0, 0))
    assert (kept.numbers["state-lost"], anew.numbers["state-lost"]) == (0, 1) and not same(kept, anew)
    files = list(tmp_path.rglob("*.state"))
    assert {f.stat().st_mode & 0o777 for f in files} == {0o600} and all(f.stat().st_size > 100 for f in files)


def test_a_damaged_state_counts_as_lost(scaffold: tuple[Node, Any], tmp_path: Path) -> None:
    node, message = scaffold
    node.answer(message, 0, INITIAL, INITIAL)
    (file,) = tmp_path.rglob("0.state")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert Node(deployment("scaffold"), 1, tmp_path).answer(message, 1, 0, 0).numbers["state-lost"] == 1


def test_few_states_are_kept(scaffold: tuple[Node, Any], tmp_path: Path) -> None:
    node, message = scaffold
    for round in range(6):
        node.answer(message, round, round - 1, max(round - 3, INITIAL))
    assert sorted(node.blobs) == [2, 3, 4, 5]
    assert sorted(int(f.stem) for f in tmp_path.rglob("*.state")) == [2, 3, 4, 5]


def test_states_between_the_servers_checkpoints_are_not_kept(scaffold: tuple[Node, Any], tmp_path: Path) -> None:
    node, message = scaffold
    for round in range(6):
        node.answer(message, round, round - 1, INITIAL)
    node.answer(message, 6, 5, 1, (1, 3))
    assert sorted(node.blobs) == [1, 3, 5, 6] == sorted(int(f.stem) for f in tmp_path.rglob("*.state"))


def test_clients_that_keep_nothing_write_nothing(tmp_path: Path) -> None:
    node = Node(deployment("fedadam"), 1, tmp_path)
    algorithm = node.client.algorithm
    node.answer(algorithm.broadcast(algorithm.init(node.client.task.init(jax.random.key(1)))), 0, INITIAL, INITIAL)
    assert node.blobs == {} and list(tmp_path.rglob("*")) == []


@given(st.sets(st.integers(0, 30)), st.integers(-1, 30), st.integers(-1, 30))
@settings(max_examples=100, deadline=None)
def test_what_a_later_message_may_ask_for_is_never_dropped(rounds: set[int], base: int, keep: int) -> None:
    gone = set(stale(rounds, base, keep))
    for asked in rounds:  # the server is at base now, and may go back to keep
        if min(keep, base) <= asked <= base:
            assert asked not in gone
    assert all(r in gone for r in rounds if r > base)


@pytest.mark.parametrize(
    "wrong",
    [{"round": -1}, {"round": "0"}, {"base": -2}, {"keep": None}, {"round": True}, {"round": 2**40},
     {"kept": 3}, {"kept": [0, -2]}, {"kept": ["0"]}, {"kept": [None]}, {"kept": list(range(99))},
     {"experiment": "../../etc"}, {"experiment": EXPERIMENT.upper()}, {"experiment": 5}],
)  # fmt: skip
def test_an_order_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    good = {"experiment": EXPERIMENT, "round": 0, "base": INITIAL, "keep": INITIAL}
    assert Order.read(good) == Order(EXPERIMENT, 0, INITIAL, INITIAL)
    assert Order.read(good | {"kept": [INITIAL, 3]}) == Order(EXPERIMENT, 0, INITIAL, INITIAL, (INITIAL, 3))
    with pytest.raises(WireError):
        Order.read(good | wrong)


def test_a_message_of_another_algorithm_is_refused(scaffold: tuple[Node, Any]) -> None:
    node, message = scaffold
    with pytest.raises(WireError, match="arrays instead of"):
        node.answer({"params": message}, 0, INITIAL, INITIAL)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_bytes_that_are_no_state_are_refused(noise: bytes) -> None:
    like = {"c": jax.ShapeDtypeStruct((3,), jnp.float32)}
    good = to_blob({"c": np.arange(3, dtype=np.float32)})
    assert len(good) == blob_size(like)
    np.testing.assert_array_equal(from_blob(good, like)["c"], np.arange(3))
    for blob in (noise, good[:-1] + noise[:1] if noise[:1] != good[-1:] else noise, good + noise if noise else b""):
        with pytest.raises(WireError):
            from_blob(blob, like)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / EXPERIMENT).write_text("a file where a folder should be")
    with pytest.raises(RuntimeError, match="cannot be written"):
        StateFolder(tmp_path, EXPERIMENT, 0).write(0, b"state")
    assert os.listdir(tmp_path) == [EXPERIMENT]


def test_a_state_is_on_the_disk_before_the_answer_and_leftovers_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(storage, "sync_folder", synced.append)
    states = StateFolder(tmp_path, EXPERIMENT, 0)
    states.write(0, b"state")
    assert synced == [states.folder.parent, tmp_path, states.folder]
    old, young = states.folder / ".killed", states.folder / ".at-work"
    old.write_bytes(b"sta")
    young.write_bytes(b"sta")
    os.utime(old, (0, 0))
    states.write(1, b"state")
    assert sorted(os.listdir(states.folder)) == [".at-work", "0.state", "1.state"]


def test_forms_cost_no_computation() -> None:
    made = deployment("fedlamb")
    form = forms(task_of(), algorithm_of(made.algorithm))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(form))
