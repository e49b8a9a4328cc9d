"""One server with many nodes on loopback, beside Flower's own FedAvg on the same nodes; and a large model on a few.

    python benchmarks/load.py                        # 100 nodes, 20 rounds, both servers
    python benchmarks/load.py --nodes 3 --megabytes 100 --rounds 5

SuperLink and ServerApp are Flower's own processes, with TLS and node authentication. The nodes are light: threads of
this process, each with its own key, connection, heartbeat and the SuperNode's polling every 3 s, which train in place
instead of starting a process for every message. Both servers' clients train alike, a perceptron of so many megabytes.
Figures are of this machine, whose cores nodes and server share.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supernode.fleet_http_connection import http_request_response

from fedoptax.algorithms import fedavg
from fedoptax.data.federated import FederatedData
from fedoptax.deploy.app import write_app
from fedoptax.deploy.client import NodeClient, Order, client_update
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.flower import ORDER, make_reply, read_records
from fedoptax.deploy.keys import describe_keys, make_keys, write_keys
from fedoptax.deploy.local import ADDRESS, LocalFederation, Process, last_words
from fedoptax.engine.batches import LocalWork
from fedoptax.tasks.task import Task

POLL = 3.0  # seconds, as in Flower's SuperNode
FEATURES, CLASSES, EXAMPLES = 64, 10, 20
ALGORITHM = fedavg(0.1)
TASK = '''"""A perceptron of a given size on synthetic examples."""

from load import make_task


def build(partition):
    return make_task({nodes}, {hidden})
'''
FEDAVG = '''"""Flower's own FedAvg on the same model."""

import jax
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from load import make_task

app = ServerApp()


@app.main()
def main(grid, context):
    params = jax.tree.leaves(make_task({nodes}, {hidden}).init(jax.random.key(0)))
    start = ArrayRecord([np.asarray(a) for a in params])
    nodes = {nodes}
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_evaluate_nodes=0, min_available_nodes=nodes)
    strategy.start(grid=grid, initial_arrays=start, num_rounds={rounds})
