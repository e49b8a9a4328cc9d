"""A client's work and its kept states without Flower: equal to the simulation, and to the round it is asked for."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from federations import deployment, task_of
from fedoptax.deploy.client import INITIAL, NodeClient, Order, StateFolder
from fedoptax.deploy.server import RawReply, check_reply, next_state
from fedoptax.deploy.wire import WireError, pack
from fedoptax.errors import RunError, UsageError
from fedoptax.wrappers.uploads import upload_form

algorithm_of = cache(lambda name: deployment(name).build_algorithm())  # one each, so that programs compile once
EXPERIMENT = "0123456789abcdef" * 2


class Node:
    """A client with its folder."""

    def __init__(self, algorithm: str, partition: int, root: Path) -> None:
        given = deployment(algorithm)
        self.client = NodeClient(task_of(), algorithm_of(algorithm), given.work, partition, given.seed)
        self.root, self.asked = root, 0

    def answer(self, message: Any, round: int, base: int, checkpoints: tuple[int, ...] = ()) -> RawReply:
        self.asked += 1
        order = Order(EXPERIMENT, round, base, checkpoints, 1, self.asked)
        StateFolder(self.root, EXPERIMENT, self.client.partition).accept(order)
        upload, numbers = self.client.compute(pack(message), order, self.root)
        return RawReply(pack(upload), numbers)

    def kept_rounds(self) -> list[int]:
        return sorted(int(path.stem) for path in self.root.rglob("*.npz"))


def test_a_state_or_loss_that_is_not_finite_is_noticed(tmp_path):
    task, algorithm, node = task_of(), algorithm_of("fedadam"), Node("fedadam", 1, tmp_path)
    server = algorithm.init(task.init(jax.random.key(0)))
    answer = node.answer(algorithm.broadcast(server), 0, INITIAL)
    reply = check_reply(answer, upload_form(algorithm, task.init(jax.random.key(0))), 2000)
    huge = reply._replace(upload=jax.tree.map(lambda a: np.full_like(a, 3e38), reply.upload))
    assert not next_state(algorithm, server, [huge], "uniform", 3)[2]
    assert next_state(algorithm, server, [reply], "uniform", 3)[2]
    assert not next_state(algorithm, server, [reply._replace(loss=float("inf"))], "uniform", 3)[2]
    assert list(tmp_path.rglob("*.npz")) == []  # FedAdam's clients keep nothing


@pytest.fixture
def scaffold(tmp_path):
    node = Node("scaffold", 1, tmp_path / "node")
    return node, algorithm_of("scaffold").broadcast(algorithm_of("scaffold").init(task_of().init(jax.random.key(1))))


def same(a: RawReply, b: RawReply) -> bool:
    return a.arrays == b.arrays and a.numbers["train-loss"] == b.numbers["train-loss"]


def test_a_lost_upload_is_not_built_upon(scaffold, tmp_path):
    node, message = scaffold
    assert same(node.answer(message, 0, INITIAL), node.answer(message, 0, INITIAL))
    after_loss = node.answer(message, 3, INITIAL)
    assert same(after_loss, Node("scaffold", 1, tmp_path / "fresh").answer(message, 3, INITIAL))
    assert node.kept_rounds() == [3]  # the server never heard of the state after round 0


def test_a_restored_server_finds_the_earlier_state(scaffold):
    node, message = scaffold
    node.answer(message, 0, INITIAL)
    second = node.answer(message, 1, 0)
    node.answer(message, 2, 1, checkpoints=(0,))  # the last checkpoint knows of round 0 alone
    assert same(node.answer(message, 1, 0), second)
    assert not same(node.answer(message, 1, INITIAL), second)


def test_the_state_outlives_the_process_and_damage_counts_as_lost(scaffold, tmp_path):
    node, message = scaffold
    node.answer(message, 0, INITIAL)
    node.client = replace(node.client)
    restarted = node.answer(message, 1, 0)
    anew = Node("scaffold", 1, tmp_path / "fresh").answer(message, 1, 0)
    assert (restarted.numbers["state-lost"], anew.numbers["state-lost"]) == (0, 1) and not same(restarted, anew)
    assert (node.root / EXPERIMENT).stat().st_mode & 0o777 == 0o700
    (file,) = node.root.rglob("0.npz")
    sound = file.read_bytes()
    places = len(sound) // 2, sound.index(b"PK\x01\x02") + 8  # the latter's bit says that it is encrypted
    flipped = [sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :] for place in places]
    for damaged in (*flipped, sound[:-50], b"noise", b""):
        file.write_bytes(damaged)
        assert node.answer(message, 1, 0).numbers["state-lost"] == 1


def test_only_states_that_the_server_may_ask_for_are_kept(scaffold):
    node, message = scaffold
    for round in range(6):
        node.answer(message, round, round - 1, checkpoints=tuple(range(round)))
    node.answer(message, 6, 5, checkpoints=(1, 3))
    assert node.kept_rounds() == [1, 3, 5, 6]
    node.answer(message, 2, 1)  # a late answer to an older message takes no newer state away
    assert node.kept_rounds() == [1, 2, 3, 5, 6]


@pytest.mark.parametrize(
    "wrong",
    [{"round": -1}, {"round": "0"}, {"base": -2}, {"checkpoints": None}, {"round": True}, {"round": 2**40},
     {"checkpoints": 3}, {"checkpoints": [0, -2]}, {"checkpoints": ["0"]},
     {"experiment": "../../etc"}, {"experiment": EXPERIMENT.upper()},
     {"experiment": 5}, {"session": -1}, {"number": "1"}],
)  # fmt: skip
def test_a_senseless_order_is_refused_by_the_name_of_its_value(wrong):
    good = {"experiment": EXPERIMENT, "round": 0, "base": INITIAL, "checkpoints": [INITIAL, 3]}
    assert Order.read(good) == Order(EXPERIMENT, 0, INITIAL, (INITIAL, 3))
    with pytest.raises((WireError, UsageError), match=next(iter(wrong))):
        Order.read(good | wrong)


def test_a_foreign_message_and_a_state_folder_that_cannot_be_written_are_refused(scaffold, tmp_path):
    node, message = scaffold
    with pytest.raises(WireError, match="array"):
        node.answer({"params": message}, 0, INITIAL)
    (tmp_path / EXPERIMENT).write_text("a file where a folder should be")
    with pytest.raises(RunError, match=EXPERIMENT):
        StateFolder(tmp_path, EXPERIMENT, 0).write(0, {"c": np.zeros(3)})
