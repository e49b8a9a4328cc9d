"""A run: an algorithm on a task for some rounds, with progress, results on disk, and resuming."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedoptax._progress import Update, bar
from fedoptax.algorithm import FedAlgorithm, Tree
from fedoptax.distributed import agree, agreed, check_same, leads, several, shared, shared_value
from fedoptax.engine.aggregation import Aggregator
from fedoptax.engine.client_states import PLACES, ClientStates, OnDevice, OnHost, make_states
from fedoptax.engine.data import Examples, open_examples
from fedoptax.engine.eager import eager_program
from fedoptax.engine.faults import COUNTS, Faults, as_faults
from fedoptax.engine.mesh import here, mesh_again
from fedoptax.engine.plan import Plan, RunOptions, make_plan
from fedoptax.engine.program import MAX_ROUNDS, Fixed, Point, Program, program
from fedoptax.engine.sampling import sample_cohort
from fedoptax.errors import UsageError, check_number, unknown
from fedoptax.experiments.result import DivergedError, Interrupted, RunResult
from fedoptax.experiments.signals import deferred_interrupt
from fedoptax.storage import folder as storage
from fedoptax.storage.checkpoint import Checkpoints
from fedoptax.storage.config import refuse_another, run_config
from fedoptax.storage.history import History, Row, finite_or_none
from fedoptax.storage.run_folder import RunFolder
from fedoptax.tasks.task import Task, check_task
from fedoptax.trackers import Tracker, as_trackers

NOTED_ROWS = 1000  # of the history that the bar's note looks back
CALL_SECONDS = 0.4  # aim of one call into the program: a lively bar, a quick stop, little overhead


@dataclass(frozen=True)
class Settings:
    """All of a run but task and algorithm, already checked."""

    plan: Plan
    rounds: int
    seed: int
    eval_every: int
    label: str = "algorithm"
    out: Path | None = None
    resume_from: Path | None = None
    checkpoint_every: float = 60.0
    progress: bool | Update | None = None
    description: str | None = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    faults: Faults | None = None
    wrappers: Mapping[str, Any] = field(default_factory=dict)
    epsilon: Callable[[int, int, int], float] | None = None
    trackers: tuple[str | Tracker, ...] = ()


def run(
    task: Task,
    algorithm: FedAlgorithm | Point,
    *,
    rounds: int = 100,
    cohort_size: int = 10,
    batch_size: int = 20,
    local_epochs: int = 1,
    local_steps: int | None = None,
    weighting: str | None = None,
    seed: int = 0,
    eval_every: int = 1,
    client_loop: str = "auto",
    mesh: int | None = None,
    client_states: str = "auto",
    examples: str = "auto",
    engine: str = "compiled",
    faults: Faults | Mapping[str, Any] | None = None,
    aggregate: str | Aggregator = "mean",
    label: str = "algorithm",
    description: str | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    wrappers: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume_from: str | Path | None = None,
    checkpoint_every: float = 60.0,
    trackers: Sequence[str | Tracker] = (),
    progress: bool | Update | None = None,
) -> RunResult:
    """Runs `algorithm` on `task`.

    Args:
      task: what is learned, and who holds the data.
      algorithm: how; a `Point` shares its compilation with others.
      rounds: communication rounds in total (a resumed run does what is left of them).
      cohort_size: clients a round, sampled uniformly without replacement.
      batch_size: examples a local step.
      local_epochs: passes of a client over its examples in a round.
      local_steps: if given, exactly so many local steps a round instead of whole epochs.
      weighting: of the uploads, `"examples"` or `"uniform"`; None takes the paper's choice for the algorithm.
      seed: of initialisation, cohorts, the order of examples and dropout; equal seeds give equal runs, and the same
        initialisation and cohorts for every algorithm.
      eval_every: rounds between evaluations on the test examples; the last round is always evaluated.
      client_loop: `"loop"` runs a device's clients one after another, `"vmap"` all at once; `"auto"` takes the
        faster by backend and model (see `engine.plan.runs_sequentially`).
      mesh: so many devices share out each round's cohort, with results that are equal to rounding; None is all there
        are, at most one a client, or as many as the run that is resumed had. A CPU is one device unless JAX is told
        before its first use: `jax.config.update("jax_num_cpu_devices", 8)` makes each of 8 cores a device, which is
        faster. In a program of several processes all devices take part.
      client_states: where the clients' states are kept between rounds, `"device"` or `"host"`, with the same results;
        `"auto"` takes the device if they fit, or what the run that is resumed took.
      examples: `"device"` puts all training examples on the device; `"stream"` reads each round's cohort's from where
        they lie, with the same results; `"auto"` streams what does not fit on the device.
      engine: `"compiled"`, or `"eager"` for plain Python with the same result, to debug.
      faults: how often clients fail, a `Faults` or its values by name; None: never.
      aggregate: how uploads become one: `"mean"`, `"median"`, `"trimmed_mean:FRACTION"`, `"norm_clipping:NORM"`,
        `"krum:F"` or `"krum:F,keep=M"`, or what these make (`engine.aggregation`).
      label: the algorithm's name in files and messages.
      description: what the bar says; None is the label.
      hyperparameters: the algorithm's, to be written to the config.
      wrappers: what was wrapped around it, likewise; see `fedoptax.experiments.wrapping`.
      out: a new folder for config, history, checkpoints, summary and final parameters; None writes nothing.
      overwrite: remove earlier results in `out`.
      resume_from: a run folder to continue from its last checkpoint; results go to `out`, by default the same folder.
      checkpoint_every: seconds between checkpoints.
      trackers: names in `fedoptax.trackers.TRACKERS`, or objects that are such a `Tracker`; they need `out`.
      progress: show a bar on standard error; None shows it on a terminal; a function `(rounds done, note)` is told
        instead.

    Returns:
      The history, the final parameters and states.

    Raises:
      UsageError: an argument is wrong.
      DivergedError: loss or state became NaN or infinite; its `result` holds the run up to there.
      RunError: files cannot be written, or `resume_from` does not fit.
      Interrupted: Ctrl-C, SIGTERM or SIGHUP; the state after the last whole round is in its `result` (and in `out`).
    """
    check_task(task)
    if not isinstance(algorithm, FedAlgorithm | Point):
        raise UsageError(f"algorithm: {algorithm!r} given, allowed is a FedAlgorithm, such as fedavg(0.1), or a Point")
    point = algorithm if isinstance(algorithm, Point) else Point(Fixed(algorithm), {})
    algorithm = point.algorithm
    _check_files(checkpoint_every, trackers)
    options = RunOptions(
        rounds,
        cohort_size,
        batch_size,
        local_epochs,
        local_steps,
        weighting,
        seed,
        eval_every,
        client_loop,
        mesh,
        client_states,
        examples,
        engine,
        faults,
        aggregate,
    )
    source = None if resume_from is None else Path(resume_from)
    begun = {} if source is None or several() else storage.read_json(source / "config.json")
    if mesh is None and engine == "compiled" and begun:
        options = replace(options, mesh=mesh_again(begun.get("mesh", 1)))  # equals an uninterrupted run bit for bit
    if client_states == "auto" and begun.get("client_states") in PLACES:
        options = replace(options, client_states=begun["client_states"])
    if trackers and out is None and resume_from is None:
        raise UsageError("trackers: given without out, allowed is with a folder for the run")
    plan = make_plan(options, task, algorithm)
    target = source if out is None else Path(out)
    if target is not None and target != source:
        agreed(lambda: storage.prepare(target, overwrite) if leads() else None)
    settings = Settings(
        plan,
        options.rounds,
        options.seed,
        options.eval_every,
        label,
        target if leads() else None,
        source if leads() else None,
        checkpoint_every,
        progress if leads() else False,
        description,
        dict(hyperparameters or {}),
        as_faults(options.faults),
        dict(wrappers or {}),
        algorithm.epsilon,
        tuple(trackers) if leads() else (),
    )
    if engine == "eager":
        result = execute(task, eager_program(task, algorithm, plan), {}, settings)
    else:
        result = execute(task, program(task, point.make, plan, tuple(point.values)), point.arguments, settings)
    if result.status == "diverged":
        raise DivergedError(str(result.message), result)
    if result.status == "interrupted":
        raise Interrupted(result)
    return result


def check_options(task: Task, algorithm: FedAlgorithm, **options: Any) -> None:
    """Checks options of `run` for runs that are still to come, without a folder.

    Raises:
      UsageError: `run` has no such option, or would refuse a value.
    """
    check_names(options)
    files = {name: options[name] for name in ("checkpoint_every", "trackers") if name in options}
    _check_files(**files)
    names = {field.name for field in fields(RunOptions)}
    make_plan(RunOptions(**{name: value for name, value in options.items() if name in names}), task, algorithm)


def check_names(options: Iterable[str], own: Sequence[str] = ()) -> None:
    """Checks that `run` takes options of these names, of which the caller gives `own` by itself.

    Raises:
      UsageError: another name.
    """
    allowed = inspect.signature(run).parameters.keys() - {"task", "algorithm", *own}
    for name in options:
        if name not in allowed:
            unknown("option", name, allowed)


def _check_files(checkpoint_every: Any = 60.0, trackers: Any = ()) -> None:
    """Check the options of the run folder.

    Raises:
      UsageError: one is outside its range.
    """
    check_number("checkpoint_every", checkpoint_every, 0)
    as_trackers(trackers)


def execute(task: Task, built: Program, hypers: Mapping[str, Any], settings: Settings) -> RunResult:
    """Runs a program to the end, to a non-finite state or to Ctrl-C, and writes what is to be written."""
    config = run_config(task, settings, built)
    check_same(config)
    key = jax.random.key(settings.seed)
    with ExitStack() as stack:
        stop = stack.enter_context(deferred_interrupt())
        new = settings.out != settings.resume_from
        folder = agreed(lambda: RunFolder(settings.out, new, settings.checkpoint_every, stack))
        plan = settings.plan
        examples = open_examples(task, plan.examples, key, plan.cohort_size, plan.mesh)
        compile_ahead = built.prepare(hypers, examples.of(0), key) if examples.many_rounds else None
        server, client = built.start(hypers, key)
        clients = make_states(plan.client_states, client, task.num_clients)
        history, server = agreed(lambda: _resume(settings, config, server, clients))
        if several():
            history, server = History(shared_value(history.rows)), shared(server)
            clients.put(shared(clients.take(lambda: np.arange(task.num_clients))))
        done = len(history)
        agreed(lambda: folder.begin(config, history, built.timings, settings.trackers))
        if compile_ahead is not None and done < settings.rounds:
            compile_ahead()
            folder.ready()
        update = stack.enter_context(
            bar(settings.description or settings.label, settings.rounds, done, settings.progress)
        )
        many_rounds = examples.many_rounds and not isinstance(clients, OnHost)
        status, message, number, length = "completed", None, 0, 1
        while done < settings.rounds:
            end = min(done + length, settings.rounds)
            rows, server, finite, seconds = _advance(
                task, built, hypers, settings, key, server, clients, examples, done, end
            )
            history.rows += rows
            agreed(partial(folder.add, rows))
            done += len(rows)
            update(done, _note(task, history))
            if not finite:
                status = "diverged"
                message = (
                    f"{settings.label} diverged in round {done + 1} (seed {settings.seed}): loss or state is not "
                    f"finite; the state after round {done} is kept"
                )
                break
            number, seconds = agree(stop(), seconds)
            if number and done < settings.rounds:
                status, message = "interrupted", f"stopped after round {done} of {settings.rounds}"
                break
            length = max(1, min(MAX_ROUNDS, round(CALL_SECONDS / max(seconds, 1e-6)))) if many_rounds else 1
            agreed(partial(folder.keep, done, server, clients))
        if plan.mesh > 1:
            server = here(server)
            if isinstance(clients, OnDevice):
                clients.put(here(clients.tree))
        params = built.params(hypers, server)
        agreed(lambda: folder.end(status, message, history, server, clients, params))
        number, _ = agree(number or stop(), 0.0)  # one may have come meanwhile: whoever has more runs to do must know
    given = dict(settings.hyperparameters)
    return RunResult(history, params, server, clients, status, message, settings.out, given, number)


def _advance(
    task: Task,
    built: Program,
    hypers: Mapping[str, Any],
    settings: Settings,
    key: jax.Array,
    server: Tree,
    clients: ClientStates,
    examples: Examples,
    done: int,
    end: int,
) -> tuple[list[Row], Tree, bool, float]:
    """Rounds done…end−1: their rows (without the one that was not finite), the server, and seconds a round."""
    waited_before = built.timings["waited"]
    begun = time.perf_counter()
    numbers = [np.int32(n) for n in (done, end, settings.eval_every, settings.rounds)]
    cohort_size, num_clients = settings.plan.cohort_size, task.num_clients
    taken = clients.take(lambda: np.asarray(sample_cohort(key, done, num_clients, cohort_size)))
    rates = (settings.faults or Faults()).rates() if settings.plan.has_outcomes else None
    result = built.advance(hypers, server, taken, examples.of(done), key, *numbers, rates)
    clients.put(result.clients)
    table = jax.device_get(result.rows)
    holders = task.clients.num_clients  # not a task's `devices`, to whom all the data are dealt out in every round
    finite, count = bool(result.finite), int(result.round) - done
    seconds = time.perf_counter() - begun - (built.timings["waited"] - waited_before)
    rows = [
        _row(built, settings, holders, done + i + 1, dict(zip(built.columns, map(float, table[i]))))
        | {"seconds": seconds / count}
        for i in range(count if finite else count - 1)
    ]
    return rows, result.server, finite, seconds / count


def _row(built: Program, settings: Settings, holders: int, round: int, columns: Mapping[str, float]) -> Row:
    """A row of the history without its time; `holders` are those whose data privacy protects."""
    row: Row = {"round": round, **{name: finite_or_none(value) for name, value in columns.items()}}
    cohort_size = answers = settings.plan.cohort_size
    if settings.plan.has_outcomes:
        row |= {name: int(columns[name]) for name in COUNTS}
        answers = row["participants"] + row["rejected"]
        if settings.faults is None or settings.faults.deadline is None:
            del row["virtual_seconds"]
    if settings.epsilon is not None:
        row["epsilon"] = finite_or_none(float(settings.epsilon(round, cohort_size, holders)))
    return row | {"bytes_down": cohort_size * built.bytes_down, "bytes_up": answers * built.bytes_up}


def _resume(settings: Settings, config: Mapping[str, Any], server: Tree, clients: ClientStates) -> tuple[History, Tree]:
    """What was done before, and the server's state after it; `clients` are filled."""
    folder = settings.resume_from
    if folder is None:
        return History(), server
    there = storage.read_json(folder / "config.json")
    refuse_another(folder, there, config)
    checkpoints = Checkpoints(folder)
    if not checkpoints.rounds() and storage.read_status(folder) in (None, "running"):
        return History(), server  # killed before its first checkpoint: begin again
    done, server = checkpoints.restore(server, clients, settings.rounds)
    return History(storage.read_rows(folder, done)), server


def _note(task: Task, history: History) -> str:
    recent = History(history.rows[-NOTED_ROWS:])  # a column may be missing, and this is called all the time
    shown = [name for name in (f"test_{task.primary_metric}", "train_loss") if recent.last(name) is not None][:1]
    shown += ["epsilon"] if recent.last("epsilon") is not None else []
    return ", ".join(f"{name} {recent.last(name):.4g}" for name in shown)