'''


def make_task(nodes: int, hidden: int) -> Task:
    """Make a federation of `nodes` clients with 20 examples each, and a perceptron with `hidden` units."""
    rng = np.random.default_rng(0)
    clients = [
        {
            "x": rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32),
            "y": rng.integers(0, CLASSES, EXAMPLES).astype(np.int32),
        }
        for _ in range(nodes)
    ]

    def init(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        return {
            "a": jax.random.normal(first, (FEATURES, hidden)) / FEATURES**0.5,
            "b": jax.random.normal(second, (hidden, CLASSES)) / hidden**0.5,
        }

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        logits = jnp.maximum(batch["x"] @ params["a"], 0) @ params["b"]
        right = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], 1)
        return -jnp.mean(right)

    def metrics(params: Any, batch: Any) -> dict[str, Any]:
        return {}

    return Task("load", init, loss, metrics, FederatedData.from_clients(clients))


class LightFederation(LocalFederation):
    """A SuperLink with registered keys, whose nodes are not started as processes."""

    def start_node(self, node: int, key: Path | None = None, ca: Path | None = None) -> Process:
        """Start nothing."""
        return self._superlink

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{ADDRESS}:{self.port}"


@dataclass
class Nodes:
    """The light nodes of a federation, and what they count: requests, and when training messages came."""

    work: Path
    count: int
    app: Callable[[int], ClientApp]
    address: str
    requests: int = 0
    came: list[float] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Nodes":
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._serve, args=(node,), daemon=True) for node in range(self.count)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join(4 * POLL)

    def _serve(self, node: int) -> None:
        keys = self.work / "keys"
        private = load_ssh_private_key((keys / f"node-{node}").read_bytes(), None)
        app, contexts = self.app(node), dict[int, Context]()
        ca = (keys / "ca.crt").read_bytes()
        with http_request_response(self.address, False, ca, (private, private.public_key())) as connection:
            node_id, receive, send, get_run, get_fab, pull, push, confirm = connection
            while not self.ended.is_set():
                self._note()
                if (given := receive()) is None:
                    self.ended.wait(POLL)
                    continue
                (message, tree), run_id = given, given[0].metadata.run_id
                if run_id not in contexts:
                    run = get_run(run_id)
                    config = get_fused_config_from_fab(get_fab(run.fab_hash, run_id).content, run)
                    settings = {"partition-id": node, "state-dir": str(self.work / "nodes" / str(node))}
                    contexts[run_id] = Context(run_id, node_id, settings, RecordDict(), config)
                    self._note(2)
                if message.metadata.message_type == "train":
                    self.came.append(time.perf_counter())
                ids = [each.object_id for each in iterate_object_tree(tree)]
                contents = pull_objects(ids, lambda one, of=run_id: pull(of, one))
                confirm(run_id, message.metadata.message_id)
                whole = inflate_object_from_contents(tree.object_id, contents)
                whole.metadata.__dict__["_message_id"] = message.metadata.message_id
                reply = app(whole, contexts[run_id])
                reply.metadata.__dict__["_message_id"] = reply.object_id
                with no_object_id_recompute():
                    objects, reply_tree = get_all_nested_objects(reply), get_object_tree(reply)
                wanted, session = send(reply, reply_tree, 0.0)
                for one in wanted:
                    push(run_id, session, one, objects[one].deflate())
                self._note(len(ids) + 2 + len(wanted))

    def _note(self, requests: int = 1) -> None:
        with self._lock:
            self.requests += requests


def own_app(task: Task, work: Path) -> Callable[[int], ClientApp]:
    """Make fedoptax's ClientApp of each node, without loading its task anew for every message."""

    def make(partition: int) -> ClientApp:
        app, client = ClientApp(), NodeClient(task, ALGORITHM, LocalWork(EXAMPLES), partition, 0)

        @app.query()
        def hello(message: Message, context: Context) -> Message:
            return make_reply(message, (), {"partition-id": partition})

        @app.train()
        def train(message: Message, context: Context) -> Message:
            arrays, order = read_records(message.content, ORDER, ConfigRecord)
            return make_reply(message, *client.compute(arrays, Order.read(order), work / "nodes" / str(partition)))

        return app

    return make


def flower_app(task: Task) -> Callable[[int], ClientApp]:
    """Make a ClientApp for Flower's FedAvg of each node, with the same training."""

    def make(partition: int) -> ClientApp:
        app, examples = ClientApp(), task.clients.client(partition)
        structure = jax.tree.structure(jax.eval_shape(task.init, jax.random.key(0)))

        @app.train()
        def train(message: Message, context: Context) -> Message:
            arrays = list(message.content["arrays"].to_numpy_ndarrays())
            params = jax.tree.unflatten(structure, arrays)
            update = client_update(task, ALGORITHM, LocalWork(EXAMPLES), EXAMPLES)
            numbers = (np.uint32(0), np.int32(0), np.int32(partition))
            order = ALGORITHM.broadcast(ALGORITHM.init(params))
            delta, _, loss = update(order, (), examples, numbers)
            new = [a + np.asarray(d) for a, d in zip(arrays, jax.tree.leaves(delta))]
            metrics = MetricRecord({"num-examples": EXAMPLES, "train-loss": float(loss)})
            return Message(RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=message)

        return app

    return make


def main() -> None:
    """Measure both servers and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--megabytes", type=float, default=0.1, help="of the model")
    args = parser.parse_args()
    hidden = max(1, round(args.megabytes * 1e6 / 4 / (FEATURES + CLASSES)))
    task = make_task(args.nodes, hidden)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    names = {"nodes": args.nodes, "hidden": hidden, "rounds": args.rounds}
    print("| server | s per round, median | first round | requests per s | server's memory at most, MB |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        keys = make_keys(args.nodes)
        write_keys(work / "keys", keys)
        deployment = Deployment(
            task={"name": "fedoptax_app.task:build"},
            algorithm="fedavg",
            hyperparameters={"client_lr": 0.1},
            rounds=args.rounds,
            cohort_size=args.nodes,
            batch_size=EXAMPLES,
            quorum=1.0,
            **describe_keys(keys),
            out=str(work / "out"),
        )
        write_app(work / "fedoptax", deployment)
        (work / "fedoptax" / "fedoptax_app" / "task.py").write_text(TASK.format(**names))
        write_app(work / "flower", deployment)
        (work / "flower" / "fedoptax_app" / "server_app.py").write_text(FEDAVG.format(**names))
        with LightFederation(work, args.nodes, time_limit=1500.0) as federation:
            for name, app in {"fedoptax": own_app(task, work), "flower": flower_app(task)}.items():
                with Nodes(work, args.nodes, app, federation.address) as nodes:
                    print(measure(federation, nodes, name, args.rounds), flush=True)


def measure(federation: LightFederation, nodes: Nodes, name: str, rounds: int) -> str:
    """Run the app in the folder of this name, and return its row."""
    processes, peak = psutil.Process(), 0

    def watch() -> None:
        nonlocal peak
        others = [each for each in processes.children(recursive=True) if each.is_running()]
        with suppress(psutil.NoSuchProcess):
            peak = max(peak, sum(each.memory_info().rss for each in others))

    begin, settings = time.perf_counter(), federation.work / "none.toml"
    settings.write_text("")
    federation.run(federation.work / name, settings, federation.work / f"{name}.log", watch)
    seconds = time.perf_counter() - begin
    if len(nodes.came) != rounds * nodes.count:
        raise SystemExit(f"{len(nodes.came)} messages: {last_words(federation.work / f'{name}.log')}")
    starts = nodes.came[:: nodes.count]
    each = [b - a for a, b in itertools.pairwise([*starts, nodes.came[-1]])]
    rate = nodes.requests / seconds
    return f"| {name} | {statistics.median(each[1:]):.2f} | {each[0]:.2f} | {rate:.0f} | {peak / 2**20:.0f} |"


if __name__ == "__main__":
    main()
