"""The baselines: each client alone (`local`, in the rounds in which it is sampled), and all data in one place.

Both see the cohorts of the seed and do as many gradients as FedAvg would. Every client's held-out examples are
evaluated with the model that the client would use.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedoptax.algorithm import FedAlgorithm, Tree
from fedoptax.data.federated import FederatedData
from fedoptax.engine.plan import RunOptions
from fedoptax.engine.program import Point
from fedoptax.experiments.result import RunResult
from fedoptax.experiments.rounds import OwnModels
from fedoptax.experiments.run import Record, simulate
from fedoptax.tasks.task import Task

Simulate = Callable[[Task, FedAlgorithm | Point, RunOptions, Record], RunResult]


def find_simulation(name: str) -> Simulate:
    """Return the function that runs an algorithm of this name: `simulate`, or that of a baseline."""
    return {"local": run_local, "centralized": run_centralized}.get(name, simulate)


def run_local(task: Task, algorithm: FedAlgorithm | Point, options: RunOptions, record: Record) -> RunResult:
    """Run every client alone; the final parameters are those of all clients, stacked."""
    return simulate(task, algorithm, options, record, Baseline)


def run_centralized(task: Task, algorithm: FedAlgorithm | Point, options: RunOptions, record: Record) -> RunResult:
    """Run one client that holds all examples, with the local steps of a whole cohort in each round."""
    steps = np.ceil(task.clients.sizes / options.batch_size).mean() * options.local_epochs
    steps = options.cohort_size * (steps if options.local_steps is None else options.local_steps)
    options = replace(options, cohort_size=1, local_steps=max(1, round(steps)), mesh=1, secure_aggregation=None)
    return simulate(_pool(task), algorithm, options, record, Baseline)


class Baseline(OwnModels):
    """Rounds of clients with separate models, which are the run's parameters."""

    def evaluate_end(self, params: Tree) -> dict[str, Any]:
        """Return nothing: there is no global model, or there are no clients to personalize it."""
        return {}

    def params(self) -> Tree:
        """Return the parameters: of the one model, or of all clients, stacked."""
        return self.models()


@lru_cache(maxsize=4)
def _pool(task: Task) -> Task:
    clients: Any = task.clients
    return replace(task, clients=FederatedData(clients.examples, clients.offsets[[0, -1]]), devices=None)
