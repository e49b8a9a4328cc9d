"""The Flower apps of a deployment: a ServerApp and a ClientApp, and the messages between them.

A message to a client has two records: `arrays`, the algorithm's message as `wire` packs it, and `order`; a reply has
`arrays`, the upload, and `metrics`.
"""

import logging
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedoptax.data.datasets.source import Source
from fedoptax.deploy.client import Client, Order, StateFolder, default_client
from fedoptax.deploy.config import TABLE, Deployment, build_task, from_table, simulation_command
from fedoptax.deploy.evaluation import evaluate_client
from fedoptax.deploy.keys import fingerprint
from fedoptax.deploy.orders import Signer, check_order, digest_of
from fedoptax.deploy.rounds import Arrived, Limits, MakeOrder
from fedoptax.deploy.run import run_deployment
from fedoptax.deploy.secure import Contribute, answer, code_upload, threshold
from fedoptax.deploy.server import RawReply
from fedoptax.deploy.supernode import shorten_backoff
from fedoptax.deploy.tables import answer_statistics, build_table_task, code_statistics, read_own
from fedoptax.deploy.wire import REASON, WireError, shown
from fedoptax.deploy.worker import end_after_reply
from fedoptax.engine.aggregation import SecureMean
from fedoptax.engine.xla import use_cache
from fedoptax.errors import UsageError, check_int
from fedoptax.tasks.task import Task

ARRAYS, ORDER, METRICS, HELLO, SECURE = "arrays", "order", "metrics", "hello", "secure"
MakeClient = Callable[[Task, Deployment, int], Client]

flower_log = logging.getLogger("flwr")


