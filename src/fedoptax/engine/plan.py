"""The options of a run, checked, and the plan of its rounds that the engine makes of them for a task."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from fedoptax.algorithm import FedAlgorithm, nbytes
from fedoptax.engine.aggregation import MEAN, Aggregator, Mean, SecureMean, as_aggregator
from fedoptax.engine.batches import LocalWork
from fedoptax.engine.client_states import PLACES, choose_place
from fedoptax.engine.data import CHOICES
from fedoptax.engine.faults import Faults, as_faults
from fedoptax.engine.mesh import choose_mesh
from fedoptax.engine.schedule import parse_speeds
from fedoptax.errors import UsageError, check_choice, check_flag, check_int, check_number
from fedoptax.tasks.task import Task
from fedoptax.wrappers.compression import CompressionState

WEIGHTINGS = ("examples", "uniform")
CLIENT_LOOPS = ("auto", "loop", "vmap")
ENGINES = ("compiled", "eager")
CODED = "compress cannot be used with secure_aggregation: codes cannot be added, and every number takes 4 bytes anyway"
SMALL_MODEL, SMALL_COHORT = 10_000, 128  # parameters and clients: below, one CPU device is faster by vmap


@dataclass(frozen=True)
class RunOptions:
    """What a run does, apart from its task, its algorithm and its folder.

    Attributes:
      rounds: communication rounds in total (a resumed run does what is left of them).
      cohort_size: clients per round, sampled uniformly without replacement.
      batch_size: examples per local step.
      local_epochs: passes of a client over its examples per round.
      local_steps: if given, exactly this many local steps per round instead of whole epochs.
      weighting: of the uploads, `"examples"` or `"uniform"`; None takes the choice of the algorithm's paper.
      seed: of initialisation, cohorts, the order of examples and dropout; equal seeds give equal runs, and the same
        initialisation and cohorts for every algorithm.
      eval_every: rounds between evaluations on the test examples; the last round is always evaluated.
      client_loop: `"loop"` runs a device's clients one after another, `"vmap"` all at once; `"auto"` takes the faster
        for the backend and the model (see `runs_sequentially`).
      mesh: the number of devices that share each round's cohort; results agree to rounding. None takes all devices, at
        most one per client. A CPU is one device unless JAX is told otherwise before its first use:
        `jax.config.update("jax_num_cpu_devices", 8)` makes each of 8 cores a device, which is faster. With several
        processes all their devices take part.
      client_states: where the clients' states are kept between rounds, `"device"` or `"host"`, with the same results;
        `"auto"` takes the device if they fit.
      examples: `"device"` puts all training examples on the device; `"stream"` reads those of each round's cohort from
        where they are stored, with the same results; `"auto"` streams what does not fit on the device.
      engine: `"compiled"`, or `"eager"` for plain Python with the same results, for debugging.
      faults: how often clients fail, as `Faults` or as its values by name; None means never.
      asynchronous: if given, so many clients work at any time, and every `cohort_size` uploads the server makes a step,
        which counts as a round (FedBuff, see `make_schedule`); only for algorithms whose clients keep nothing.
      staleness_exponent: a ≥ 0 of the weight (1 + s)^−a of an upload from a model that is s steps old.
      speeds: virtual time: `"lognormal:SIGMA"`, a local step of client i takes exp(SIGMA · zᵢ) virtual seconds with zᵢ
        standard normal; or the path of a table with the columns `client` (0 … N−1) and `seconds`. None is one second
        each in asynchronous rounds, else no time is counted.
      aggregate: how uploads are combined: `"mean"`, `"median"`, `"trimmed_mean:FRACTION"`, `"norm_clipping:NORM"`,
        `"krum:F"`, `"krum:F,keep=M"`, or an `Aggregator`.
      secure_aggregation: if given, the range C of fixed-point uploads, of which the server of a deployment learns the
        sum alone: numbers beyond ±C are clipped, see `SecureMean`. A simulation adds the same fixed-point numbers.
      keep: `"best"` keeps the best evaluated parameters beside the last, by the task's primary metric on validation
        examples, or where there are none on test examples; `"best:METRIC"` by another, such as `best:val_loss`.
      stop_after: `N` or `"N:METRIC"` ends the run early after N evaluations (not rounds) without a better value of the
        metric, by default that of `keep="best"`.
      personalize: `STEPS` or `"STEPS:LR"`: after the run each client's held-out examples are evaluated before and after
        so many local SGD steps from the global model, with rate LR or else the run's `client_lr`; see `personalize`.
      client_metrics: each client's metrics at every evaluated round are written to `clients.parquet` in the run folder.

    Raises:
      UsageError: a value is outside its range, whatever the task.
    """

    rounds: int = 100
    cohort_size: int = 10
    batch_size: int = 20
    local_epochs: int = 1
    local_steps: int | None = None
    weighting: str | None = None
    seed: int = 0
    eval_every: int = 1
    client_loop: str = "auto"
    mesh: int | None = None
    client_states: str = "auto"
    examples: str = "auto"
    engine: str = "compiled"
    faults: Faults | Mapping[str, Any] | None = None
    asynchronous: int | None = None
    staleness_exponent: float = 0.5
    speeds: str | None = None
    aggregate: str | Aggregator = "mean"
    secure_aggregation: float | None = None
    keep: str | None = None
    stop_after: str | int | None = None
    personalize: str | int | None = None
    client_metrics: bool = False

    def __post_init__(self) -> None:
        counts = ["rounds", "cohort_size", "batch_size", "local_epochs", "eval_every"]
        counts += [name for name in ("local_steps", "mesh", "asynchronous") if getattr(self, name) is not None]
        checked: dict[str, Any] = {name: check_int(name, getattr(self, name)) for name in counts}
        checked["seed"] = check_int("seed", self.seed, 0, 2**32 - 1)
        checked |= {"faults": as_faults(self.faults), "aggregate": as_aggregator(self.aggregate)}
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.weighting is not None:
            check_choice("weighting", self.weighting, WEIGHTINGS)
        check_choice("client_loop", self.client_loop, CLIENT_LOOPS)
        check_choice("client_states", self.client_states, PLACES)
        check_choice("examples", self.examples, CHOICES)
        check_choice("engine", self.engine, ENGINES)
        if self.secure_aggregation is not None:
            check_number("secure_aggregation", self.secure_aggregation, 0, open_low=True)
            if self.aggregate != MEAN:
                raise UsageError(
                    f"aggregate must be mean with secure_aggregation, which shows no upload, got {self.aggregate}"
                )
            if self.cohort_size < SecureMean.least:
                raise UsageError(f"secure_aggregation needs cohort_size >= {SecureMean.least}, got {self.cohort_size}")
        if self.keep is not None:
            parse_keep(self.keep)
        if self.stop_after is not None:
            parse_stop_after(self.stop_after)
        if self.personalize is not None:
            parse_personalize(self.personalize)
        check_flag("client_metrics", self.client_metrics)
        check_number("staleness_exponent", self.staleness_exponent, 0)
        if self.speeds is not None:
            parse_speeds(self.speeds)

    @property
    def work(self) -> LocalWork:
        """A client's local work per round."""
        return LocalWork(self.batch_size, self.local_epochs, self.local_steps)

    @property
    def looks_at_evaluations(self) -> bool:
        """Whether something is done at each evaluation, so that no call into the program goes on beyond it."""
        return self.keep is not None or self.stop_after is not None or self.client_metrics


