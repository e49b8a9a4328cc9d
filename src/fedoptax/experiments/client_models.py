"""Rounds of clients with models of their own: of personal parameters, and of the baselines.

The baselines are each client alone (`local`, in the rounds in which it is sampled), and all data in one place
(`centralized`). `local` sees the cohorts of the seed; both do as many gradients as FedAvg would, `centralized` on
average.
"""

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from fedoptax._files import finite_or_none
from fedoptax.algorithm import Tree
from fedoptax.data.federated import FederatedData
from fedoptax.engine.client_states import OnDevice
from fedoptax.engine.evaluation import choose_split, evaluate, evaluate_clients, evaluation_data
from fedoptax.engine.mesh import to_first_device
from fedoptax.engine.options import RunOptions
from fedoptax.engine.plan import Plan
from fedoptax.engine.program import Point
from fedoptax.errors import check_int
from fedoptax.experiments.rounds import RoundsResult, Simulation, without_held_out
from fedoptax.tasks.task import Task, jit


class OwnModels(Simulation):
    """Rounds of clients with separate models, each evaluated on the held-out examples of its client."""

    def __init__(self, task: Task, point: Point, options: RunOptions, plan: Plan) -> None:
        super().__init__(without_held_out(task), point, options, plan)
        self._whole, self._held_out = task, evaluation_data(task)
        self.has_one_model = task.clients.num_clients == 1 and self.algorithm.client_params is None
        self._model_of = None if self.has_one_model else self.algorithm.client_params or _own_model
        self._evaluate = jit(task, partial(evaluate, task, model_of=self._model_of))
        form = jax.eval_shape(self._models)
        self._columns = sorted(jax.eval_shape(self._evaluate, form, self._held_out) if self._held_out else ())

    def advance(self, done: int) -> RoundsResult:
        """Do about `CALL_SECONDS` of rounds, not beyond the next evaluation; there, evaluate."""
        due = self._next_evaluation(done)
        self._length = min(self._length, due - done)
        step = super().advance(done)
        for row in step.rows:
            row |= dict.fromkeys(self._columns)
            if row["round"] == due and self._held_out:
                values = jax.device_get(self._evaluate(self._models(), self._held_out))
                row |= self._with_name({name: finite_or_none(float(values[name])) for name in self._columns})
        return step

    def _models(self) -> Tree:
        """Return the one model, or the server's parameters and the clients' states, as N models might not fit."""
        everyone = np.arange(self._whole.num_clients)
        on_first = to_first_device if self._plan.mesh > 1 else lambda tree: tree
        states = on_first(self.clients.tree) if isinstance(self.clients, OnDevice) else self.clients.of(everyone)
        if self.has_one_model:
            return jax.tree.map(lambda a: a[0], states)
        return self.algorithm.params(on_first(self.server)), states

    def _measure_clients(self, params: Tree) -> dict[str, np.ndarray]:
        return evaluate_clients(self._whole, self._models(), self._model_of)


def _own_model(params: Tree, state: Tree) -> Tree:
    return state


class Baseline(OwnModels):
    """Rounds of clients with separate models, which are the run's parameters."""

    def evaluate_end(self, params: Tree) -> dict[str, Any]:
        """Return nothing: there is no global model, or there are no clients to personalize it."""
        return {}

    def params(self) -> Tree:
        """Return the parameters: of the one model, or of all clients, stacked."""
        return self._models() if self.has_one_model else self._models()[1]


def pool(task: Task, options: RunOptions) -> tuple[Task, RunOptions]:
    """Return the task of one client that holds all examples, with the local steps of a whole cohort in each round."""
    check_int("cohort_size", options.cohort_size, 1, task.num_clients)
    steps = np.ceil(task.clients.sizes / options.batch_size).mean() * options.local_epochs
    steps = max(1, round(options.cohort_size * (steps if options.local_steps is None else options.local_steps)))
    alone = replace(options, cohort_size=1, local_steps=steps, mesh=1, secure_aggregation=None, aggregate="mean",
        speeds=None, faults=None)  # fmt: skip
    return _pool_examples(task), alone


@lru_cache(maxsize=4)
def _pool_examples(task: Task) -> Task:
    clients: Any = task.clients
    pooled = FederatedData(clients.examples, clients.offsets[[0, -1]])
    owners = None if choose_split(task) == "test" else task.validation_owners  # the split of unpooled clients
    return replace(task, clients=pooled, devices=None, client_weights=None, validation_owners=owners)
