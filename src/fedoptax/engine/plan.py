"""The plan of a run's rounds: what the engine decides for a task, an algorithm and `RunOptions`."""

from dataclasses import dataclass
from functools import lru_cache

import jax
import numpy as np

from fedoptax.algorithm import FedAlgorithm, nbytes
from fedoptax.engine.aggregation import MEAN, Aggregator, Mean, SecureMean, as_aggregator
from fedoptax.engine.batches import LocalWork
from fedoptax.engine.client_states import choose_place
from fedoptax.engine.mesh import assign_clients, choose_mesh
from fedoptax.engine.options import RunOptions
from fedoptax.errors import UsageError
from fedoptax.tasks.task import Task
from fedoptax.wrappers.compression import CompressionState

CODED = "compress cannot be used with secure_aggregation, whose numbers take 4 bytes each"
SMALL_MODEL, SMALL_COHORT = 10_000, 128  # parameters and clients: below, one CPU device is faster by vmap


@dataclass(frozen=True)
class Plan:
    """How each round is run: `RunOptions` as `make_plan` decides them. Equal plans share a compiled program."""

    cohort_size: int
    work: LocalWork
    weighting: str = "examples"
    client_loop: str = "auto"
    client_states: str = "device"  # or "host": the program holds those of one cohort
    examples: str = "device"  # or "stream": those of one cohort
    faults: bool = False  # whether clients may fail; how often is an argument of the program
    aggregate: Aggregator = MEAN
    mesh: int = 1
    gradients_per_step: float = 1  # of the algorithm
    concurrency: int | None = None  # in asynchronous rounds: the number of messages in use
    exchanges: int = 1  # of the algorithm

    @property
    def has_outcomes(self) -> bool:
        """Whether uploads are checked before they count, and some may be missing."""
        return self.faults or self.aggregate != MEAN


def make_plan(options: RunOptions, task: Task, algorithm: FedAlgorithm, name: str = "algorithm") -> Plan:
    """Decide how the rounds of `algorithm` on `task` are run; errors call it by `name`."""
    aggregator = as_aggregator(options.aggregate)
    params = jax.eval_shape(task.init, jax.random.key(0))
    if options.secure_aggregation is not None:
        aggregator = SecureMean(float(options.secure_aggregation))
        if isinstance(jax.eval_shape(algorithm.init, params), CompressionState):
            raise UsageError(CODED)
    _check_cohort(options.cohort_size, task, aggregator)
    if algorithm.exchanges > 1 and (options.faults is not None or aggregator.min_uploads > SecureMean.min_uploads):
        what = "faults" if options.faults is not None else f"aggregate {aggregator}"
        raise UsageError(f"{what} must not skip rounds of an algorithm with two exchanges per step")
    if options.personalize is not None and algorithm.client_params is not None:
        raise UsageError("personalize cannot be used with personal parameters, which clients have trained already")
    if algorithm.epsilon is not None:
        # The noise is made for a uniform mean of bounded uploads: by weights, or in a median, one client may move the
        # result further. Norm clipping on top would scale the bit of an adaptive clip together with the update.
        if options.weighting == "examples":
            raise UsageError(f"weighting must be uniform for a private algorithm, got {options.weighting!r}")
        if type(aggregator) not in (Mean, SecureMean):
            raise UsageError(f"aggregate must be mean for a private algorithm, which clips by itself, got {aggregator}")
    mesh = choose_mesh(options.mesh, options.cohort_size, options.engine)
    client = jax.eval_shape(algorithm.init_client, params)
    if options.asynchronous is not None:
        _check_asynchronous(options, task, algorithm, aggregator, name if jax.tree.leaves(client) else None)
    if options.speeds is not None and task.devices is not None:
        raise UsageError(f"speeds need clients with their own examples, which task '{task.name}' does not have")
    place = choose_place(options.client_states, "host", nbytes(client) * task.num_clients, mesh)
    examples = choose_place(options.examples, "stream", nbytes(task.clients.examples), mesh)
    if options.personalize is not None and examples != "device":
        raise UsageError(f"personalize needs all training examples on the device, got examples {examples!r}")
    weighting = algorithm.weighting if options.weighting in (None, "paper") else options.weighting
    return Plan(
        options.cohort_size, options.work, weighting, options.client_loop, client_states=place, examples=examples,
        faults=options.faults is not None, aggregate=aggregator, mesh=mesh, concurrency=options.asynchronous,
        gradients_per_step=algorithm.gradients_per_step, exchanges=algorithm.exchanges,
    )  # fmt: skip