def parse_keep(text: str) -> str | None:
    """Return the metric in `best:METRIC`, None for `best` alone."""
    word, _, metric = str(text).partition(":")
    check_choice("keep", word, ("best",))
    return metric or None


def parse_stop_after(text: str | int) -> tuple[int, str | None]:
    """Return the number and the metric in `N:METRIC`, None for `N` alone."""
    number, _, metric = str(text).partition(":")
    return check_int("stop_after", int(number) if number.isdecimal() else number), metric or None


def parse_personalize(text: str | int) -> tuple[int, float | None]:
    """Return the steps and the learning rate in `STEPS:LR`, None for `STEPS` alone."""
    number, _, lr = str(text).partition(":")
    steps = check_int("personalize", int(number) if number.isdecimal() else number)
    try:
        rate = float(lr) if lr else None
    except ValueError:
        raise UsageError(f"personalize must be STEPS or STEPS:LR, got {text!r}") from None
    if rate is not None:
        check_number("personalize", rate, 0, open_low=True)
    return steps, rate


@dataclass(frozen=True)
class Plan:
    """How each round is run: `RunOptions` as `make_plan` decides them. Equal plans share a compiled program.

    The program holds the states and the examples of all clients, or those of one cohort if `client_states` is `"host"`
    and `examples` is `"stream"`; with a `concurrency`, in asynchronous rounds, as many messages. `faults` is whether
    clients may fail; how often is an argument of the program. `gradients_per_step` is the algorithm's, for the config.
    """

    cohort_size: int
    work: LocalWork
    weighting: str = "examples"
    client_loop: str = "auto"
    client_states: str = "device"
    examples: str = "device"
    faults: bool = False
    aggregate: Aggregator = MEAN
    mesh: int = 1
    gradients_per_step: int = 1
    concurrency: int | None = None

    @property
    def has_outcomes(self) -> bool:
        """Whether uploads are checked before they count, and some may be missing."""
        return self.faults or self.aggregate != MEAN


