"""The Flower ServerApp: a deployment's rounds over a Flower grid."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from logging import INFO
from typing import Any

import httpx
from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log as flower_log

from fedoptax.deploy.flower_records import read_reply, request, to_record, wire_bytes
from fedoptax.deploy.rounds import Arrived
from fedoptax.deploy.server import RawReply
from fedoptax.deploy.wire import WireArray, shown

HELLO_AGAIN = 30.0  # seconds until a node that did not say who it is gets asked again


def server_app() -> ServerApp:
    """The ServerApp of a deployment; its settings come from the app's config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from fedoptax.engine.xla import use_cache

        use_cache(0.0)
        from fedoptax.deploy.config import build_task, from_table
        from fedoptax.deploy.run import Run

        deployment = from_table(context.run_config)
        task = build_task(deployment)
        run = Run(deployment, task, say)
        ttl = max(deployment.round_timeout, deployment.wait_limit) + 60
        run.go(FlowerNetwork(grid, run.num_clients, ttl))

    return app


def say(line: str) -> None:
    """One line in the run's log."""
    logging.getLogger("flwr").propagate = False  # JAX's libraries give the root logger a handler: every line came twice
    flower_log(INFO, "%s", line)


class FlowerNetwork:
    """Flower's grid as a `Network`: partitions instead of node ids, one bad reply spoils no other.

    Args:
      grid: Flower's.
      num_clients: N; a node with a partition outside 0 … N − 1 is left out.
      ttl: seconds that a message lives.
    """

    def __init__(self, grid: Grid, num_clients: int, ttl: float) -> None:
        self._grid, self._num_clients, self._ttl = grid, num_clients, ttl
        self._partitions: dict[int, int] = {}  # of the nodes that said who they are
        self._greeted: dict[int, float] = {}
        self._hellos: dict[str, int] = {}
        self._online: set[int] = set()
        self._pending: dict[str, tuple[int, int]] = {}  # message id -> partition, node

    def begin(self, arrays: Mapping[str, WireArray], order: Callable[[int], Mapping[str, Any]]) -> None:
        """See `Network`."""
        self._arrays, self._order, self._pending = to_record(arrays), order, {}

    def connected(self) -> Mapping[int, str]:
        """See `Network`; nodes that are new are asked for their partition first."""
        self._online = set(self._grid.get_node_ids())
        now = time.monotonic()
        for node in self._online - self._partitions.keys():
            if now - self._greeted.get(node, -HELLO_AGAIN) >= HELLO_AGAIN:
                self._greeted[node] = now
                if sent := self._push(Message(RecordDict(), node, MessageType.QUERY, ttl=self._ttl)):
                    self._hellos[sent] = node
        for message_id, message in self._pull(self._hellos):
            self._meet(self._hellos.pop(message_id), message)
        return {partition: str(node) for node, partition in self._current().items()}

    def send(self, partition: int) -> int:
        """See `Network`."""
        node = {p: n for n, p in self._current().items()}.get(partition)
        if node is None:
            return 0
        order = self._order(partition)
        message = Message(
            request(self._arrays, order), node, MessageType.TRAIN, ttl=self._ttl, group_id=str(order["round"] + 1)
        )
        size = wire_bytes(message)
        if not (sent := self._push(message)):
            return 0
        self._pending[sent] = (partition, node)
        return size

    def receive(self) -> list[Arrived]:
        """See `Network`."""
        arrived = []
        for message_id, message in self._pull(self._pending):
            partition, node = self._pending.pop(message_id)
            if message is None:
                arrived.append(Arrived(partition, str(node), RawReply({}, {}, "a message that cannot be read"), 0))
                continue
            size = 0 if message.has_error() else wire_bytes(message)
            reply = read_reply(message)
            if not message.has_error() and message.metadata.src_node_id != node:
                reply = RawReply({}, {}, f"sent by node {message.metadata.src_node_id}")
            arrived.append(Arrived(partition, str(node), reply, size))
        return arrived

    def busy(self) -> set[int]:
        """See `Network`."""
        return {partition for partition, _ in self._pending.values()}

    def _current(self) -> dict[int, int]:
        """Node and partition of those online; of several nodes with one partition the one that was met first."""
        current: dict[int, int] = {}
        for node, partition in self._partitions.items():
            if node in self._online and partition not in current.values():
                current[node] = partition
        return current

    def _meet(self, node: int, message: Message | None) -> None:
        if message is None or message.has_error():
            reason = "cannot be read" if message is None else shown(message.error.reason)
            say(f"node {node} did not say which partition it has: {reason}")
            return
        record = message.content.get("hello") if isinstance(message.content, RecordDict) else None
        partition = record.get("partition-id") if isinstance(record, MetricRecord) else None
        if not isinstance(partition, int) or not 0 <= partition < self._num_clients:
            say(f"node {node} left out: partition {shown(partition)}, allowed is 0 to {self._num_clients - 1}")
            self._greeted[node] = float("inf")
            return
        if partition in self._current().values():
            say(f"node {node} left out: partition {partition} has a node already")
        self._partitions[node] = partition

    def _push(self, message: Message) -> str | None:
        return next(iter(self._grid.push_messages([message])), None)

    def _pull(self, ids: Mapping[str, Any]) -> list[tuple[str, Message | None]]:
        """The replies that are there to some of our messages, None for one that cannot be read."""
        found: list[tuple[str, Message | None]] = []
        for message_id in list(ids):  # one by one: a malformed reply takes with it all that are fetched along
            try:
                messages = list(self._grid.pull_messages([message_id]))
            except httpx.HTTPError:  # no word from the SuperLink
                raise
            except Exception:  # whatever the parser raises at foreign bytes
                found.append((message_id, None))
                continue
            found += [(message_id, m) for m in messages if m.metadata.reply_to_message_id == message_id]
        return found