def is_uneven(plan: Plan, task: Task) -> bool:
    """Return whether clients take different numbers of local steps."""
    return plan.work.steps is None and bool(np.ptp(task.clients.sizes))


def assign_cohort(plan: Plan, task: Task, steps: jax.Array) -> jax.Array:
    """Return which members of a cohort, that take so many steps, each device of the mesh trains: `assign_clients`."""
    # one after another a device takes up to twice its share, as time allows; stacked, all take the same number
    is_free = is_uneven(plan, task) and isinstance(plan.aggregate, Mean) and runs_sequentially(plan, task)
    share = -(-plan.cohort_size // plan.mesh)
    places = min(plan.cohort_size, 2 * share) if is_free else share  # each place has memory for a client's state
    return assign_clients(plan.cohort_size, plan.mesh, steps if is_uneven(plan, task) else None, places)


@lru_cache(maxsize=4)
def runs_sequentially(plan: Plan, task: Task) -> bool:
    """Whether a device runs its clients one after another; `"auto"` takes the faster way, as measured.

    Accelerators run all clients at once. CPUs run them one after another, as their products of stacked matrices are
    slow, except for a single device with a model so small that starting operations takes most of the time, and clients
    that all take the same number of steps.
    """
    if plan.client_loop != "auto":
        return plan.client_loop == "loop"
    if jax.default_backend() != "cpu":
        return False
    if plan.mesh > 1 or plan.cohort_size > SMALL_COHORT or is_uneven(plan, task):
        return True
    return sum(a.size for a in jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0)))) > SMALL_MODEL


def _check_cohort(cohort_size: int, task: Task, aggregator: Aggregator) -> None:
    if cohort_size > task.num_clients:
        raise UsageError(f"cohort_size must be <= {task.num_clients}, the number of clients, got {cohort_size}")
    shares = task.clients.num_clients
    if task.devices is not None and cohort_size != shares:
        raise UsageError(f"cohort_size must be {shares}, the number of active devices in each round, got {cohort_size}")
    if cohort_size < aggregator.min_uploads:
        raise UsageError(f"aggregate {aggregator} needs cohort_size >= {aggregator.min_uploads}, got {cohort_size}")


def _check_asynchronous(
    options: RunOptions, task: Task, algorithm: FedAlgorithm, aggregator: Aggregator, stateful: str | None
) -> None:
    """Refuse what asynchronous rounds do not support; `stateful` names an algorithm with client states."""
    refusals = {
        f"needs an algorithm without client states, got {stateful}": stateful is not None,
        "cannot be used with a private algorithm: clients are not sampled by round": algorithm.epsilon is not None,
        "cannot be combined with faults: a slow client's upload is used, not missed": options.faults is not None,
        f"needs the plain mean, weighted by staleness, got aggregate {aggregator}": aggregator != MEAN,
        "needs an algorithm with one exchange per step": algorithm.exchanges > 1,
        "needs client_states device, got 'host'": options.client_states == "host",
        f"needs clients with their own examples, which task '{task.name}' does not have": task.devices is not None,
        f"must be <= {task.num_clients}, the number of clients, got {options.asynchronous}":
            (options.asynchronous or 0) > task.num_clients,
    }  # fmt: skip
    for refusal, is_wrong in refusals.items():
        if is_wrong:
            raise UsageError(f"asynchronous {refusal}")
