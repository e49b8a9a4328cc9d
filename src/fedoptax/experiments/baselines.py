"""The baselines that a table of federated algorithms should have: each client alone, and all data in one place.

Both see the cohorts of the seed and do as many gradients as FedAvg would; `local` trains a client only in the rounds
in which it is sampled. Every client's held-out examples are evaluated with the model that the client would use.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from fedoptax.algorithm import FedAlgorithm, Tree
from fedoptax.data.federated import FederatedData
from fedoptax.engine.client_states import OnDevice
from fedoptax.engine.evaluation import evaluate, evaluate_clients, evaluation_data
from fedoptax.engine.mesh import to_first_device
from fedoptax.engine.plan import Plan, RunOptions
from fedoptax.engine.program import MAX_ROUNDS, Point
from fedoptax.experiments.result import RunResult
from fedoptax.experiments.rounds import Simulation, Step
from fedoptax.experiments.run import Record, simulate
from fedoptax.tasks.task import Task

Simulate = Callable[[Task, FedAlgorithm | Point, RunOptions, Record], RunResult]


def find_simulation(name: str) -> Simulate:
    """Return what runs an algorithm of this name: `simulate`, or for a baseline its own."""
    return {"local": run_local, "centralized": run_centralized}.get(name, simulate)


def run_local(task: Task, algorithm: FedAlgorithm | Point, options: RunOptions, record: Record) -> RunResult:
    """Run every client alone; the final parameters are those of all clients, stacked."""
    return simulate(task, algorithm, options, record, OwnModels)


def run_centralized(task: Task, algorithm: FedAlgorithm | Point, options: RunOptions, record: Record) -> RunResult:
    """Run one client that holds all examples, with the local steps of a whole cohort in each round."""
    steps = np.ceil(task.clients.sizes / options.batch_size).mean() * options.local_epochs
    steps = options.cohort_size * (steps if options.local_steps is None else options.local_steps)
    options = replace(options, cohort_size=1, local_steps=max(1, round(steps)), mesh=1, secure_aggregation=None)
    return simulate(_pool(task), algorithm, options, record, OwnModels)


class OwnModels(Simulation):
    """Rounds of clients that keep models of their own, each evaluated on the held-out examples of its owners."""

    def __init__(self, task: Task, point: Point, options: RunOptions, plan: Plan) -> None:
        super().__init__(_without_held_out(task), point, replace(options, speeds=None), plan)
        self._whole, self._held_out = task, evaluation_data(task)
        self._is_stacked = task.clients.num_clients > 1
        self._evaluate = jax.jit(partial(evaluate, task, is_stacked=self._is_stacked))
        self._columns = sorted(jax.eval_shape(self._evaluate, self.params(), self._held_out) if self._held_out else ())

    def advance(self, done: int) -> Step:
        """Do the rounds until the next evaluation, and evaluate."""
        due = self._next_evaluation(done)
        is_whole = isinstance(self.clients, OnDevice) and self._plan.examples == "device"
        self._length = min(due - done, MAX_ROUNDS) if is_whole else 1  # else a call has the data of one cohort
        step = super().advance(done)
        for row in step.rows:
            row |= dict.fromkeys(self._columns)
            if row["round"] == due and self._held_out:
                values = jax.device_get(self._evaluate(self.params(), self._held_out))
                row |= {name: float(values[name]) for name in self._columns}
        return step

    def _measure_clients(self) -> dict[str, np.ndarray]:
        return evaluate_clients(self._whole, self.params(), self._is_stacked)

    def evaluate_end(self, params: Tree) -> dict[str, Any]:
        """Return nothing: there is no global model, or no client of its own to personalize it."""
        return {}

    def params(self) -> Tree:
        """Return the parameters: of the one model, or of all clients, stacked."""
        models = self._models()
        return models if self._is_stacked else jax.tree.map(lambda a: a[0], models)

    def _models(self) -> Tree:
        if isinstance(self.clients, OnDevice):
            return to_first_device(self.clients.tree) if self._plan.mesh > 1 else self.clients.tree
        return self.clients.of(np.arange(self._whole.num_clients))


@lru_cache(maxsize=4)
def _pool(task: Task) -> Task:
    clients: Any = task.clients
    return replace(task, clients=FederatedData(clients.examples, clients.offsets[[0, -1]]), devices=None)


@lru_cache(maxsize=4)
def _without_held_out(task: Task) -> Task:
    return replace(task, test=None, test_owners=None, validation=None, validation_owners=None)
