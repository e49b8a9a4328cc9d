"""The rounds of a simulation, computed by its program; deployments have another class."""

import time
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedoptax import tree
from fedoptax._files import finite_or_none
from fedoptax.algorithm import FedAlgorithm, Tree
from fedoptax.distributed import gather_from_all
from fedoptax.engine import evaluation
from fedoptax.engine.batches import count_local_steps
from fedoptax.engine.client_states import ClientStates, OnDevice, OnHost
from fedoptax.engine.data import open_examples
from fedoptax.engine.eager import eager_program
from fedoptax.engine.faults import COUNTS, Faults, as_faults
from fedoptax.engine.mesh import to_first_device
from fedoptax.engine.options import RunOptions, is_evaluated
from fedoptax.engine.personalization import personalize
from fedoptax.engine.plan import Plan
from fedoptax.engine.program import MAX_ROUNDS, Point, program
from fedoptax.engine.sampling import sample_cohort
from fedoptax.engine.schedule import client_speeds, make_schedule
from fedoptax.engine.xla import host_errors
from fedoptax.errors import shorten
from fedoptax.storage.folder import Status
from fedoptax.storage.history import Row
from fedoptax.tasks.task import Task, jit

CALL_SECONDS = 0.4  # aim of one call into the program: a lively bar, a quick stop, little overhead


class RoundsResult(NamedTuple):
    """The outcome of one call of `Rounds.advance`."""

    rows: list[Row]  # of the history, one per round that was completed, in order
    status: Status = Status.RUNNING  # `DIVERGED` or `INTERRUPTED` ends the run
    message: str | None = None  # one line about an interruption that no signal made, or why the run diverged


class Rounds(Protocol):
    """The rounds of a run: a simulation's program, or a deployment's network."""

    task: Task
    algorithm: FedAlgorithm
    server: Tree  # the server's state after the last completed round, as checkpoints keep it
    clients: ClientStates  # all clients' states then
    compile_seconds: float  # spent on compiling for this run so far; 0 where another run had done it
    has_one_model: bool = True  # whether its parameters are a model of all clients

    def advance(self, done: int) -> RoundsResult:
        """Do one or more of the rounds that follow the first `done`; states and rows change together."""

    def saved(self) -> None:
        """Observe that the current states were written to a checkpoint."""
        return

    def params(self) -> Tree:
        """Return the parameters after the last completed round."""
        return self.algorithm.params(self.server)

    def finish(self) -> Tree:
        """Return the final parameters."""
        return self.params()

    def client_metrics(self, done: int) -> dict[str, np.ndarray] | None:
        """Return each client's metrics, (clients,), if they are wanted and the last round was evaluated."""
        return None

    def evaluate_end(self, params: Tree) -> dict[str, Any]:
        """Return further entries of summary.json about the parameters in use, at the end of the run."""
        return {}

    def notes(self, done: int) -> dict[str, Any]:
        """Return further entries of summary.json about the first `done` rounds."""
        return {}


