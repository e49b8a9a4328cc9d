"""Evaluation where the data are: nodes evaluate the model on their test examples and send sums.

The server adds them up, so a metric is what it would be over all these examples together. No score of an example
travels: a metric of collected scores is replaced by its binned one.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedoptax._files import finite_or_none
from fedoptax.algorithm import Tree
from fedoptax.deploy.client import NodeClient, Order
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.rounds import Limits, Log, MakeOrder, Network, NoQuorum, RoundReport, Sleep, gather
from fedoptax.deploy.server import RawReply, Reply, check_count
from fedoptax.deploy.wire import pack, unpack
from fedoptax.engine.evaluation import describe_metrics, evaluation_data, metric_values, sum_metrics
from fedoptax.engine.options import is_evaluated
from fedoptax.errors import RunError, UsageError
from fedoptax.storage.history import Row
from fedoptax.tasks.metrics import Column
from fedoptax.tasks.task import Batch, Task, jit

KIND = "evaluate"  # of the messages


@lru_cache(maxsize=4)
def of_sums(task: Task) -> Task:
    """Return a task with all metrics computed from sums; one that collects scores and has no bins is a `UsageError`."""
    for name, metric in describe_metrics(task).items():
        if metric.is_collected and metric.binned is None:
            raise UsageError(f"metric '{name}' needs `binned` in a deployment, where scores of examples are not sent")

    def metrics(params: Tree, batch: Batch) -> dict[str, Any]:
        values = task.metrics(params, batch)
        return {name: getattr(value, "binned", None) or value for name, value in values.items()}

    return replace(task, metrics=metrics)


@lru_cache(maxsize=4)
def compile_test_sums(task: Task, partition: int) -> tuple[Callable[[Tree], Tree], int]:
    """Return `params -> sums` of the metrics over the test examples of one client, and how many these are.

    They are those that it owns; all where none has an owner. A client without any is a `RunError`.
    """
    test = task.test or {}
    if task.test_owners is not None and (task.clients.num_clients > 1 or partition in task.test_owners):
        test = {name: np.asarray(a)[np.asarray(task.test_owners) == partition] for name, a in test.items()}
    if not any(len(array) for array in test.values()):
        raise RunError(f"partition {partition} has no test examples")
    task = replace(of_sums(task), test=test, test_owners=None, validation=None)
    data, compute = evaluation_data(task)["test"], jit(task, partial(sum_metrics, task))
    return lambda params: compute(params, data), len(next(iter(test.values())))


def evaluate_client(client: NodeClient, arrays: bytes, order: Order, root: Path) -> tuple[Tree, dict[str, Any]]:
    """Return a node's sums and counts for the parameters in a message, with its personal ones in their places.

    A message without parameters of the task is a `WireError`, a node without test examples a `RunError`.
    """
    compute_sums, size = compile_test_sums(client.task, client.partition)
    params = unpack(arrays, jax.eval_shape(client.task.init, jax.random.key(0)))
    if client.algorithm.client_params is not None:
        params = client.algorithm.client_params(params, client.read_state(order, root)[0])
    return jax.device_get(compute_sums(params)), {"num-examples": size}


class NodeEvaluation:
    """The server's side: the nodes that evaluate in a round, and the history's columns from their replies.

    `task` is the server's; `deployment` has `eval_fraction` > 0.
    """

    def __init__(self, deployment: Deployment, task: Task) -> None:
        self._deployment, self._task = deployment, of_sums(task)
        metrics = describe_metrics(self._task)
        values = {name: metric.values for name, metric in metrics.items()}
        self._form = jax.tree.map(lambda rows: jax.ShapeDtypeStruct(rows.shape[1:], np.float32), values)
        bounded = {name: metric.bound for name, metric in metrics.items() if metric.bound is not None}
        self._bounds = {str(Column("nodes", name, "bound")): (name, bound) for name, bound in bounded.items()}
        self._columns = sorted([str(Column("nodes", name)) for name in metrics] + list(self._bounds))

    def measure(
        self, round: int, params: Tree, network: Network, order: MakeOrder, limits: Limits, log: Log, sleep: Sleep
    ) -> tuple[Row, RoundReport]:
        """Ask this round's nodes; the metrics are None in a round without evaluation, or where too few answered."""
        options, clients = self._deployment, self._task.clients.num_clients
        row: Row = dict.fromkeys(self._columns) | {"evaluated": 0}
        if not is_evaluated(round, options.rounds, options.evaluations):
            return row, RoundReport()
        size = min(clients, max(options.eval_min_nodes, math.ceil(options.eval_fraction * clients - 1e-9)))
        partitions = sorted(random.Random(f"{options.seed} {KIND} {round}").sample(range(clients), size))
        network.begin(pack(jax.device_get(params)), order, KIND)
        limits = replace(limits, quorum=min(options.eval_min_nodes, size) / size, wait_limit=limits.round_timeout)

        def check(raw: RawReply) -> Reply:
            return Reply(unpack(raw.arrays, self._form), 0.0, check_count(raw.numbers, 2**31))

        try:
            report = gather(network, partitions, check, limits, log, sleep=sleep)
        except (NoQuorum, KeyboardInterrupt) as error:
            log(f"round {round} has no evaluation by nodes: {error or 'interrupted'}")
            return row, RoundReport()
        sums = jax.tree.map(lambda *parts: np.sum(parts, 0, float), *[r.upload for r in report.replies.values()])
        values = {str(Column("nodes", name)): value for name, value in metric_values(self._task, sums).items()}
        values |= {column: bound(sums[name]) for column, (name, bound) in self._bounds.items()}
        row |= {name: finite_or_none(float(values[name])) for name in self._columns}
        return row | {"evaluated": len(report.replies)}, report
