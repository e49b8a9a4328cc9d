"""A run: rounds until the end, with progress, results on disk, and resuming.

`run_rounds` is the one loop for simulations and deployments. It is given something that advances rounds (`Rounds`) and
does all else: the run folder, checkpoints, trackers, the progress bar, interrupts, divergence and resuming.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedoptax._files import finite_or_none, read_json
from fedoptax._progress import Update, bar
from fedoptax.algorithm import FedAlgorithm, Tree
from fedoptax.distributed import broadcast, check_same, gather_from_all, is_distributed, is_leader, run_on_all_or_fail
from fedoptax.engine.client_states import PLACES, ClientStates, OnDevice, OnHost
from fedoptax.engine.data import open_examples
from fedoptax.engine.eager import eager_program
from fedoptax.engine.faults import COUNTS, Faults, as_faults
from fedoptax.engine.mesh import here, mesh_again
from fedoptax.engine.plan import Plan, RunOptions, make_plan
from fedoptax.engine.program import MAX_ROUNDS, Fixed, Point, program
from fedoptax.engine.sampling import sample_cohort
from fedoptax.errors import UsageError, check_choice, check_number
from fedoptax.experiments.build import WRAPPERS
from fedoptax.experiments.result import DivergedError, Interrupted, RunResult
from fedoptax.experiments.signals import deferred_interrupt
from fedoptax.storage.checkpoint import restore_checkpoint, rounds_of
from fedoptax.storage.config import check_same_experiment, run_config
from fedoptax.storage.folder import RunFolder, is_finished, locked, prepare, read_summary
from fedoptax.storage.history import History, Row, read_rows
from fedoptax.storage.model import write_model
from fedoptax.tasks.task import Task, check_task
from fedoptax.trackers import Tracked, Tracker, as_trackers, notify

NOTED_ROWS = 1000  # of the history that the progress bar's note looks at
CALL_SECONDS = 0.4  # aim of one call into the program: a lively bar, a quick stop, little overhead


@dataclass(frozen=True)
class Record:
    """What is written about a run, and where.

    Attributes:
      label: the algorithm's name in files and messages.
      hyperparameters: the algorithm's, for the config.
      wrappers: what was wrapped around it, likewise; see `fedoptax.experiments.build.wrap`.
      rates: where the algorithm's learning rates come from, for reports: `preset`, `tuned` ...
      out: a new folder for config, history, checkpoints, summary and final parameters; None writes nothing.
      overwrite: remove earlier results in `out`.
      resume_from: a run folder to continue from its last checkpoint; results go to `out`, by default the same folder.
      resume_round: the round of the checkpoint to go back to instead; what came after it is done again.
      checkpoint_every: seconds between checkpoints.
      trackers: names in `fedoptax.trackers.TRACKERS`, or objects that are such a `Tracker`; they need a folder.
      progress: show a bar on standard error; None shows it on a terminal; a function `(rounds done, note)` is called
        instead.
      description: what the bar says; None is the label.

    Raises:
      UsageError: a value is outside its range.
    """

    label: str = "algorithm"
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Mapping[str, str] = field(default_factory=dict)
    rates: str = ""
    out: str | Path | None = None
    overwrite: bool = False
    resume_from: str | Path | None = None
    resume_round: int | None = None
    checkpoint_every: float = 60.0
    trackers: Sequence[str | Tracker] = ()
    progress: bool | Update | None = None
    description: str | None = None

    def __post_init__(self) -> None:
        check_number("checkpoint_every", self.checkpoint_every, 0)
        if self.resume_round is not None and self.resume_from is None:
            raise UsageError("resume_round needs a run to resume")
        for name in self.wrappers:
            check_choice("wrappers", name, WRAPPERS)
        as_trackers(self.trackers)

    @property
    def folder(self) -> Path | None:
        """The folder that is written."""
        place = self.resume_from if self.out is None else self.out
        return None if place is None else Path(place)


def run(task: Task, algorithm: FedAlgorithm | Point, **options: Any) -> RunResult:
    """Run `algorithm` on `task`.

    Args:
      task: what is learned, and who holds the data.
      algorithm: such as `fedavg(0.1)`; a `Point` shares its compilation with others.
      **options: of the rounds, see `RunOptions` (`rounds`, `cohort_size`, `batch_size`, `seed`, ...), and of the
        folder, see `Record` (`out`, `resume_from`, `trackers`, ...).

    Returns:
      The history, the final parameters and states.

    Raises:
      UsageError: an argument is wrong.
      DivergedError: loss or state became NaN or infinite; its `result` holds the run up to there.
      RunError: files cannot be written, or `resume_from` does not fit.
      Interrupted: Ctrl-C, SIGTERM or SIGHUP; the state after the last whole round is in its `result` (and in `out`).
    """
    return raise_unless_completed(simulate(task, algorithm, *split_options(options)))


def raise_unless_completed(result: RunResult) -> RunResult:
    """Return a run that completed; raise `DivergedError` or `Interrupted` for another."""
    if result.status == "diverged":
        raise DivergedError(str(result.message), result)
    if result.status == "interrupted":
        raise Interrupted(result)
    return result


def split_options(options: Mapping[str, Any]) -> tuple[RunOptions, Record]:
    """Return the options of `run` as those of the rounds and those of the folder."""
    of_rounds, of_folder = ({f.name for f in fields(kind)} for kind in (RunOptions, Record))
    for name in options:
        check_choice("option", name, sorted(of_rounds | of_folder))
    return (
        RunOptions(**{name: value for name, value in options.items() if name in of_rounds}),
        Record(**{name: value for name, value in options.items() if name in of_folder}),
    )


def simulate(
    task: Task,
    algorithm: FedAlgorithm | Point,
    options: RunOptions,
    record: Record,
    make: "Callable[[Task, Point, RunOptions, Plan], Simulation] | None" = None,
) -> RunResult:
    """Run `algorithm` on `task` as `run` does, but return also a run that diverged or was interrupted.

    `make` makes the rounds, by default a `Simulation`.
    """
    check_task(task)
    if not isinstance(algorithm, FedAlgorithm | Point):
        raise UsageError(f"algorithm must be a FedAlgorithm, such as fedavg(0.1), or a Point, got {algorithm!r}")
    if record.trackers and record.folder is None:
        raise UsageError("trackers need a folder: give out")
    point = algorithm if isinstance(algorithm, Point) else Point(Fixed(algorithm), {})
    if record.resume_from is not None and not is_distributed():
        options = _as_begun(options, Path(record.resume_from))
    plan = make_plan(options, task, point.algorithm)
    if not is_leader():
        record = replace(record, out=None, resume_from=None, resume_round=None, trackers=(), progress=False)
    new = record.out if record.resume_from is None or Path(record.resume_from) != record.folder else None
    run_on_all_or_fail(lambda: None if new is None else prepare(new, record.overwrite))
    simulation = (make or Simulation)(task, point, options, plan)
    described = {"name": record.label, "hyperparameters": dict(record.hyperparameters)}
    config = run_config(task, described, options, plan, simulation.program, record.wrappers, record.trackers)
    config |= {"rates": record.rates} if record.rates else {}
    check_same(config)
    return run_rounds(simulation, options.rounds, config, record)


def run_in_folder(
    task: Task,
    algorithm: FedAlgorithm | Point,
    folder: Path,
    options: Mapping[str, Any],
    simulate: Callable[[Task, FedAlgorithm | Point, RunOptions, Record], RunResult] = simulate,
) -> dict[str, Any]:
    """Do one of several runs: from its last checkpoint if there is one, and not again if it is finished.

    Return its summary.json; raise `Interrupted` if a signal came, perhaps in the last round: no other should begin.
    """
    if not is_finished(folder):
        source = folder if rounds_of(folder) else None
        where = {"out": folder, "overwrite": source is None, "resume_from": source}
        result = simulate(task, algorithm, *split_options({**options, **where}))
        if result.signal:
            raise Interrupted(replace(result, message=result.message or f"stopped after {folder}"))
    return read_summary(folder)


def _as_begun(options: RunOptions, folder: Path) -> RunOptions:
    """Return options with the devices and the place of client states that a run began with, for equal bits."""
    begun = read_json(folder / "config.json")
    if options.mesh is None and options.engine == "compiled":
        options = replace(options, mesh=mesh_again(begun.get("mesh", 1)))
    if options.client_states == "auto" and begun.get("client_states") in PLACES:
        options = replace(options, client_states=begun["client_states"])
    return options


class Step(NamedTuple):
    """What came of one call of `Rounds.advance`.

    Attributes:
      rows: of the history, one per round that was completed, in order.
      status: `"running"`; `"diverged"` or `"interrupted"` ends the run.
      message: one line about an interruption that no signal made, or why the run diverged.
    """

    rows: list[Row]
    status: str = "running"
    message: str | None = None


class Rounds(Protocol):
    """What advances a run: a simulation's program, or a deployment's network.

    Attributes:
      task: what is learned.
      server: the server's state after the last completed round, as checkpoints keep it.
      clients: all clients' states, likewise.
      compile_seconds: spent on compiling for this run so far; 0 where another run had done it.
    """

    task: Task
    server: Tree
    clients: ClientStates
    compile_seconds: float

    def advance(self, done: int) -> Step:
        """Do one or more of the rounds that follow the first `done`; states and rows change together."""

    def saved(self) -> None:
        """Take note that the states as they are were written to a checkpoint."""
        return

    def finish(self) -> Tree:
        """Return the final parameters."""

    def notes(self, done: int) -> dict[str, Any]:
        """Return what summary.json has besides about the first `done` rounds."""
        return {}


def run_rounds(rounds: Rounds, total: int, config: Mapping[str, Any], record: Record) -> RunResult:
    """Advance a run to its end, or until it diverges or a signal comes, and write its folder.

    What was done before of its `total` rounds is restored to `rounds`; a folder that is continued must have the same
    `config`, and `record.out` is new or empty (`storage.folder.prepare`). The result's status says how the run ended.
    """
    with ExitStack() as stack:
        stop = stack.enter_context(deferred_interrupt())
        trackers = as_trackers(record.trackers)

        def begin() -> tuple[History, RunFolder | None]:
            if record.folder is None:
                return History(), None
            stack.enter_context(locked(record.folder))
            history = _restore(rounds, total, config, record)
            write_model(record.folder, rounds.task)
            folder = RunFolder(record.folder, config, history, record.checkpoint_every)
            tracked = Tracked(record.folder, config, len(history))
            notify(trackers, lambda tracker: tracker.start(tracked))
            return history, folder

        def write(rows: list[Row]) -> None:
            if folder is not None:
                folder.add(rows)
                if rows:
                    notify(trackers, lambda tracker: tracker.rows(rows))
                if folder.is_due():
                    folder.save(rounds.server, rounds.clients)
                    rounds.saved()

        def end(status: str, message: str | None, params: Tree) -> None:
            if folder is not None:
                folder.save(rounds.server, rounds.clients)
                summary = folder.end(status, message, params, rounds.compile_seconds, rounds.notes(len(history)))
                notify(trackers, lambda tracker: tracker.end(summary))

        history, folder = run_on_all_or_fail(begin)
        if is_distributed():
            history.rows, rounds.server, clients = broadcast(
                (history.rows, rounds.server, rounds.clients.take(lambda: np.arange(0)))
            )
            rounds.server = jax.device_put(rounds.server)
            rounds.clients.put(jax.device_put(clients))
        title = record.description or record.label
        update = stack.enter_context(bar(title, total, len(history), enabled=record.progress))
        status, message, signal = "running", None, 0
        while status == "running" and len(history) < total:
            step = rounds.advance(len(history))
            history.rows += step.rows
            run_on_all_or_fail(partial(write, step.rows))
            update(len(history), _note(history, config["primary_metric"]))
            signal = int(gather_from_all(np.int32(stop())).max())
            status, message = step.status, step.message
            if signal and status == "running" and len(history) < total:
                status = "interrupted"
        if status == "running":
            status = "completed"
        elif status == "interrupted":
            message = message or f"stopped after round {len(history)} of {total}"
        else:
            message = (
                f"{record.label} diverged in round {len(history) + 1} (seed {config['seed']}): "
                f"{message or 'loss or state is not finite'}; the state after round {len(history)} is kept"
            )
        params = rounds.finish()
        run_on_all_or_fail(lambda: end(status, message, params))
        signal = signal or int(gather_from_all(np.int32(stop())).max())  # else the next of several runs would begin
    return RunResult(
        history, params, rounds.server, rounds.clients, status, message, record.folder,
        dict(record.hyperparameters), signal, rounds.task,
    )  # fmt: skip


def _restore(rounds: Rounds, total: int, config: Mapping[str, Any], record: Record) -> History:
    """Restore states to `rounds` from the folder that is continued, and return its history."""
    if record.resume_from is None:
        return History()
    folder = Path(record.resume_from)
    check_same_experiment(folder, read_json(folder / "config.json"), config)
    kept = rounds_of(folder)
    if record.resume_round is not None and record.resume_round not in kept:
        raise UsageError(f"round must be of a kept checkpoint, one of {kept}, got {record.resume_round}")
    if not kept and read_summary(folder).get("status", "running") == "running":
        return History()  # killed before its first checkpoint: begin again
    at_least, at_most = (0, total) if record.resume_round is None else [record.resume_round] * 2
    done, rounds.server = restore_checkpoint(folder, rounds.server, rounds.clients, at_most, at_least)
    return History(read_rows(folder, done))


def _note(history: History, metric: str | None) -> str:
    """Return the last metric and the privacy spent, for the progress bar; it is called often and looks at few rows."""
    recent = History(history.rows[-NOTED_ROWS:])
    shown = [name for name in (metric, "train_loss") if name and recent.last(name) is not None][:1]
    shown += ["epsilon"] if recent.last("epsilon") is not None else []
    return ", ".join(f"{name} {recent.last(name):.4g}" for name in shown)


class Simulation(Rounds):
    """The rounds of an algorithm on a task, by its program; see `Rounds`."""

    def __init__(self, task: Task, point: Point, options: RunOptions, plan: Plan) -> None:
        self.task, self._options, self._plan = task, options, plan
        self._algorithm, self._faults = point.algorithm, as_faults(options.faults)
        if options.engine == "eager":
            self.program, self._values = eager_program(task, self._algorithm, plan), {}
        else:
            self.program, self._values = program(task, point.make, plan, tuple(point.values)), point.arguments
        self._key, self._length = jax.random.key(options.seed), 1
        self.compile_seconds = 0.0
        self._examples = open_examples(task, plan.examples, self._key, plan.cohort_size, plan.mesh)
        self.server, client = self.program.start(self._values, self._key)
        self.clients = (OnDevice if plan.client_states == "device" else OnHost)(client, task.num_clients)

    def advance(self, done: int) -> Step:
        """Do about `CALL_SECONDS` of rounds."""
        compiled, begun = self.program.compile_seconds(), time.perf_counter()
        end, last = min(done + self._length, self._options.rounds), self._options.rounds
        numbers = [np.int32(n) for n in (done, end, self._options.eval_every, last)]
        size, num_clients = self._plan.cohort_size, self.task.num_clients
        states = self.clients.take(lambda: np.asarray(sample_cohort(self._key, done, num_clients, size)))
        rates = (self._faults or Faults()).rates()
        data = self._examples(done)
        result = self.program.advance(self._values, self.server, states, data, self._key, *numbers, rates)
        self.server = result.server
        self.clients.put(result.clients)
        table = jax.device_get(result.rows)
        compiling = self.program.compile_seconds() - compiled  # 0 where another run of the program, or a call, did it
        self.compile_seconds += compiling
        finite, count = bool(result.finite), int(result.round) - done
        seconds = (time.perf_counter() - begun - compiling) / count
        rows = [self._row(done + i + 1, table[i], seconds) for i in range(count if finite else count - 1)]
        if not finite:
            return Step(rows, "diverged")
        if self._plan.examples == "device" and not isinstance(self.clients, OnHost):
            seconds = float(gather_from_all(np.float32(seconds))[0])
            self._length = max(1, min(MAX_ROUNDS, round(CALL_SECONDS / max(seconds, 1e-6))))
        return Step(rows)

    def finish(self) -> Tree:
        """Return the final parameters; the states of a mesh come to one device."""
        if self._plan.mesh > 1:
            self.server = here(self.server)
            if isinstance(self.clients, OnDevice):
                self.clients.put(here(self.clients.tree))
        return self._algorithm.params(self.server)

    def _row(self, round: int, values: np.ndarray, seconds: float) -> Row:
        """Return a row of the history from a row of the program's."""
        row: Row = {"round": round, **dict(zip(self.program.columns, map(finite_or_none, values.tolist())))}
        cohort_size = answers = self._plan.cohort_size
        if self._plan.has_outcomes:
            row |= {name: int(row[name]) for name in COUNTS}
            answers = row["participants"] + row["rejected"]
            if self._faults is None or self._faults.deadline is None:
                del row["virtual_seconds"]
        if self._algorithm.epsilon is not None:  # of those who hold the data, which a task's `devices` share
            epsilon = self._algorithm.epsilon(round, cohort_size, self.task.clients.num_clients)
            row["epsilon"] = finite_or_none(float(epsilon))
        row["bytes_down"], row["bytes_up"] = cohort_size * self.program.bytes_down, answers * self.program.bytes_up
        return row | {"seconds": seconds}
