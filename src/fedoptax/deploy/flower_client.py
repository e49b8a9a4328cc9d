"""The Flower ClientApp: a partition of the task, any algorithm.

Flower starts a process for every message, so modules are imported only where they are needed and compiled programs are
kept in a cache on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

STATE = "fedoptax"  # our record in the context's state


def client_app(make_client: Callable[..., Any] | None = None) -> ClientApp:
    """The ClientApp of a deployment; its settings come from the app's config and the node's.

    Args:
      make_client: `(task, deployment, partition) -> fedoptax.deploy.client.Client`; None is `default_client`.

    A node's config has `partition-id`, and may have `state-dir` (a folder for the client's state that outlives the
    SuperNode; default `fedoptax-state` in Flower's home; empty for none) and `data-dir`.
    """
    app = ClientApp()

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        return Message(RecordDict({"hello": MetricRecord({"partition-id": _partition(context)})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _train(message, context, make_client)

    return app


def _train(message: Message, context: Context, make_client: Callable[..., Any] | None) -> Message:
    from fedoptax.engine.xla import use_cache

    use_cache(0.0)
    from fedoptax.deploy.client import Order, default_client, state_folder
    from fedoptax.deploy.config import build_task, from_table
    from fedoptax.deploy.flower_records import read_request, reply_content

    arrays, given = read_request(message.content)
    order = Order.read(given)
    deployment = from_table(context.run_config)
    partition = _partition(context)
    data_dir = context.node_config.get("data-dir")
    task = build_task(deployment, partition, None if data_dir is None else str(data_dir))
    client = (make_client or default_client)(task, deployment, partition)
    folder = state_folder(_state_dir(context), order, partition)
    answer = client.answer(arrays, order, _blobs(context, order.experiment), folder)
    context.state[STATE] = ConfigRecord({"experiment": order.experiment, **{str(r): b for r, b in answer.kept.items()}})
    return Message(reply_content(answer.arrays, answer.numbers), reply_to=message)


def _partition(context: Context) -> int:
    from fedoptax.errors import UsageError

    given = context.node_config.get("partition-id")
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise UsageError(f"node config: partition-id {given!r} given, allowed is a whole number >= 0")
    return given


def _state_dir(context: Context) -> str:
    home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    return str(context.node_config.get("state-dir", Path(home) / "fedoptax-state"))


def _blobs(context: Context, experiment: str) -> dict[int, bytes]:
    record = context.state.get(STATE)
    if not isinstance(record, ConfigRecord) or record.get("experiment") != experiment:
        return {}
    return {int(name): blob for name, blob in record.items() if name.isdecimal() and isinstance(blob, bytes)}
