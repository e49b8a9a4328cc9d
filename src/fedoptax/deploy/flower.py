"""The Flower apps of a deployment: a ServerApp and a ClientApp, and the messages between them.

A message to a client has two records: `arrays`, the algorithm's message as `wire` packs it, and `order`; a reply has
`arrays`, the upload, and `metrics`.
"""

import logging
import os
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedoptax.algorithm import Tree
from fedoptax.data.datasets.source import Source
from fedoptax.deploy.client import NodeClient, Order, StateFolder, default_client
from fedoptax.deploy.config import TABLE, Deployment, build_task, from_table, simulation_command
from fedoptax.deploy.deployment import run_deployment
from fedoptax.deploy.evaluation import evaluate_client
from fedoptax.deploy.keys import fingerprint
from fedoptax.deploy.orders import Signer, check_order, digest_of
from fedoptax.deploy.rounds import Arrived, Limits, MakeOrder
from fedoptax.deploy.secure import Numbers, answer, encode_upload, threshold
from fedoptax.deploy.server import RawReply
from fedoptax.deploy.supernode import shorten_backoff
from fedoptax.deploy.tables import add_up_own, build_table_task, encode_sums, read_own
from fedoptax.deploy.wire import REASON, WireError, pack, quote
from fedoptax.deploy.worker import end_after_reply
from fedoptax.engine.aggregation import SecureMean
from fedoptax.engine.xla import use_cache
from fedoptax.errors import UsageError, check_int
from fedoptax.tasks.task import Task

ARRAYS, ORDER, METRICS, SECURE = "arrays", "order", "metrics", "secure"
Pairs = frozenset[tuple[str, Any]]
MakeClient = Callable[[Task, Deployment, int], NodeClient]

flower_log = logging.getLogger("flwr")