def make_plan(options: RunOptions, task: Task, algorithm: FedAlgorithm, name: str = "algorithm") -> Plan:
    """Decide how the rounds of `algorithm` on `task` are run; errors call it by `name`."""
    aggregator = as_aggregator(options.aggregate)
    if options.secure_aggregation is not None:
        aggregator = SecureMean(float(options.secure_aggregation))
        if isinstance(jax.eval_shape(algorithm.init, jax.eval_shape(task.init, jax.random.key(0))), CompressionState):
            raise UsageError(CODED)
    _check_cohort(options.cohort_size, task, aggregator)
    if algorithm.epsilon is not None:
        _check_privacy(options.weighting, aggregator)
    mesh = choose_mesh(options.mesh, options.cohort_size, options.engine)
    client = jax.eval_shape(algorithm.init_client, jax.eval_shape(task.init, jax.random.key(0)))
    if options.asynchronous is not None:
        _check_asynchronous(options, task, algorithm, aggregator, name if jax.tree.leaves(client) else None)
    if options.speeds is not None and task.devices is not None:
        raise UsageError(f"speeds need clients that hold examples of their own, which task '{task.name}' has not")
    place = choose_place(options.client_states, "host", nbytes(client) * task.num_clients, mesh)
    if jax.process_count() > 1 and place != "device":
        raise UsageError(f"client_states must be device with {jax.process_count()} processes, got {place!r}")
    examples = choose_place(options.examples, "stream", nbytes(task.clients.examples), mesh)
    if options.personalize is not None and examples != "device":
        raise UsageError(f"personalize needs all training examples on the device, got examples {examples!r}")
    return Plan(
        options.cohort_size,
        options.work,
        options.weighting or algorithm.weighting,
        options.client_loop,
        place,
        examples,
        options.faults is not None,
        aggregator,
        mesh,
        algorithm.gradients_per_step,
        options.asynchronous,
    )


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
    if plan.mesh > 1 or plan.cohort_size > SMALL_COHORT or (plan.work.steps is None and np.ptp(task.clients.sizes)):
        return True
    params = jax.eval_shape(task.init, jax.random.key(0))
    return sum(a.size for a in jax.tree.leaves(params)) > SMALL_MODEL


def _check_cohort(cohort_size: int, task: Task, aggregator: Aggregator) -> None:
    if cohort_size > task.num_clients:
        raise UsageError(f"cohort_size must be <= {task.num_clients}, the number of clients, got {cohort_size}")
    shares = task.clients.num_clients
    if task.devices is not None and cohort_size != shares:
        raise UsageError(
            f"cohort_size must be {shares}, the number of shares that the active of the {task.num_clients} devices "
            f"take each round, got {cohort_size}"
        )
    if cohort_size < aggregator.least:
        raise UsageError(f"aggregate {aggregator} needs cohort_size >= {aggregator.least}, got {cohort_size}")


def _check_asynchronous(
    options: RunOptions, task: Task, algorithm: FedAlgorithm, aggregator: Aggregator, stateful: str | None
) -> None:
    """Refuse what an asynchronous round cannot do; `stateful` names an algorithm whose clients keep something."""
    if stateful is not None:
        raise UsageError(f"asynchronous needs an algorithm whose clients keep nothing between rounds, got {stateful}")
    if algorithm.epsilon is not None:
        raise UsageError("asynchronous cannot be accounted for a private algorithm: clients are not sampled by round")
    if options.faults is not None:
        raise UsageError("asynchronous cannot be combined with faults: a slow client's upload is used, not missed")
    if aggregator != MEAN:
        raise UsageError(f"asynchronous needs the plain mean, which weighs by staleness, got aggregate {aggregator}")
    if options.client_states == "host":
        raise UsageError("asynchronous needs client_states device, where the messages in use are kept, got 'host'")
    if task.devices is not None:
        raise UsageError(
            f"asynchronous needs clients that hold examples of their own, which task '{task.name}' has not"
        )
    if options.asynchronous is not None and options.asynchronous > task.num_clients:
        raise UsageError(
            f"asynchronous must be <= {task.num_clients}, the number of clients, got {options.asynchronous}"
        )


def _check_privacy(weighting: str | None, aggregator: Aggregator) -> None:
    """Refuse options under which an algorithm's accounting of privacy would be wrong.

    The noise is made for a uniform mean of bounded uploads: by weights, or in a median, one client may move the result
    further. Norm clipping on top would scale the bit of an adaptive clip together with the update.
    """
    if weighting not in (None, "uniform"):
        raise UsageError(f"weighting must be uniform for a private algorithm, got {weighting!r}")
    if type(aggregator) not in (Mean, SecureMean):
        raise UsageError(f"aggregate must be mean for a private algorithm, which clips by itself, got {aggregator}")
