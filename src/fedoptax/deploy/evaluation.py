"""Evaluation where the data are: nodes measure the model on test examples of their own and send sums and counts.

The server adds them up, so a metric is what it would be over all these examples together: Σ sums / Σ counts.
"""

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from fedoptax._files import finite_or_none
from fedoptax.algorithm import Tree
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.rounds import Limits, Log, Network, NoQuorum, RoundReport, gather
from fedoptax.deploy.server import RawReply, Reply, check_count, is_float32
from fedoptax.deploy.wire import REASON, WireArray, WireError, pack, shown, unpack
from fedoptax.engine.batches import minibatch_form
from fedoptax.engine.evaluation import evaluation_data, metric_values, sum_metrics
from fedoptax.errors import RunError
from fedoptax.storage.history import Row
from fedoptax.tasks.task import Task

KIND = "evaluate"  # of the messages
COLUMN = "nodes_"  # before a metric's name, in the history


def own_test(task: Task, partition: int) -> Task:
    """Return a task with the test examples of one client alone.

    These are all where the task holds that client alone, else those whose owner it is; where they have no owners, for
    trials, every N-th.

    Raises:
      RunError: it has none.
    """
    clients, test = task.clients.num_clients, task.test or {}
    if task.test_owners is not None:
        test = {name: np.asarray(a)[np.asarray(task.test_owners) == partition] for name, a in test.items()}
    elif clients > 1:
        test = {name: np.asarray(a)[partition::clients] for name, a in test.items()}
    if not any(len(array) for array in test.values()):
        raise RunError(f"partition {partition} has no test examples")
    return replace(task, test=test, test_owners=None, validation=None)


@lru_cache(maxsize=4)
def _sums(task: Task) -> Any:
    return jax.jit(lambda params, data: sum_metrics(task, params, data))


def evaluate_here(task: Task, partition: int, arrays: Mapping[str, WireArray]) -> RawReply:
    """Return a node's sums and counts for the parameters in a message.

    Raises:
      WireError: the message does not hold parameters of the task.
      RunError: the node has no test examples.
    """
    own = own_test(task, partition)
    sums = _sums(own)(unpack(arrays, jax.eval_shape(task.init, jax.random.key(0))), evaluation_data(own)["test"])
    numbers: dict[str, Any] = {"num-examples": len(next(iter((own.test or {}).values())))}
    for name, (total, count) in jax.device_get(sums).items():
        numbers |= {f"sum-{name}": float(total), f"count-{name}": float(count)}
    return RawReply({}, numbers)


def check_evaluation(raw: RawReply, names: list[str]) -> Reply:
    """Return a node's sums and counts by metric, after each was checked.

    Raises:
      WireError: one is missing, unknown, not a finite number of float32, or a count is not above 0.
    """
    if raw.error is not None:
        raise WireError(shown(raw.error, REASON))
    examples, sums = check_count(raw.numbers, 2**31), dict[str, tuple[float, float]]()
    if raw.arrays or len(raw.numbers) != 1 + 2 * len(names):
        raise WireError(f"numbers {shown(list(raw.numbers))} instead of those of {shown(names)}")
    for name in names:
        total, count = raw.numbers.get(f"sum-{name}"), raw.numbers.get(f"count-{name}")
        if not isinstance(total, float) or not is_float32(total):
            raise WireError(f"sum-{name}: {shown(total)} instead of a finite number of float32")
        if not isinstance(count, float) or not is_float32(count) or count <= 0:
            raise WireError(f"count-{name}: {shown(count)} instead of a finite number of float32 above 0")
        sums[name] = total, count
    return Reply(sums, 0.0, examples)


class NodeEvaluation:
    """The server's side: which nodes evaluate in a round, and the history's columns of what they send.

    Args:
      deployment: with `eval_fraction` > 0.
      task: as the server has it.
    """

    def __init__(self, deployment: Deployment, task: Task) -> None:
        self._deployment, self._task = deployment, task
        form = minibatch_form(task, 1).examples
        self.names = sorted(jax.eval_shape(task.metrics, jax.eval_shape(task.init, jax.random.key(0)), form))

    def measure(
        self,
        round: int,
        params: Tree,
        network: Network,
        order: Callable[[int], Mapping[str, Any]],
        limits: Limits,
        log: Log,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> tuple[Row, RoundReport]:
        """Ask this round's nodes; the metrics are None in a round without evaluation, or where too few answered."""
        given, clients = self._deployment, self._task.clients.num_clients
        columns = [COLUMN + name for name in (*self.names, *self._task.derived)]
        row: Row = dict.fromkeys(sorted(columns)) | {"evaluated": 0}
        if round % given.eval_every and round != given.rounds:
            return row, RoundReport()
        size = min(clients, max(given.eval_min_nodes, math.ceil(given.eval_fraction * clients - 1e-9)))
        asked = sorted(random.Random(f"{given.seed} {KIND} {round}").sample(range(clients), size))
        needed = min(given.eval_min_nodes, size)
        network.begin(pack(jax.device_get(params)), order, KIND)
        limits = replace(limits, quorum=needed / size, wait_limit=limits.round_timeout)
        try:
            report = gather(network, asked, lambda raw: check_evaluation(raw, self.names), limits, log, sleep=sleep)
        except (NoQuorum, KeyboardInterrupt) as error:
            log(f"round {round} has no evaluation by nodes: {error or 'interrupted'}")
            return row, RoundReport()
        sums: dict[str, Any] = {
            name: tuple(np.sum([reply.upload[name] for reply in report.replies.values()], axis=0))
            for name in self.names
        }
        values = metric_values(self._task, sums)
        row |= {COLUMN + name: finite_or_none(float(value)) for name, value in sorted(values.items())}
        return row | {"evaluated": len(report.replies)}, report