def server_app() -> ServerApp:
    """Return the ServerApp of a deployment; its settings come from the app's config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        use_cache(0.0)
        shorten_backoff()
        grid._retry_invoker.max_time = 30.0  # seconds; by default the app asks a SuperLink that has ended for ever
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
        run_deployment(deployment, task, FlowerNetwork(grid, deployment.nodes, count, ttl, signer), flower_log.info)

    return app


class Node:
    """What a node loads once in a run: its settings, its table if it has one, and its client; see `client_app`."""

    def __init__(self, make_client: MakeClient, run: int, settings: Pairs, place: Pairs) -> None:
        use_cache(0.0)
        self.deployment, self._place, self._make_client = from_table(dict(settings)), dict(place), make_client
        self.partition = check_int("partition-id", self._place.get("partition-id"), 0)
        home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
        self.states = Path(str(self._place.get("state-dir") or home / "fedoptax-state")).expanduser()
        self._client: NodeClient | None = None

    @cached_property
    def source(self) -> Source:
        """Its table."""
        return read_own(self.deployment, self._place.get("data-file"))

    def client(self, prepared: Any = None) -> NodeClient:
        """Return its client; `prepared` is what orders have for tables, see `tables.gather_statistics`."""
        if self._client is None:
            if self.deployment.task["name"] == TABLE:
                task = build_table_task(self.deployment, str(prepared), self.source)
            else:
                task = build_task(self.deployment, self.partition, self._place.get("data-dir"))
            self._client = self._make_client(task, self.deployment, self.partition)
        return self._client

    def answer(self, kind: str, arrays: bytes, fields: Mapping[str, Any], records: Any) -> tuple[Tree, Numbers]:
        """Do what a signed order says; `records` keep what secure aggregation remembers, for this run only."""
        deployment = self.deployment
        if kind == MessageType.QUERY:
            if deployment.task["name"] != TABLE:
                self.client()  # before the first round asks for work
            return (), {"partition-id": self.partition}
        order = Order.read(fields)
        if fields.get("ends") is True:
            end_after_reply()
        StateFolder(self.states, order.experiment, self.partition).accept(order)
        encode: Any = encode_sums
        place = "statistics" if "statistics" in fields else SECURE  # memories of their own: both have rounds 0 and 1
        if "statistics" in fields:
            examples, cohort_size = len(self.source.train["y"]), len(deployment.nodes)
            compute: Any = partial(add_up_own, deployment, self.source, str(fields["statistics"]))
        else:
            client, cohort_size = self.client(fields.get("prepared")), deployment.cohort_size
            if kind == MessageType.EVALUATE:
                return evaluate_client(client, arrays, order, self.states)
            examples = int(client.task.weights[client.place])
            compute = partial(client.compute, arrays, order, self.states)
            encode = partial(encode_upload, client.algorithm, SecureMean(deployment.secure_aggregation or 0.0))
        if deployment.secure_aggregation is None:
            return compute()
        minimum, memory = threshold(cohort_size, Limits(deployment.quorum)), dict(records.get(place, {}))
        asked = self.partition, minimum, arrays, fields, memory, examples
        sent = answer(*asked, lambda weight: encode(weight, *compute()))
        records[place] = ConfigRecord(memory)
        return sent


def client_app(make_client: MakeClient = default_client) -> ClientApp:
    """Return the ClientApp of a deployment; its settings come from the app's config and the node's.

    A node's config has `partition-id`, and may have `state-dir` (a folder for the client's state; default
    `fedoptax-state` in Flower's home), `data-dir` and `data-file`. It does nothing that the server has not signed.
    """
    app = ClientApp()
    open_node = lru_cache(maxsize=1)(partial(Node, make_client))  # it stays where the process does, see `worker`

    def handle(message: Message, context: Context) -> Message:
        arrays, order = read_records(message.content, ORDER, ConfigRecord)
        kind, run, settings = message.metadata.message_type, context.run_id, context.run_config
        check_order(str(settings.get("server-key", "")), order, arrays, run, context.node_id, kind)
        node = open_node(run, frozenset(settings.items()), frozenset(context.node_config.items()))
        return make_reply(message, *node.answer(kind, arrays, order, context.state.config_records))

    for register in (app.query, app.train, app.evaluate):
        register()(handle)
    return app


class FlowerNetwork:
    """Flower's grid as a `rounds.Network`: partitions instead of node ids, one bad reply spoils no other.

    A node takes part if the partition that it claims is its key's: the SuperLink has checked that it holds the key.
    `nodes` says which key holds which partition, see `Deployment`; those from `num_clients` on are left out. A message
    lives for `ttl` seconds.
    """

    def __init__(self, grid: Grid, nodes: Mapping[str, Any], num_clients: int, ttl: float, signer: Signer) -> None:
        self._grid, self._ttl, self._signer = grid, ttl, signer
        entries = {int(i): str(entry).partition(" ") for i, entry in nodes.items() if int(i) < num_clients}
        self._places = {key: partition for partition, (key, _, _) in entries.items()}  # partitions by fingerprint
        names = {partition: name or key for partition, (key, _, name) in entries.items()}
        self.names: Mapping[int, str] = dict.fromkeys(range(num_clients), "nobody") | names
        self._keys: dict[int, bytes] = {}  # public keys of the nodes that are connected
        self._greeted: set[int] = set()  # nodes already asked for their partition
        self._partitions: dict[int, int] = {}  # by node
        self._asked: dict[str, tuple[int | None, int]] = {}  # partition, None for a greeting, and node by message
        self._arrived: list[Arrived] = []
        self._silent: dict[int, int] = {}  # partitions by node that did not answer a round, nor the greeting since
        self._is_cautious = False
        self.begin(b"", lambda partition: {})

    def begin(self, arrays: bytes, order: MakeOrder, kind: str = "train", at_work: Container[int] = ()) -> None:
        """See `Network`.

        A node that owes a reply which is forgotten is greeted like a new one, and asked for work once it answers: nodes
        take one message after another. So are nodes whose greeting failed.
        """
        forgotten = [i for i in self.names if i not in at_work]
        self._silent |= {node: i for i, node in self._asked.values() if i in forgotten}
        self._asked = {key: target for key, target in self._asked.items() if target[0] not in forgotten}
        self._arrived = [reply for reply in self._arrived if reply.partition not in forgotten]
        self._partitions = {node: i for node, i in self._partitions.items() if node not in self._silent}
        self._greeted = {*self._partitions, *(node for partition, node in self._asked.values() if partition is None)}
        self._message, self._order, self._kind = (to_record(arrays), digest_of(arrays)), order, kind

    def connected(self) -> Collection[int]:
        """See `Network`; new nodes are asked for their partition first."""
        self._keys = {node.node_id: node.public_key for node in self._grid.get_nodes()}
        online = set(self._keys)
        self._greeted &= online
        self._greet(online - self._greeted)
        if any(partition is None for partition, _ in self._asked.values()):
            self._pull()
        self._partitions = {node: partition for node, partition in self._partitions.items() if node in online}
        return set(self._partitions.values())

    def absent(self, partition: int) -> str:
        """See `Network`."""
        is_silent = partition in self._silent.values()
        return "not asked: it did not answer since an earlier round" if is_silent else "not connected"

    def send(self, partitions: Sequence[int]) -> Collection[int]:
        """See `Network`."""
        nodes = {partition: node for node, partition in self._partitions.items()}
        targets = {partition: nodes[partition] for partition in partitions if partition in nodes}
        return self._push(targets.items(), self._order, self._kind, *self._message)

    def receive(self) -> list[Arrived]:
        """See `Network`."""
        self._pull()
        arrived, self._arrived = self._arrived, []
        return arrived

    def _greet(self, nodes: Iterable[int]) -> None:
        targets = [(None, node) for node in sorted(nodes)]
        self._push(targets, lambda partition: {}, MessageType.QUERY, to_record(b""), digest_of(b""))
        self._greeted |= set(nodes)

    def _push(
        self, targets: Collection[tuple[Any, int]], order: MakeOrder, kind: str, arrays: ArrayRecord, digest: str
    ) -> list[Any]:
        """Send orders, signed, to partitions and their nodes; return those partitions whose message was taken."""
        orders = [self._signer.sign(order(partition), kind, node, digest) for partition, node in targets]
        contents = [RecordDict({ARRAYS: arrays, ORDER: ConfigRecord(signed)}) for signed in orders]
        messages = [Message(content, node, kind, ttl=self._ttl) for content, (_, node) in zip(contents, targets)]
        ids = self._grid.push_messages(messages) if messages else []
        sent = {key: target for key, target in zip(ids, targets) if key}
        self._asked |= sent
        return [partition for partition, _ in sent.values()]

    def _pull(self) -> None:
        """Take in the replies that have come.

        One pull fetches all. A malformed reply raises and takes with it all that are fetched along, and the SuperLink
        gives none out twice: the messages are repeated, and from then on each reply is fetched by itself.
        """
        for keys in [[key] for key in self._asked] if self._is_cautious else [list(self._asked)]:
            try:
                messages = self._grid.pull_messages(keys) if keys else []
                replies = {message.metadata.reply_to_message_id: message for message in messages}
            except Exception:  # whatever Flower's parser raises
                self._grid.get_node_ids()  # raises too if it is the SuperLink that does not answer
                if not self._is_cautious:
                    flower_log.info("a reply cannot be read: from now on replies are fetched one by one")
                    self._is_cautious = True
                    again, self._asked = list(self._asked.values()), {}
                    self._greet([node for partition, node in again if partition is None])
                    self.send([partition for partition, _ in again if partition is not None])
                    return
                replies = {keys[0]: None}
            for key, message in replies.items():
                if key not in self._asked:
                    continue
                partition, node = self._asked.pop(key)
                if partition is None:
                    self._meet(node, read_reply(message, node))
                else:
                    self._arrived.append(Arrived(partition, read_reply(message, node)))

    def _meet(self, node: int, reply: RawReply) -> None:
        """Let a node that answered its greeting take part, if the partition that it claims is its key's."""
        key = fingerprint(self._keys[node]) if self._keys.get(node) else "none"
        place, claim = self._places.get(key), reply.numbers.get("partition-id")
        if reply.error is None and place is not None and claim == place:
            self._partitions[node] = place
            self._silent.pop(node, None)
            return
        fault = f"sent no partition: {reply.error}"
        if reply.error is None:
            owner = self.names.get(claim, "nobody") if isinstance(claim, int) else "nobody"
            fault = f"left out: it claims partition {quote(claim)} of {owner}"
        holder = f"a key without a partition ({key})" if place is None else f"the key of {self.names[place]}"
        flower_log.info("a node with %s %s", holder, fault)