def server_app() -> ServerApp:
    """Return the ServerApp of a deployment; its settings come from the app's config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        use_cache(0.0)
        shorten_backoff()
        flower_log.propagate = False  # JAX's libraries give the root logger a handler: every line came twice
        deployment = from_table(context.run_config)
        if not deployment.nodes:
            raise UsageError("config: nodes is missing, the table that fedoptax deploy init writes")
        tables = [key for key in context.run_config if key.startswith("hyperparameters.")]
        if others := [key for key in tables if not key.startswith(f"hyperparameters.{deployment.algorithm}.")]:
            flower_log.info("not used, as the algorithm is %s: %s", deployment.algorithm, ", ".join(others))
        if command := simulation_command(deployment):
            flower_log.info("the same in simulation: %s", command)
        task = None if deployment.task["name"] == TABLE else build_task(deployment)
        count = len(deployment.nodes) if task is None else task.clients.num_clients
        ttl = max(deployment.round_timeout, deployment.wait_limit) + 60
        signer = Signer(Path(deployment.signing_key), deployment.server_key, context.run_id)
        network = FlowerNetwork(grid, deployment.nodes, count, ttl, signer)
        run_deployment(deployment, task, network, flower_log.info)

    return app


def client_app(make_client: MakeClient = default_client) -> ClientApp:
    """Return the ClientApp of a deployment; its settings come from the app's config and the node's.

    A node's config has `partition-id`, and may have `state-dir` (a folder for the client's state; default
    `fedoptax-state` in Flower's home) and `data-dir`. It does nothing that the server has not signed.

    Args:
      make_client: makes the client of a partition.
    """
    app = ClientApp()

    @lru_cache(maxsize=1)  # data and compiled functions stay where the process does, see `worker`
    def load_table(settings: frozenset[tuple[str, Any]], file: Any) -> tuple[Deployment, Source]:
        deployment = from_table(dict(settings))
        return deployment, read_own(deployment, file)

    @lru_cache(maxsize=1)
    def load_once(
        settings: frozenset[tuple[str, Any]], partition: int, data_dir: Any, file: Any, prepared: str
    ) -> tuple[Deployment, Client]:
        use_cache(0.0)
        deployment = from_table(dict(settings))
        if deployment.task["name"] == TABLE:
            task = build_table_task(deployment, prepared, load_table(settings, file)[1])
        else:
            task = build_task(deployment, partition, None if data_dir is None else str(data_dir))
        return deployment, make_client(task, deployment, partition)

    def load(context: Context, order: Mapping[str, Any] = {}) -> tuple[Deployment, Client]:
        settings, node = frozenset(context.run_config.items()), context.node_config
        files = node.get("data-dir"), node.get("data-file")
        return load_once(settings, _partition(context), *files, str(order.get("prepared", "")))

    def read(message: Message, context: Context) -> tuple[bytes, dict[str, Any]]:
        arrays, order = read_records(message.content, ORDER, ConfigRecord)
        addressee = context.run_id, context.node_id, message.metadata.message_type
        check_order(str(context.run_config.get("server-key", "")), order, arrays, *addressee)
        return arrays, order

    def accept(message: Message, context: Context) -> tuple[bytes, dict[str, Any]]:
        arrays, order = read(message, context)
        request = Order.read(order)
        if order.get("ends") is True:
            end_after_reply()
        StateFolder(_state_dir(context), request.experiment, _partition(context)).accept(request)
        return arrays, order

    def take_part(
        context: Context, deployment: Deployment, request: tuple[bytes, dict[str, Any]], examples: int,
        contribute: Contribute,
    ) -> RawReply:  # fmt: skip
        cohort_size = len(deployment.nodes) if "statistics" in request[1] else deployment.cohort_size
        minimum = threshold(cohort_size, Limits(deployment.quorum))
        memory = dict(context.state.config_records.get(SECURE, {}))
        sent = answer(_partition(context), minimum, *request, memory, examples, contribute)
        context.state.config_records[SECURE] = ConfigRecord(memory)  # in the node's memory, for this run only
        return sent

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        read(message, context)
        if context.run_config.get("task.name") != TABLE:
            load(context)  # before the first round asks for work
        return Message(RecordDict({HELLO: MetricRecord({"partition-id": _partition(context)})}), reply_to=message)

    def reply(message: Message, answer: RawReply) -> Message:
        content = RecordDict({ARRAYS: to_record(answer.arrays), METRICS: MetricRecord(dict(answer.numbers))})
        return Message(content, reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays, order = accept(message, context)
        (deployment, client), root = load(context, order), _state_dir(context)
        if deployment.secure_aggregation is None:
            return reply(message, client.answer(arrays, Order.read(order), root))
        coding = SecureMean(float(deployment.secure_aggregation))
        contribute = code_upload(client, coding, arrays, Order.read(order), root)
        examples = len(next(iter(client.examples().values())))
        return reply(message, take_part(context, deployment, (arrays, order), examples, contribute))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        arrays, order = accept(message, context)
        if (first := order.get("statistics")) is None:
            _, client = load(context, order)
            return reply(message, evaluate_client(client, arrays, Order.read(order), _state_dir(context)))
        settings, file = frozenset(context.run_config.items()), context.node_config.get("data-file")
        deployment, source = load_table(settings, file)
        if deployment.secure_aggregation is None:
            return reply(message, answer_statistics(deployment, source, str(first)))
        contribute = code_statistics(deployment, source, str(first))
        return reply(message, take_part(context, deployment, (arrays, order), len(source.train["y"]), contribute))

    return app


class FlowerNetwork:
    """Flower's grid as a `rounds.Network`: partitions instead of node ids, one bad reply spoils no other.

    A node takes part if the partition that it claims is its key's: the SuperLink has checked that it holds the key.

    Args:
      grid: Flower's.
      nodes: which key holds which partition, see `Deployment`.
      num_clients: N; a node with a partition outside 0 … N − 1 is left out.
      ttl: seconds that a message lives.
    """

    def __init__(self, grid: Grid, nodes: Mapping[str, Any], num_clients: int, ttl: float, signer: Signer) -> None:
        self._grid, self._num_clients, self._ttl, self._signer = grid, num_clients, ttl, signer
        entries = {int(partition): str(entry).partition(" ") for partition, entry in nodes.items()}
        self._places = {key: partition for partition, (key, _, _) in entries.items()}  # partitions by fingerprint
        self._names = {partition: name or key for partition, (key, _, name) in entries.items()}
        self._keys: dict[int, bytes] = {}  # public keys of the nodes that are connected
        self._greeted: set[int] = set()  # nodes already asked for their partition
        self._partitions: dict[int, int] = {}  # by node
        self._hellos: dict[str, int] = {}  # nodes by message
        self._pending: dict[str, tuple[int, int]] = {}  # partition and node by message that is not forgotten
        self._silent: dict[int, int] = {}  # partitions by node that did not answer a round, nor the greeting since
        self._is_cautious = False

    def begin(self, arrays: bytes, order: MakeOrder, kind: str = "train", at_work: Container[int] = ()) -> None:
        """See `Network`.

        A node that owes a reply which is forgotten is greeted like a new one, and asked for work once it answers: nodes
        take one message after another. So are nodes whose greeting failed.
        """
        pending = self._pending.items()
        self._silent |= {node: partition for _, (partition, node) in pending if partition not in at_work}
        self._pending = {key: target for key, target in pending if target[0] in at_work}
        self._partitions = {node: i for node, i in self._partitions.items() if node not in self._silent}
        self._greeted = {*self._partitions, *self._hellos.values()}
        self._arrays, self._digest, self._order, self._kind = to_record(arrays), digest_of(arrays), order, kind

    def connected(self) -> Mapping[int, str]:
        """See `Network`; new nodes are asked for their partition first."""
        self._keys = {node.node_id: node.public_key for node in self._grid.get_nodes()}
        online = set(self._keys)
        self._greeted &= online
        self._greet(online - self._greeted)
        for message_id, message in self._pull(self._hellos, self._greet).items():
            self._meet(self._hellos.pop(message_id), message)
        self._partitions = {node: partition for node, partition in self._partitions.items() if node in online}
        return {partition: self._names[partition] for partition in self._partitions.values()}

    def absent(self, partition: int) -> tuple[str, str]:
        """See `Network`."""
        is_silent = partition in self._silent.values()
        reason = "not asked: it did not answer since an earlier round" if is_silent else "not connected"
        return self._names.get(partition, "?"), reason

    def send(self, partitions: Sequence[int]) -> Mapping[int, int]:
        """See `Network`."""
        nodes = {partition: node for node, partition in self._partitions.items()}
        to = [(partition, nodes[partition]) for partition in partitions if partition in nodes]
        orders = [(node, self._order(partition)) for partition, node in to]
        sent = self._push(orders, self._kind, self._arrays, self._digest)
        self._pending |= {message_id: target for target, (message_id, _) in zip(to, sent) if message_id}
        return {partition: size for (partition, _), (message_id, size) in zip(to, sent) if message_id}

    def receive(self) -> list[Arrived]:
        """See `Network`."""
        arrived, again = [], lambda targets: self.send([partition for partition, _ in targets])
        for message_id, message in self._pull(self._pending, again).items():
            partition, node = self._pending.pop(message_id)
            size, reply = read_reply(message, node)
            arrived.append(Arrived(partition, self._names[partition], reply, size))
        return arrived

    def _greet(self, nodes: Iterable[int]) -> None:
        nodes = sorted(nodes)
        sent = self._push([(node, {}) for node in nodes], MessageType.QUERY, to_record(b""), digest_of(b""))
        self._hellos |= {message_id: node for node, (message_id, _) in zip(nodes, sent) if message_id}
        self._greeted |= set(nodes)

    def _push(
        self, orders: Sequence[tuple[int, Mapping[str, Any]]], kind: str, arrays: ArrayRecord, digest: str
    ) -> list[tuple[str | None, int]]:
        """Send nodes their orders, signed; return the id of each message (None if it was not taken) and its bytes."""
        signed = [self._signer.sign(order, kind, node, digest) for node, order in orders]
        contents = [RecordDict({ARRAYS: arrays, ORDER: ConfigRecord(order)}) for order in signed]
        messages = [Message(content, node, kind, ttl=self._ttl) for content, (node, _) in zip(contents, orders)]
        sent = self._grid.push_messages(messages) if messages else []
        return list(zip(sent, map(count_bytes, contents)))

    def _meet(self, node: int, message: Message | None) -> None:
        key = fingerprint(self._keys[node]) if self._keys.get(node) else "none"
        place = self._places.get(key)
        holder = f"a key without a partition ({key})" if place is None else f"the key of {self._names[place]}"
        record = None if message is None or message.has_error() else message.content.get(HELLO)
        partition = record.get("partition-id") if isinstance(record, MetricRecord) else None
        if message is None or message.has_error():
            reason = "it cannot be read" if message is None else shown(message.error.reason, REASON)
            fault = f"sent no partition: {reason}"
        elif not isinstance(partition, int) or not 0 <= partition < self._num_clients:
            fault = f"left out: partition {shown(partition)} instead of 0 to {self._num_clients - 1}"
        elif place != partition:
            fault = f"left out: it claims partition {partition} of {self._names.get(partition, 'nobody')}"
        else:
            self._partitions[node] = partition
            self._silent.pop(node, None)
            return
        flower_log.info("a node with %s %s", holder, fault)

    def _pull(self, pending: dict[str, Any], repeat: Callable[[list[Any]], Any]) -> dict[str, Message | None]:
        """Return the replies that have come by the id of our message; None for one that cannot be read.

        One pull fetches all. A malformed reply raises and takes with it all that are fetched along, and the SuperLink
        gives none out twice: the messages are repeated, and from then on each reply is fetched by itself.
        """
        if not self._is_cautious:
            try:
                return self._fetch(pending, list(pending))
            except Exception:  # whatever Flower's parser raises
                self._grid.get_node_ids()  # raises too if it is the SuperLink that does not answer
                flower_log.info("a reply cannot be read: from now on replies are fetched one by one")
                self._is_cautious = True
                again = list(pending.values())
                pending.clear()
                repeat(again)
                return {}
        replies: dict[str, Message | None] = {}
        for message_id in pending:
            try:
                replies |= self._fetch(pending, [message_id])
            except Exception:
                self._grid.get_node_ids()
                replies[message_id] = None
        return replies

    def _fetch(self, pending: Mapping[str, Any], message_ids: list[str]) -> dict[str, Message | None]:
        messages = self._grid.pull_messages(message_ids) if message_ids else []
        return {key: message for message in messages if (key := message.metadata.reply_to_message_id) in pending}


def to_record(arrays: bytes) -> ArrayRecord:
    """Return packed arrays as one ArrayRecord."""
    return ArrayRecord({ARRAYS: Array("uint8", (len(arrays),), "fedoptax", arrays)})


def read_records(content: RecordDict, name: str, kind: type[Any]) -> tuple[bytes, dict[str, Any]]:
    """Return the arrays of a message and its other record, `name` of type `kind`, unchecked.

    Raises:
      WireError: it does not have exactly these.
    """
    arrays: Any = content.get(ARRAYS)
    record = content.get(name)
    has_arrays = isinstance(arrays, ArrayRecord) and list(arrays) == [ARRAYS]
    if len(content) != 2 or not has_arrays or not isinstance(record, kind):
        raise WireError(f"records {shown(list(content))} instead of '{ARRAYS}' and '{name}'")
    return arrays[ARRAYS].data, dict(record)


def read_reply(message: Message | None, node: int) -> tuple[int, RawReply]:
    """Return a reply's bytes and its content, unchecked; anything else becomes a reply with an error."""
    if message is None:
        return 0, RawReply(b"", {}, "a message that cannot be read")
    if message.has_error():
        return 0, RawReply(b"", {}, f"error {message.error.code}: {shown(message.error.reason, REASON)}")
    if message.metadata.src_node_id != node:
        return 0, RawReply(b"", {}, "sent by another node")
    try:
        return count_bytes(message.content), RawReply(*read_records(message.content, METRICS, MetricRecord))
    except Exception as error:  # untrusted content in whatever form
        return 0, RawReply(b"", {}, f"{type(error).__name__}: {shown(error, REASON)}")


def count_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's arrays, numbers and their names, as they are serialised."""
    return sum(record.count_bytes() for record in content.values())


def _partition(context: Context) -> int:
    return check_int("partition-id", context.node_config.get("partition-id"), 0)


def _state_dir(context: Context) -> Path:
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    return Path(str(context.node_config.get("state-dir") or home / "fedoptax-state")).expanduser()
