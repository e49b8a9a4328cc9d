"""Secure aggregation: the sum of uploads bit for bit, whoever dies when, and no request that would show an upload."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from federations import (
    InMemory,
    arrays_of,
    assert_params,
    deployment,
    network_lines,
    processes_of,
    replace_arrays,
    run_in_memory,
    wait_until,
    write_network,
)  # fmt: skip
from fedoptax._files import read_json
from fedoptax.algorithm import Cohort
from fedoptax.deploy import secure
from fedoptax.deploy.client import NodeClient, Order
from fedoptax.deploy.config import Deployment, build_task
from fedoptax.deploy.local import LocalFederation
from fedoptax.deploy.rounds import Arrived, Limits
from fedoptax.deploy.secure import answer, decode_numbers, encode_numbers, encode_upload, threshold
from fedoptax.deploy.server import RawReply
from fedoptax.deploy.wire import WireError, pack
from fedoptax.engine.aggregation import SecureMean
from fedoptax.engine.plan import make_plan
from fedoptax.engine.program import Fixed, program
from fedoptax.errors import RunError
from fedoptax.storage.history import read_rows
from fedoptax.tasks.task import Task
from refusals import refusals, refused

RANGE = 8.0
Codes = dict[tuple[int, int], tuple[Any, Any, Any]]
"""By round and partition: the weight, the fixed-point numbers, and what they stand for."""


def secured(out: Path, algorithm: str = "fedadam", clients: int = 5, **changes: Any) -> Deployment:
    partition = "dirichlet-by-class" if clients == 5 else "iid"  # equal sizes compile once
    task = {"name": "digits", "model": "logistic", "num_clients": clients, "partition": partition}
    given: dict[str, Any] = {"task": task, "cohort_size": clients, "rounds": 2, "quorum": 0.5, "out": str(out)}
    given |= {"wait_limit": 1.0, "round_timeout": 1.0}
    return deployment(algorithm, **({"secure_aggregation": RANGE} | given | changes))


@cache
def task_with(clients: int) -> Task:
    return build_task(secured(Path(), clients=clients))


@dataclass(frozen=True)
class Recording(SecureMean):
    """The coding of a node, which tells what it codes."""

    record: Callable[..., None]

    def encode(self, weight: jax.Array, sent: Any) -> Any:
        coded = super().encode(weight, sent)
        self.record(weight, coded, sent)
        return coded


class Nodes(InMemory):
    """Clients that answer the requests of secure aggregation; `(stage, partition)` in `dead` do not, from then on."""

    def __init__(self, given: Deployment, states: Path, dead: Sequence[tuple[str, int]] = ()) -> None:
        task, algorithm = task_with(int(given.task["num_clients"])), given.build_algorithm()
        self.clients = [NodeClient(task, algorithm, given.work, i, given.seed) for i in range(task.clients.num_clients)]
        self.least = threshold(given.cohort_size, Limits(given.quorum))
        self.states, self.dead, self.gone = states, dead, set[int]()
        self.names = {i: f"node-{i}" for i in range(len(self.clients))}
        self.kept: dict[int, dict[str, Any]] = {i: {} for i in range(len(self.clients))}
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.sent, self.codes, self._due = dict[tuple[str, int], RawReply](), Codes(), list[Arrived]()

    def connected(self) -> set[int]:
        return super().connected() - self.gone

    def send(self, partitions: Sequence[int]) -> Sequence[int]:
        for i in partitions:
            asked = dict(self._order(i))
            self.asked.append((i, asked))
            if (asked["stage"], i) in self.dead:
                self.gone.add(i)
                continue
            self.sent[asked["stage"], i] = self.answer(i, asked)
            self._due.append(Arrived(i, self.sent[asked["stage"], i]))
        return partitions

    def answer(self, i: int, asked: dict[str, Any]) -> RawReply:
        def record(*coded: Any) -> None:
            self.codes[asked["round"], i] = coded

        coding, client, order = Recording(RANGE, record), self.clients[i], Order.read(asked)

        def contribute(weight: float) -> Any:
            sent = client.compute(self._arrays, order, self.states / str(i))
            return encode_upload(client.algorithm, coding, weight, *sent)

        size = len(client.examples()["y"])
        sent, numbers = answer(i, self.least, self._arrays, asked, self.kept[i], size, contribute)
        return RawReply(pack(sent), numbers)


def replayed(given: Deployment, codes: Codes, accepted: Sequence[Sequence[int]]) -> Any:
    """The parameters after rounds whose server just adds up the fixed-point numbers of those who were accepted."""
    task, algorithm, coding = task_with(int(given.task["num_clients"])), given.build_algorithm(), SecureMean(RANGE)
    made = program(task, Fixed(algorithm), make_plan(given.run_options, task, algorithm))
    server = made.start({}, jax.random.key(given.seed))[0]
    for round, members in enumerate(accepted):
        total = jax.tree.map(lambda *parts: sum(parts), *(codes[round, i][1] for i in members))
        weight = jnp.sum(jnp.asarray([codes[round, i][0] for i in members]))
        mean = coding.divide(total, weight, codes[round, members[0]][2])
        server = algorithm.server_update(server, mean.upload, Cohort(len(members), task.clients.num_clients))
    return algorithm.params(server)


def assert_bits(out: Path, params: Any) -> None:
    assert_params(out, params, atol=0, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["fedavg", "fedadam", "scaffold", "fedlamb", "fafed", "fedlion"])
def test_masked_uploads_give_the_sum_bit_for_bit_and_the_simulation(tmp_path: Path, algorithm: str) -> None:
    given = secured(tmp_path / "run", algorithm)
    if algorithm == "fedlion":
        given = replace(given, hyperparameters={"lr": 0.01})
    nodes = Nodes(given, tmp_path / "nodes")
    run_in_memory(given, nodes)
    lines = network_lines(tmp_path / "run")
    assert all(line["accepted"] == line["cohort"] and line["faults"] == [] for line in lines)
    assert_bits(tmp_path / "run", replayed(given, nodes.codes, [line["accepted"] for line in lines]))
    simulated = fx.run(
        task_with(5), given.build_algorithm(), rounds=2, cohort_size=5, batch_size=50, seed=3, secure_aggregation=RANGE,
        engine="eager",
    )  # fmt: skip
    assert_params(tmp_path / "run", simulated.params)
    for row, wanted in zip(read_rows(tmp_path / "run", 2), simulated.history):
        assert row["train_loss"] == pytest.approx(wanted["train_loss"], rel=1e-4)
        assert row["bytes_up"] == wanted["bytes_up"]
    assert read_json(tmp_path / "run" / "config.json")["secure_aggregation"] == RANGE


def test_the_dead_cost_their_own_uploads_alone_and_the_server_gets_nothing_but_masks(tmp_path: Path) -> None:
    given = secured(tmp_path / "run", "fedavg", clients=6, rounds=1)
    nodes = Nodes(given, tmp_path / "nodes", dead=[("upload", 1), ("unmask", 4)])
    run_in_memory(given, nodes)
    (line,) = network_lines(tmp_path / "run")
    assert line["accepted"] == [0, 2, 3, 4, 5]
    reasons = {fault["partition"]: fault["reason"] for fault in line["faults"]}
    assert reasons.keys() == {1, 4}
    assert reasons[1].startswith("upload: left out: ") and reasons[4].startswith("unmask: left out: ")
    assert_bits(tmp_path / "run", replayed(given, nodes.codes, [line["accepted"]]))
    for (stage, i), sent in nodes.sent.items():
        assert "train-loss" not in sent.numbers
        if stage == "upload":
            (array,) = arrays_of(sent.arrays).values()
            difference = array - np.concatenate([np.ravel(a) for a in jax.tree.leaves(nodes.codes[0, i][1])]).view("u4")
            bits = np.unpackbits(difference.view(np.uint8)).mean()
            assert array.dtype == np.uint32 and abs(bits - 0.5) < 0.02


@pytest.mark.long
@pytest.mark.parametrize("stage", ["keys", "shares", "upload", "unmask"])
def test_too_few_nodes_lose_the_round_with_one_line_and_resuming_goes_on(tmp_path: Path, stage: str) -> None:
    given = secured(tmp_path / "run", "fedavg", clients=4, rounds=1)
    with pytest.raises(RunError, match=f"aggregation, {stage}: no quorum: 2 valid replies of .*3 are needed") as e:
        run_in_memory(given, Nodes(given, tmp_path / "nodes", dead=[(stage, 0), (stage, 1)]))
    assert "\n" not in str(e.value)
    nodes = Nodes(given, tmp_path / "nodes")
    run_in_memory(replace(given, resume=True), nodes)
    assert_bits(tmp_path / "run", replayed(given, nodes.codes, [[0, 1, 2, 3]]))


class Lying(Nodes):
    """Partition 0 sends what `lie` makes of the array `name` of one stage, in one round."""

    round, stage, name = 0, "upload", "masked"
    lie: Callable[[np.ndarray], np.ndarray]

    def change(self, partition: int, reply: RawReply) -> RawReply:
        asked = self._order(partition)
        if partition or (asked["round"], asked["stage"]) != (self.round, self.stage):
            return reply
        false = self.lie(arrays_of(reply.arrays)[self.name])
        return reply._replace(arrays=replace_arrays(reply.arrays, **{self.name: false}))


@pytest.mark.long
@pytest.mark.parametrize(("stage", "name"), [("keys", "mask"), ("shares", "ciphertexts"), ("unmask", "seeds")])
def test_a_node_that_sends_nonsense_is_left_out_or_not_needed(tmp_path: Path, stage: str, name: str) -> None:
    given, rng = secured(tmp_path / "run", "fedavg", clients=4, rounds=1), np.random.default_rng(0)
    nodes = Lying(given, tmp_path / "nodes")
    nodes.stage, nodes.name = stage, name
    nodes.lie = lambda array: rng.integers(1, 256, array.shape, np.uint8) if stage != "unmask" else np.zeros_like(array)
    if stage == "shares":  # nobody has a share of its seed
        refused(lambda: run_in_memory(given, nodes), "shares are inconsistent")
        return
    run_in_memory(given, nodes)
    (line,) = network_lines(tmp_path / "run")
    assert line["accepted"] == ([1, 2, 3] if stage == "keys" else [0, 1, 2, 3])
    assert_bits(tmp_path / "run", replayed(given, nodes.codes, [line["accepted"]]))


@pytest.mark.parametrize(
    ("number", "round", "reason"), [(2**30, 0, "of the range instead of at most 1"), (2**29, 1, "times the run's")]
)
def test_a_sum_that_no_honest_nodes_make_is_not_kept(tmp_path: Path, number: int, round: int, reason: str) -> None:
    given = secured(tmp_path / "run", "fedavg", clients=4, rounds=round + 1)
    nodes = Lying(given, tmp_path / "nodes")
    nodes.round, nodes.lie = round, lambda masked: masked + np.uint32(number)
    refused(lambda: run_in_memory(given, nodes), "honest nodes cannot produce this sum", reason)
    assert [line["round"] for line in network_lines(tmp_path / "run")] == list(range(1, round + 1))


def test_a_node_opens_one_set_of_shares_per_round_and_sends_one_upload(tmp_path: Path) -> None:
    given = secured(tmp_path / "run", "fedavg", clients=4, rounds=1)
    nodes = Nodes(given, tmp_path / "nodes")
    run_in_memory(given, nodes)
    of_stage = {asked["stage"]: asked for i, asked in nodes.asked if i == 0}
    assert nodes.answer(0, of_stage["unmask"]) == nodes.sent["unmask", 0]  # asked again, as after a message was lost
    wrong = [
        of_stage["unmask"] | {"members": [0, 1, 2]},
        of_stage["upload"] | {"weight": 0.5},
        of_stage["shares"] | {"members": [3, 2, 1, 0]},
        of_stage["unmask"] | {"round": 1},
        {name: value for name, value in of_stage["unmask"].items() if name != "stage"},
    ]
    for asked in wrong:
        with pytest.raises(WireError):
            nodes.answer(0, asked)
    keys, again = of_stage["keys"], of_stage["shares"]
    nodes.kept[0].clear()  # as in another run
    nodes.answer(0, keys)
    for members in ([0, 1], [1, 2, 3]):  # too few for the threshold, and without itself
        with pytest.raises(WireError, match="members"):
            nodes.answer(0, again | {"members": members})


def test_a_round_begins_with_the_keys_of_the_last_or_with_new_ones_where_a_node_lost_them(tmp_path: Path) -> None:
    given = secured(tmp_path / "run", "fedavg", clients=4, rounds=3)

    class Forgetful(Nodes):
        def send(self, partitions: Sequence[int]) -> Sequence[int]:
            if self._order(0)["round"] == 2 and len(self.asked) == 4 * (4 + 3):
                self.kept[1].clear()  # as of a SuperNode that was started again
            return super().send(partitions)

        def answer(self, i: int, asked: dict[str, Any]) -> RawReply:
            try:
                return super().answer(i, asked)
            except WireError as error:
                return RawReply(b"", {}, str(error))

    nodes, lines = Forgetful(given, tmp_path / "nodes"), list[str]()
    run_in_memory(given, nodes, lines)
    stages = [[asked["stage"] for i, asked in nodes.asked if i == 1 and asked["round"] == r] for r in range(3)]
    usual = ["keys", "shares", "upload", "unmask"]
    assert stages == [usual, usual[1:], ["shares", *usual]]
    assert all(line["accepted"] == [0, 1, 2, 3] and line["faults"] == [] for line in network_lines(tmp_path / "run"))
    assert_bits(tmp_path / "run", replayed(given, nodes.codes, [range(4)] * 3))


def test_numbers_of_any_size_and_sign_add_up_exactly() -> None:
    numbers = np.array([[1e30, -3.5, 0.0, 1e-20, 7.0], [-1e30, 1.25, 2.0, 1e-20, 2.0**60]])
    total = np.sum([encode_numbers(row) for row in numbers], axis=0, dtype=np.uint32)
    np.testing.assert_array_equal(decode_numbers(total, 2)[[0, 1, 2, 4]], [0, -2.25, 2, 2**60])
    assert decode_numbers(total, 2)[3] == pytest.approx(2e-20, rel=1e-9)
    many = 300 * encode_numbers(np.array([-0.25]))
    assert decode_numbers(many, 300).tolist() == [-75]
    refused(lambda: decode_numbers(total + np.uint32(2**31), 2), "honest nodes cannot")
    refused(lambda: encode_numbers(np.array([np.inf])), "sums below")


test_what_needs_single_uploads_is_refused_by_name = refusals([
    (partial(secured, Path(), aggregate="krum:1"), "aggregate"),
    (partial(secured, Path(), compress="qsgd:bits=4"), "compress"),
    (partial(secured, Path(), cohort_size=2), "secure_aggregation needs cohort_size >= 3"),
    (partial(secured, Path(), secure_aggregation=-1.0), "secure_aggregation"),
])  # fmt: skip


def test_two_members_that_offer_one_key_have_different_masks() -> None:
    key = secure._offer_keys(memory := dict[str, Any]())["mask"].tobytes()
    first, last = (secure._pair_mask(1, other, memory["next-mask"], key, 4) for other in (0, 2))
    assert not np.array_equal(first, np.negative(last))


def test_the_threshold_is_a_majority_the_quorum_and_three() -> None:
    at = [(3, 0.1, 3), (4, 0.5, 3), (5, 1.0, 5), (10, 0.5, 6), (10, 0.8, 8)]
    assert all(threshold(size, Limits(quorum)) == least for size, quorum, least in at)


MORTAL = '''"""Clients that write down what they code; two end with their SuperNodes, each in one stage of a round."""

import os
import pickle
import signal
from pathlib import Path

import jax

from fedoptax.deploy import flower
from fedoptax.engine.aggregation import SecureMean


encode, answer, now = SecureMean.encode, flower.answer, {}


def record(self, weight, sent):
    coded = encode(self, weight, sent)
    Path(FOLDER, "{round}-{partition}".format(**now)).write_bytes(pickle.dumps(jax.device_get((weight, coded, sent))))
    return coded


def die_or_answer(partition, minimum, arrays, asked, *rest):
    now.update(round=asked["round"], partition=partition)
    if (asked["round"], asked["stage"], partition) in [(1, "upload", 3), (2, "unmask", 4)]:
        os.killpg(0, signal.SIGKILL)
    return answer(partition, minimum, arrays, asked, *rest)


SecureMean.encode, flower.answer = record, die_or_answer
app = flower.client_app()
'''


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_over_a_network_nodes_that_are_killed_between_stages_cost_their_own_uploads_alone(tmp_path: Path) -> None:
    out, codes = tmp_path / "run", tmp_path / "codes"
    codes.mkdir()
    given = secured(out, "scaffold", rounds=1, round_timeout=150.0, wait_limit=200.0)
    package = write_network(tmp_path, given, 5, "mortal")
    (package / "client_app.py").write_text(MORTAL.replace("FOLDER", repr(str(codes))))
    (tmp_path / "more.toml").write_text("resume = true\nrounds = 3\n")
    with LocalFederation(tmp_path, 5, time_limit=1100) as federation:
        federation.run(tmp_path / "app", tmp_path / "run.toml", tmp_path / "log.txt", lambda: None)
        simulated = fx.run(
            task_with(5), given.build_algorithm(), rounds=1, cohort_size=5, batch_size=50, seed=3,
            secure_aggregation=RANGE,
        )  # fmt: skip
        assert_params(out, simulated.params)
        federation.run(tmp_path / "app", tmp_path / "more.toml", tmp_path / "log2.txt", lambda: None)
    wait_until(lambda: not processes_of(tmp_path), 10, "the processes end")
    lines = network_lines(out)
    assert [sorted(line["accepted"]) for line in lines] == [[0, 1, 2, 3, 4], [0, 1, 2, 4], [0, 1, 2, 4]]
    assert [(fault["partition"], fault["reason"].split(":")[0]) for line in lines for fault in line["faults"]] == [
        (3, "upload"), (3, "keys"), (4, "unmask"),
    ]  # fmt: skip
    seen = {(r, i): pickle.loads((codes / f"{r}-{i}").read_bytes()) for r in range(3) for i in lines[r]["accepted"]}
    assert_bits(out, replayed(given, seen, [line["accepted"] for line in lines]))
    assert "PRIVATE KEY" not in (tmp_path / "log2.txt").read_text()