def to_record(arrays: bytes) -> ArrayRecord:
    """Return packed arrays as one ArrayRecord."""
    return ArrayRecord({ARRAYS: Array("uint8", (len(arrays),), "fedoptax", arrays)})


def make_reply(message: Message, upload: Tree, numbers: Numbers) -> Message:
    """Return a node's reply to a message."""
    content = RecordDict({ARRAYS: to_record(pack(upload)), METRICS: MetricRecord(numbers)})
    return Message(content, reply_to=message)


def read_records(content: RecordDict, name: str, kind: type[Any]) -> tuple[bytes, dict[str, Any]]:
    """Return the arrays of a message and its other record, `name` of type `kind`, unchecked; else a `WireError`."""
    arrays: Any = content.get(ARRAYS)
    record = content.get(name)
    has_arrays = isinstance(arrays, ArrayRecord) and list(arrays) == [ARRAYS]
    if len(content) != 2 or not has_arrays or not isinstance(record, kind):
        raise WireError(f"records {quote(list(content))} instead of '{ARRAYS}' and '{name}'")
    return arrays[ARRAYS].data, dict(record)


def read_reply(message: Message | None, node: int) -> RawReply:
    """Return the content of a reply, unchecked; anything else becomes a reply with an error."""
    if message is None:
        return RawReply(b"", {}, "a message that cannot be read")
    if message.has_error():
        return RawReply(b"", {}, f"error {message.error.code}: {quote(message.error.reason, REASON)}")
    if message.metadata.src_node_id != node:
        return RawReply(b"", {}, "sent by another node")
    try:
        return RawReply(*read_records(message.content, METRICS, MetricRecord))
    except Exception as error:  # untrusted content in whatever form
        return RawReply(b"", {}, f"{type(error).__name__}: {quote(error, REASON)}")
