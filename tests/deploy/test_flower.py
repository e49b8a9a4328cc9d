"""Flower's grid as a network: partitions instead of nodes, and one bad reply spoils no other. No processes."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedoptax.deploy.flower import FlowerNetwork, make_reply, read_records, read_reply, to_record
from fedoptax.deploy.keys import fingerprint, make_keys, write_keys
from fedoptax.deploy.orders import Signer
from fedoptax.deploy.server import RawReply, check_reply
from fedoptax.deploy.wire import WireError, pack

UPLOAD = {"w": np.ones(2, np.float32)}
ARRAYS = pack(UPLOAD)
PEM = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo  # as Flower tells them
KEYS = {i: ec.generate_private_key(ec.SECP384R1()).public_key().public_bytes(*PEM) for i in (11, 22, 33, 44, 55)}
pytestmark = pytest.mark.usefixtures("inside_a_flower_run")  # messages can be made


class Grid:
    """Nodes that say which partition they have and return a reply; `malformed` ones break the pull they are in.

    As with Flower's SuperLink, a reply is given out once, also by a pull that fails.
    """

    def __init__(self, partitions: dict[int, Any], malformed: Iterable[int] = (), hung: Iterable[int] = ()) -> None:
        self.partitions, self.malformed, self.hung = partitions, set(malformed), set(hung)
        self.pulls, self.is_down = list[int](), False
        self._waiting: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        if self.is_down:
            raise ConnectionError("no SuperLink")
        return list(self.partitions)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=KEYS[node]) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"message {len(self._waiting)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self._waiting[ids[-1]] = message
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        if self.is_down:
            raise ConnectionError("no SuperLink")
        waiting = {key: message for key in ids if (message := self._waiting.get(key)) and not isinstance(message, str)}
        messages = [message for message in waiting.values() if not self._is_hung(message)]
        self.pulls.append(len(messages))
        for message in messages:
            self._waiting[message.metadata.message_id] = ""  # type: ignore[assignment]  # given out
        replies = []
        for message in messages:
            node, is_hello = message.metadata.dst_node_id, message.metadata.message_type == "query"
            if node in self.malformed and not is_hello:
                raise ValueError("malformed")
            numbers = {"num-examples": node, "train-loss": 0.5}
            if is_hello:
                numbers = {"partition-id": self.partitions[node]}
            reply = make_reply(message, () if is_hello else UPLOAD, numbers)
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(reply)
        return replies

    def _is_hung(self, message: Message) -> bool:  # once it has told its partition
        node, queue = message.metadata.dst_node_id, [m for m in self._waiting.values() if not isinstance(m, str)]
        return node in self.hung and any(
            m.metadata.dst_node_id == node and m.metadata.message_type == "train" for m in queue
        )


@pytest.fixture(scope="module")
def signer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "keys"
    write_keys(folder, make_keys(0))
    return Signer(folder / "signing.key", (folder / "signing.pub").read_text(), 1)


@pytest.fixture
def network_of(signer):
    """`(grid, partitions) -> network`, which has asked these partitions, if any, for a first round."""

    def make(grid: Any, partitions: Sequence[int] = ()) -> FlowerNetwork:
        nodes = {str(i): f"{fingerprint(KEYS[node])} clinic {node}" for i, node in enumerate((11, 22, 33))}
        network = FlowerNetwork(grid, nodes, 3, 60, signer)
        network.begin(ARRAYS, lambda partition: {"round": 0, "partition": partition})
        if partitions:
            network.connected()
            network.send(partitions)
        return network

    return make


def test_a_partition_is_its_keys_whoever_comes_first(network_of, caplog):
    flower_log = logging.getLogger("flwr")
    flower_log.addHandler(caplog.handler)
    grid = Grid({55: 0, 22: 0, 44: 7})
    network = network_of(grid)
    assert network.connected() == set()
    flower_log.removeHandler(caplog.handler)
    said, stranger = caplog.text, f"a key without a partition ({fingerprint(KEYS[55])})"
    assert f"a node with {stranger} left out: it claims partition 0 of clinic 11" in said
    assert "a node with the key of clinic 22 left out: it claims partition 0 of clinic 11" in said
    stranger = f"a key without a partition ({fingerprint(KEYS[44])})"
    assert f"a node with {stranger} left out: it claims partition 7 of nobody" in said
    grid.partitions[11] = 0
    assert network.connected() == {0}
    pulls = len(grid.pulls)
    assert network.connected() == {0} and sum(grid.pulls[pulls:]) == 0
    del grid.partitions[11]
    assert network.connected() == set()
    grid.partitions[11] = 0  # it was started again
    assert network.connected() == {0}


def test_a_silent_node_is_asked_again_once_it_answers_a_greeting(network_of):
    grid = Grid({11: 0, 22: 1}, hung=[22])
    network = network_of(grid, [0, 1])
    assert [a.partition for a in network.receive()] == [0]
    for _ in range(2):
        network.begin(ARRAYS, lambda partition: {"round": 1})
        assert network.connected() == {0}
        assert "did not answer" in network.absent(1)
    grid.hung.clear()
    assert network.connected() == {0, 1}
    grid.partitions.clear()
    assert network.connected() == set() and network.absent(1) == "not connected"


def test_sound_replies_are_fetched_in_one_pull(network_of):
    grid = Grid({11: 0, 22: 1, 33: 2})
    network = network_of(grid)
    network.connected()
    assert set(network.send([2, 0, 1])) == {0, 1, 2}
    grid.pulls.clear()
    arrived = network.receive()
    assert grid.pulls == [3] and {a.partition for a in arrived} == {0, 1, 2}
    assert network.names == {0: "clinic 11", 1: "clinic 22", 2: "clinic 33"}
    assert all(check_reply(a.reply, {"w": np.ones(2, np.float32)}, 100).loss == 0.5 for a in arrived)
    assert network.receive() == []


def test_a_malformed_reply_spoils_no_other(network_of):
    grid = Grid({11: 0, 22: 1, 33: 2}, malformed=[22])
    network = network_of(grid, [0, 1, 2])
    assert network.receive() == []  # it took the others with it, so all are asked again, each by itself
    arrived = {a.partition: a.reply for a in network.receive()}
    assert arrived.keys() == {0, 1, 2}
    assert [arrived[i].error for i in range(3)] == [None, "a message that cannot be read", None]
    network.begin(ARRAYS, lambda partition: {"round": 1})
    network.send([0, 1, 2])
    assert len(network.receive()) == 3


def test_a_superlink_that_is_down_is_no_nodes_fault_and_earlier_replies_are_not_taken(network_of):
    grid = Grid({11: 0})
    network = network_of(grid, [0])
    grid.is_down = True
    with pytest.raises(ConnectionError):
        network.receive()
    grid.is_down = False
    network.begin(ARRAYS, lambda partition: {"round": 1})
    assert network.receive() == []


def test_who_is_at_work_is_not_forgotten(network_of):
    network = network_of(Grid({11: 0, 22: 1}), [0, 1])
    network.begin(ARRAYS, lambda partition: {"round": 1}, at_work=[0])
    assert [a.partition for a in network.receive()] == [0]
    assert network.absent(0) == "not connected" != network.absent(1)


ORDER = ConfigRecord({"experiment": "0" * 32, "round": 1, "base": -1, "checkpoints": [0]})
NUMBERS = MetricRecord({"num-examples": 5, "train-loss": 0.5})
OTHER = [
    {}, {"arrays": to_record(ARRAYS)}, {"arrays": NUMBERS, "metrics": NUMBERS, "order": ORDER},
    {"arrays": to_record(ARRAYS), "metrics": ORDER, "order": NUMBERS},
    {"arrays": to_record(ARRAYS), "metrics": NUMBERS, "order": ORDER, "more": ArrayRecord()},
]  # fmt: skip


def message_with(content: RecordDict, sender: int = 11) -> Message:
    request = Message(RecordDict(), 11, "train")
    request.metadata.__dict__["_message_id"] = "1"
    reply = Message(content, reply_to=request)
    reply.metadata.__dict__["_src_node_id"] = sender
    return reply


@pytest.mark.parametrize("records", OTHER)
def test_a_message_with_other_records_is_refused_in_one_line(records):
    raw = read_reply(message_with(RecordDict({k: v for k, v in records.items() if k != "order"} | {"x": NUMBERS})), 11)
    with pytest.raises(WireError):
        check_reply(raw, {"w": np.ones(2, np.float32)}, 100)
    assert raw.error and "\n" not in raw.error
    request = RecordDict({k: v for k, v in records.items() if k != "metrics"} | {"x": NUMBERS})
    with pytest.raises(WireError, match="records"):
        read_records(request, "order", ConfigRecord)


def test_a_reply_under_another_nodes_name_is_refused():
    content = RecordDict({"arrays": to_record(ARRAYS), "metrics": NUMBERS})
    assert read_reply(message_with(content), 11) == RawReply(ARRAYS, NUMBERS)
    assert "sent by another node" in str(read_reply(message_with(content, sender=12), 11).error)