class Simulation(Rounds):
    """The rounds of an algorithm on a task, by its program; see `Rounds`."""

    def __init__(self, task: Task, point: Point, options: RunOptions, plan: Plan) -> None:
        self.task = self._whole = task  # the latter with all held-out examples
        self._options, self._plan = options, plan
        self.algorithm, self._faults = point.algorithm, as_faults(options.faults)
        if options.engine == "eager":
            self.program, self._values = eager_program(task, self.algorithm, plan), {}
        else:
            self.program, self._values = program(task, point.make, plan, tuple(point.values)), point.arguments
        self._key, self._length = jax.random.key(options.seed), 1
        self.compile_seconds = 0.0
        faults = self._faults or Faults(speed_spread=0)
        speeds = options.speeds or f"lognormal:{faults.speed_spread}"
        self._rates = faults.rates(client_speeds(speeds, self._key, task.num_clients))
        self._schedule, self._seconds = None, np.zeros(0)  # of a client's local work, where time is counted
        if options.speeds is not None or options.asynchronous is not None:
            self._seconds = self._rates["speeds"] * np.asarray(count_local_steps(task.clients.sizes, plan.work))
        self._examples = open_examples(task, plan, self._sample_cohort)
        self.server, client = self.program.start(self._values, self._key)
        if options.asynchronous is None:
            self.clients = (OnDevice if plan.client_states == "device" else OnHost)(client, task.num_clients)
        else:
            work = options.asynchronous, options.rounds, options.seed, options.staleness_exponent
            self._schedule = make_schedule(self._seconds, plan.cohort_size, *work)
            self.clients = OnDevice(self.algorithm.broadcast(self.server), options.asynchronous)

    def advance(self, done: int) -> RoundsResult:
        """Do about `CALL_SECONDS` of rounds."""
        compiled, start = self.program.compile_seconds(), time.perf_counter()
        options, last = self._options, self._options.rounds
        is_used_at_once = options.keep is not None or options.stop_after is not None or options.client_metrics
        end = min(done + self._length, self._next_evaluation(done) if is_used_at_once else last)
        if options.save_every is not None:
            end = min(end, done - done % options.save_every + options.save_every)
        numbers = [np.asarray(n, np.int32) for n in (done, end, options.evaluations, last)]
        states = self.clients.take(lambda: self._sample_cohort(done))
        data, window = self._examples(done), np.minimum(np.arange(done, done + MAX_ROUNDS), last - 1)
        conditions = self._rates, tree.take(self._schedule, window)
        with host_errors():
            result = self.program.advance(self._values, self.server, states, data, self._key, *numbers, *conditions)
            table = jax.device_get(result.rows).view(np.float32)
        self.server = result.server
        self.clients.put(result.clients)
        compiling = self.program.compile_seconds() - compiled  # 0 where another run of the program, or a call, did it
        self.compile_seconds += compiling
        finite, count = bool(result.finite), int(result.round) - done
        seconds = (time.perf_counter() - start - compiling) / count
        rows = [self._row(done + i + 1, table[i], seconds) for i in range(count if finite else count - 1)]
        if not finite:
            names = None if self.task.num_clients == 1 else self._whole.client_names
            cohort = ", ".join(names[i] for i in self._sample_cohort(done + count - 1)) if names else ""
            reason = f"loss or state is not finite in a round of {shorten(cohort, 120)}" if names else None
            return RoundsResult(rows, Status.DIVERGED, reason)
        if self._plan.examples == "device" and not isinstance(self.clients, OnHost):
            seconds = float(gather_from_all(np.float32(seconds))[0])
            self._length = max(1, min(MAX_ROUNDS, round(CALL_SECONDS / max(seconds, 1e-6))))
        return RoundsResult(rows)

    def finish(self) -> Tree:
        """Return the final parameters; the states of a mesh come to one device."""
        if self._plan.mesh > 1:
            self.server = to_first_device(self.server)
            if isinstance(self.clients, OnDevice):
                self.clients.put(to_first_device(self.clients.tree))
        return self.params()

    def client_metrics(self, done: int) -> dict[str, np.ndarray] | None:
        """Return each client's metrics of the round that is just evaluated."""
        if not self._options.client_metrics or done != self._next_evaluation(done - 1):
            return None
        return self._measure_clients(self.params())

    def _measure_clients(self, params: Tree) -> dict[str, np.ndarray]:
        return evaluation.evaluate_clients(self.task, jax.tree.map(np.asarray, params))

    @host_errors()
    def evaluate_end(self, params: Tree) -> dict[str, Any]:
        """Return the metrics before the first round, the worst client, and the results of personalization."""
        notes: dict[str, Any] = {}
        is_wanted = self._whole.is_pretrained if self._options.evaluate_start is None else self._options.evaluate_start
        if is_wanted and (data := evaluation.evaluation_data(self._whole)):
            start = self.algorithm.params(self.program.start(self._values, self._key)[0])
            values = jit(self._whole, partial(evaluation.evaluate, self._whole))(start, data)
            measured = {name: value for name, value in values.items() if name != evaluation.WORST}
            notes["initial"] = {name: finite_or_none(float(value)) for name, value in measured.items()}
        if self._whole.client_names is not None and evaluation.choose_split(self._whole) is not None:
            name = evaluation.primary_metric(self._whole)
            by_client = np.asarray(self._measure_clients(params)[name], float)
            if not np.isnan(by_client).all():
                is_higher_better = evaluation.describe_metrics(self._whole)[name].higher_is_better
                worst = np.nanargmin(by_client if is_higher_better else -by_client)
                client = self._whole.client_names[worst]
                notes["worst_client"] = {"client": client, "metric": name, "value": float(by_client[worst])}
        if (text := self._options.personalize) is not None:
            notes["personalized"] = personalize(self._whole, params, self._plan, str(text), self._key)
        return notes

    def _with_name(self, row: Row) -> Row:
        """Return a row of the history with the name of the worst client in place of its number."""
        worst, names = finite_or_none(row.get(evaluation.WORST)), self._whole.client_names
        return row if worst is None or names is None else row | {evaluation.WORST: names[int(worst)]}

    def _next_evaluation(self, done: int) -> int:
        last, evaluations = self._options.rounds, self._options.evaluations
        return next((n for n in range(done + 1, last) if is_evaluated(n, last, evaluations)), last)

    def _sample_cohort(self, round: int) -> np.ndarray:
        if self._schedule is not None:
            return self._schedule.clients[round]
        step, sizes = round // self._plan.exchanges, (self.task.num_clients, self._plan.cohort_size)
        return np.asarray(sample_cohort(self._key, step, *sizes))

    def _row(self, round: int, values: np.ndarray, seconds: float) -> Row:
        row: Row = {"round": round, **dict(zip(self.program.columns, map(finite_or_none, values.tolist())))}
        cohort_size = answers = self._plan.cohort_size
        if self._plan.has_outcomes:
            row |= {name: int(row[name]) for name in COUNTS}
            answers = row["participants"] + row["rejected"]
            if not self._seconds.size and (self._faults is None or self._faults.deadline is None):
                del row["virtual_seconds"]
        elif (schedule := self._schedule) is not None:
            row["virtual_seconds"] = float(schedule.seconds[round - 1])
            row["staleness"] = float(schedule.staleness[round - 1].mean())
            cohort_size = int(schedule.sent[round - 1])
        elif self._seconds.size:
            row["virtual_seconds"] = float(self._seconds[self._sample_cohort(round - 1)].max())
        if self.algorithm.epsilon is not None:  # of those who hold the data, which a task's `devices` share
            epsilon = self.algorithm.epsilon(round, cohort_size, self.task.clients.num_clients)
            row["epsilon"] = finite_or_none(float(epsilon))
        row["bytes_down"], row["bytes_up"] = cohort_size * self.program.bytes_down, answers * self.program.bytes_up
        return self._with_name(row | {"seconds": seconds})


@lru_cache(maxsize=4)
def without_held_out(task: Task) -> Task:
    """Return a task without test and validation examples."""
    return replace(task, test=None, test_owners=None, validation=None, validation_owners=None)
