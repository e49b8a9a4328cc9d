"""What a round is made of, apart from the task and the algorithm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from fedoptax import threefry
from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.aggregation import MEAN, Aggregator, Mean
from fedoptax.engine.batches import LocalWork
from fedoptax.errors import UsageError
from fedoptax.tasks.task import Task

MOST = 2**31 - 1  # of what the compiled program counts
WEIGHTINGS = ("examples", "uniform")
CLIENT_LOOPS = ("auto", "loop", "vmap")
SMALL_MODEL, SMALL_COHORT = 10_000, 128  # parameters and clients: below, one CPU device is faster by vmap


@dataclass(frozen=True)
class Plan:
    """How each round is run.

    Attributes:
      cohort_size: |S|, clients a round.
      work: a client's local work.
      weighting: `"examples"` weighs uploads by the clients' numbers of examples, `"uniform"` equally.
      client_loop: `"loop"` runs the cohort one client after another (exact work, one client's memory), `"vmap"` all at
        once; `"auto"` takes the faster by backend and model (see `runs_in_turn`).
      states: which client states the program holds, those of `"all"` clients or of the round's `"cohort"`.
      examples: likewise, whose training examples.
      faults: whether clients may fail (how often is an argument of the program, see `engine.faults`).
      aggregate: how the uploads become one.
      mesh: so many devices share out the cohort (see `engine.sharded`).
    """

    cohort_size: int
    work: LocalWork
    weighting: str = "examples"
    client_loop: str = "auto"
    states: str = "all"
    examples: str = "all"
    faults: bool = False
    aggregate: Aggregator = MEAN
    mesh: int = 1

    @property
    def guarded(self) -> bool:
        """Whether uploads are looked at before they count, and may be missing."""
        return self.faults or self.aggregate != MEAN


def check_numbers(rounds: Any, eval_every: Any, seed: Any) -> tuple[int, int, int]:
    """What every run has, apart from its plan, with NumPy's whole numbers as ints.

    Raises:
      UsageError: a number is outside its range.
    """
    rounds, eval_every = whole("rounds", rounds), whole("eval_every", eval_every)
    return rounds, eval_every, whole("seed", seed, 0, 2**32 - 1, "a whole number from 0 to 2^32 - 1")


def whole(name: str, value: Any, least: int = 1, most: int = MOST, allowed: str = "a whole number >= 1") -> int:
    """`value`, a whole number of Python or NumPy from `least` to `most`, as an int, which JSON can hold.

    Raises:
      UsageError: it is something else; the message says what is `allowed`.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= most:
        beyond = isinstance(value, int | np.integer) and value > most == MOST
        raise UsageError(f"{name}: {value!r} given, allowed is {allowed}{' and < 2^31' if beyond else ''}")
    return int(value)


def checked_plan(plan: Plan, task: Task) -> Plan:
    """`plan`, if it can be carried out on `task`, with NumPy's whole numbers as ints.

    Raises:
      UsageError: a number below 1, an unknown choice, a cohort larger than the federation, or one too small for the
        aggregator.
    """
    work = LocalWork(
        whole("batch_size", plan.work.batch_size),
        whole("local_epochs", plan.work.epochs),
        None if plan.work.steps is None else whole("local_steps", plan.work.steps),
    )
    plan = replace(plan, cohort_size=whole("cohort_size", plan.cohort_size), work=work)
    clients, shares = task.num_clients, task.clients.num_clients
    if plan.cohort_size > clients:
        raise UsageError(f"cohort_size: {plan.cohort_size} given, allowed is at most the number of clients, {clients}")
    if task.devices is not None and plan.cohort_size != shares:
        raise UsageError(
            f"cohort_size: {plan.cohort_size} given, allowed is {shares}, the number of shares that the active of the "
            f"{clients} devices take each round"
        )
    for name, choice, allowed in (
        ("weighting", plan.weighting, WEIGHTINGS),
        ("client_loop", plan.client_loop, CLIENT_LOOPS),
    ):
        if choice not in allowed:
            raise UsageError(f"{name}: {choice!r} given, allowed is one of {', '.join(allowed)}")
    if plan.cohort_size < plan.aggregate.least:
        raise UsageError(
            f"aggregate: {plan.aggregate} given with {plan.cohort_size} clients a round, allowed with at least "
            f"{plan.aggregate.least}"
        )
    return plan


@lru_cache(maxsize=4)
def runs_in_turn(plan: Plan, task: Task) -> bool:
    """Whether the cohort's clients are run one after another; `"auto"` takes what measured as faster.

    Accelerators run them all at once. CPUs run them in turn, as their products of stacked matrices are slow; but not a
    single device with a model so small that starting operations takes most of the time, and clients that all take
    equally many steps.
    """
    if plan.client_loop != "auto":
        return plan.client_loop == "loop"
    if jax.default_backend() != "cpu":
        return False
    if plan.mesh > 1 or plan.cohort_size > SMALL_COHORT or (plan.work.steps is None and np.ptp(task.clients.sizes)):
        return True
    params = jax.eval_shape(task.init, threefry.key(0))
    return sum(a.size for a in jax.tree.leaves(params)) > SMALL_MODEL


def check_privacy(algorithm: FedAlgorithm, plan: Plan) -> None:
    """Refuses an aggregator under which an algorithm's accounting of privacy would be wrong.

    The noise is made for a mean of bounded uploads: one client may move a median, or which upload is chosen, further.
    Norm clipping on top would scale an adaptive clip's bit with the update.

    Raises:
      UsageError: the algorithm accounts for privacy, and the aggregator is not the mean.
    """
    if algorithm.epsilon is not None and type(plan.aggregate) is not Mean:
        raise UsageError(
            f"aggregate: {plan.aggregate} given with an algorithm that accounts for privacy, which clips by itself, "
            "allowed is mean"
        )
