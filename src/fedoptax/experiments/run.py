"""A run: rounds until the end, with progress, results on disk, and resuming.

`run_rounds` is the one loop for simulations and deployments. `Rounds` advance, and observers follow: the run folder,
trackers, the progress bar.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedoptax._files import read_json
from fedoptax._progress import Update, bar
from fedoptax.algorithm import FedAlgorithm, check_algorithm
from fedoptax.distributed import broadcast, check_same, gather_from_all, is_distributed, is_leader, run_on_all_or_fail
from fedoptax.engine.client_states import PLACES, OnHost
from fedoptax.engine.evaluation import part_by_client
from fedoptax.engine.mesh import mesh_again
from fedoptax.engine.personalization import with_rate
from fedoptax.engine.plan import Plan, RunOptions, make_plan
from fedoptax.engine.program import Fixed, Point
from fedoptax.errors import UsageError, check_choice, check_flag, check_int, check_number, check_type
from fedoptax.experiments.build import WRAPPERS
from fedoptax.experiments.observers import (
    CheckpointShare,
    FolderWriter,
    Observer,
    ProgressBar,
    RunEnd,
    Trackers,
    saved_state,
)
from fedoptax.experiments.result import DivergedError, Interrupted, RunResult, describe_end
from fedoptax.experiments.rounds import OwnModels, Rounds, Simulation, Step
from fedoptax.experiments.selection import Watch, make_watch
from fedoptax.experiments.signals import deferred_interrupt
from fedoptax.storage.checkpoint import least_total, load_clients, restore_checkpoint, rounds_of
from fedoptax.storage.config import check_same_experiment, run_config
from fedoptax.storage.folder import ENDED, RunFolder, Status, check_names, is_finished, locked, prepare, read_summary
from fedoptax.storage.history import History, read_rows
from fedoptax.storage.model import write_model
from fedoptax.tasks.task import Task, check_task
from fedoptax.trackers import Tracked, Tracker, as_trackers, notify


@dataclass(frozen=True)
class Record:
    """What a run writes, and where.

    Attributes:
      label: the algorithm's name in files and messages.
      hyperparameters: the algorithm's, for the config.
      wrappers: what was wrapped around it, also for the config; see `fedoptax.experiments.build.wrap`.
      rates: where the algorithm's learning rates come from, for reports: `preset`, `tuned` ...
      command: the command line that reports show as the way to reproduce the run.
      out: a new folder for config, history, checkpoints, summary and final parameters; None writes nothing.
      overwrite: remove earlier results in `out`.
      resume_from: a run folder to continue from its last checkpoint; results go to `out`, by default the same folder.
      resume_round: the round of the checkpoint to start from; later rounds are repeated.
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
    command: str = ""
    out: str | Path | None = None
    overwrite: bool = False
    resume_from: str | Path | None = None
    resume_round: int | None = None
    checkpoint_every: float = 60.0
    trackers: Sequence[str | Tracker] = ()
    progress: bool | Update | None = None
    description: str | None = None

    def __post_init__(self) -> None:
        kinds: dict[str, Any] = {"label description": str | None, "hyperparameters wrappers": Mapping}
        kinds |= {"out resume_from": str | PathLike | None, "trackers": list | tuple}
        for names, kind in kinds.items():
            for name in names.split():
                check_type(name, getattr(self, name), kind)
        if self.progress is not None and not callable(self.progress):
            check_flag("progress", self.progress)
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
      task: the model, the loss and the clients' data.
      algorithm: such as `fedavg(0.1)`; a `Point` shares its compilation with others.
      **options: of the rounds, see `RunOptions` (`rounds`, `cohort_size`, `batch_size`, `seed`, ...), and of the
        folder, see `Record` (`out`, `resume_from`, `trackers`, ...).

    Returns:
      The history, the final parameters and states.

    Raises:
      UsageError: an argument is wrong.
      DivergedError: loss or state became NaN or infinite; its `result` has the run up to that round.
      RunError: files cannot be written, or `resume_from` does not fit.
      Interrupted: Ctrl-C, SIGTERM or SIGHUP; the state after the last whole round is in its `result` (and in `out`).
    """
    return raise_unless_completed(simulate(task, algorithm, *split_options(options)))


def raise_unless_completed(result: RunResult) -> RunResult:
    """Return a run that completed, or stopped early; raise `DivergedError` or `Interrupted` for another."""
    if result.status == Status.DIVERGED:
        raise DivergedError(str(result.message), result)
    if result.status == Status.INTERRUPTED:
        raise Interrupted(result)
    return result


def split_options(options: Mapping[str, Any]) -> tuple[RunOptions, Record]:
    """Return the options of `run` as those of the rounds and those of the folder."""
    of_rounds, of_folder = ({f.name for f in fields(kind)} for kind in (RunOptions, Record))
    for name in options:
        check_choice("option", name, sorted(of_rounds | of_folder))
    rounds, folder = ({n: v for n, v in options.items() if n in names} for names in (of_rounds, of_folder))
    return RunOptions(**rounds), Record(**folder)


def simulate(
    task: Task,
    algorithm: FedAlgorithm | Point,
    options: RunOptions,
    record: Record,
    make: Callable[[Task, Point, RunOptions, Plan], Simulation] | None = None,
) -> RunResult:
    """Run `algorithm` on `task` as `run` does; return also a run that did not end well.

    The rounds are those of `make`, or by default the ones that the algorithm needs.
    """
    check_task(task)
    check_algorithm(algorithm.algorithm if isinstance(algorithm, Point) else algorithm)
    if (record.trackers or options.client_metrics) and record.folder is None:
        raise UsageError(f"{'trackers' if record.trackers else 'client_metrics'} need a folder: pass out")
    point = algorithm if isinstance(algorithm, Point) else Point(Fixed(algorithm), {})
    if record.resume_from is not None and not is_distributed():
        options = _with_original_placement(options, Path(record.resume_from))
    options = with_rate(options, task, {**point.values, **record.hyperparameters})
    plan, watch = make_plan(options, task, point.algorithm, record.label), make_watch(task, options)
    if not is_leader():
        record = replace(record, out=None, resume_from=None, resume_round=None, trackers=(), progress=False)
    new = record.out if record.resume_from is None or Path(record.resume_from) != record.folder else None
    run_on_all_or_fail(lambda: None if new is None else prepare(new, record.overwrite))
    if make is None:
        has_own_models = point.algorithm.client_params is not None and part_by_client(task) is not None
        make = OwnModels if has_own_models else Simulation
    simulation = make(task, point, options, plan)
    described = {"name": record.label, "hyperparameters": dict(record.hyperparameters)}
    config = run_config(task, described, options, plan, simulation.program, record.wrappers, record.trackers)
    config |= {"paper_weighting": point.algorithm.weighting, "rates": record.rates, "command": record.command}
    check_same(config)
    return run_rounds(simulation, options.rounds, config, record, watch)


def run_in_folder(
    task: Task,
    algorithm: FedAlgorithm | Point,
    folder: Path,
    options: Mapping[str, Any],
    simulate: Callable[[Task, FedAlgorithm | Point, RunOptions, Record], RunResult] = simulate,
) -> dict[str, Any]:
    """Do one of several runs, from its last checkpoint if any, unless it is finished.

    Return its summary.json; raise `Interrupted` if a signal came, perhaps in the last round: no other should begin.
    """
    if not is_finished(folder):
        source = folder if rounds_of(folder) else None
        where = {"out": folder, "overwrite": source is None, "resume_from": source}
        result = simulate(task, algorithm, *split_options({**options, **where}))
        if result.signal:
            raise Interrupted(replace(result, message=result.message or f"stopped after {folder}"))
    return read_summary(folder)


def _with_original_placement(options: RunOptions, folder: Path) -> RunOptions:
    """Return options with the devices and the place of client states that a run began with, for equal bits."""
    config = read_json(folder / "config.json")
    if options.mesh is None and options.engine == "compiled":
        options = replace(options, mesh=mesh_again(config.get("mesh", 1)))
    if options.client_states == "auto" and config.get("client_states") in PLACES:
        options = replace(options, client_states=config["client_states"])
    return options


def run_rounds(
    rounds: Rounds, total: int, config: Mapping[str, Any], record: Record, watch: Watch | None = None
) -> RunResult:
    """Advance a run to its end, or until it stops early, diverges or a signal comes, and write its folder.

    What was done before of its `total` rounds is restored to `rounds` and `watch`; a folder that is continued must have
    the same `config`, and `record.out` is new or empty (`storage.folder.prepare`). The result's status says how the run
    ended.
    """
    watch = watch or Watch()
    watch.keep(0, rounds.params)
    with ExitStack() as stack:
        stop = stack.enter_context(deferred_interrupt())
        has_folder = broadcast(record.folder is not None)
        history, observers = run_on_all_or_fail(lambda: _begin(stack, rounds, total, config, record, watch))
        if has_folder and not is_leader() and isinstance(rounds.clients, OnHost):
            observers.append(CheckpointShare(rounds.clients))
        _send_to_all(history, rounds, watch, record.resume_from)
        watch.add(history.rows)
        status, message, signal = *_next_status(Step([]), watch, 0, len(history) >= total), 0
        while status == Status.RUNNING and len(history) < total:
            step = rounds.advance(len(history))
            history.rows += step.rows
            watch.add(step.rows)
            watch.keep(len(history), rounds.params)
            by_client = rounds.client_metrics(len(history)) if step.rows else None
            _notify(observers, "after_rounds", step.rows, by_client)
            _notify(observers, "save_if_due")
            signal = int(gather_from_all(np.int32(stop())).max())
            status, message = _next_status(step, watch, signal, len(history) >= total)
        status, message = describe_end(status, message, len(history), total, record.label, config["seed"])
        params, best_params = rounds.finish(), watch.best_params
        notes = rounds.evaluate_end(params if best_params is None else best_params) if status in ENDED else {}
        _notify(observers, "at_end", RunEnd(status, message, params, notes))
        signal = signal or int(gather_from_all(np.int32(stop())).max())  # else the next of several runs would begin
    return RunResult(
        history, params, rounds.server, rounds.clients, status, message, record.folder,
        dict(record.hyperparameters), signal, rounds.task, watch.best, best_params, notes.get("personalized"),
        notes.get("initial"),
    )  # fmt: skip


def _begin(
    stack: ExitStack, rounds: Rounds, total: int, config: Mapping[str, Any], record: Record, watch: Watch
) -> tuple[History, list[Observer]]:
    """Open the run's folder, until `stack` closes it; return the history so far, and what follows the run."""
    if record.folder is not None:
        check_names(rounds.params())
        stack.enter_context(locked(record.folder))
    history = _restore(rounds, total, config, record, watch)
    observers: list[Observer] = []
    if record.folder is not None:
        write_model(record.folder, rounds.task)
        folder = RunFolder(record.folder, config, history, record.checkpoint_every, record.resume_from)
        trackers, tracked = as_trackers(record.trackers), Tracked(record.folder, config, len(history))
        notify(trackers, lambda tracker: tracker.start(tracked))
        observers += [FolderWriter(folder, rounds, history, watch), Trackers(trackers, record.folder)]
    title = record.description or record.label
    update = stack.enter_context(bar(title, total, len(history), enabled=record.progress))
    return history, [*observers, ProgressBar(update, history, config["primary_metric"])]


def _send_to_all(history: History, rounds: Rounds, watch: Watch, folder: str | Path | None) -> None:
    """Send all processes what the leader restored from a folder."""
    if is_distributed():
        history.rows, rounds.server, watch.saved_params = broadcast((history.rows, rounds.server, watch.saved_params))
        rounds.server = jax.device_put(rounds.server)
        if isinstance(rounds.clients, OnHost):
            load_clients(rounds.clients, None if folder is None else Path(folder), len(history))
        else:
            rounds.clients.put(jax.device_put(broadcast(rounds.clients.tree)))


def _notify(observers: list[Observer], event: str, *about: Any) -> None:
    """Call a method of every observer; if one fails, all processes stop."""
    run_on_all_or_fail(lambda: [getattr(observer, event)(*about) for observer in observers])


def _next_status(step: Step, watch: Watch, signal: int, is_last: bool) -> tuple[Status, str | None]:
    """Return a run's status after a step, and why it ends, if it does."""
    if step.status != Status.RUNNING or is_last:
        return step.status, step.message
    if message := watch.stop_message():
        return Status.STOPPED_EARLY, message
    return Status.INTERRUPTED if signal else Status.RUNNING, None


def _restore(rounds: Rounds, total: int, config: Mapping[str, Any], record: Record, watch: Watch) -> History:
    """Restore states to `rounds` and `watch` from the folder that is continued, and return its history."""
    if record.resume_from is None:
        return History()
    folder = Path(record.resume_from)
    check_same_experiment(folder, read_json(folder / "config.json"), config)
    if record.resume_round is not None:
        check_int("rounds", total, least_total(folder, record.resume_round))
    if not rounds_of(folder) and read_summary(folder).get("status", Status.RUNNING) == Status.RUNNING:
        return History()  # killed before its first checkpoint: begin again
    at_least, at_most = (0, total) if record.resume_round is None else [record.resume_round] * 2
    done, state = restore_checkpoint(folder, saved_state(rounds, watch), rounds.clients, at_most, at_least)
    rounds.server, watch.saved_params = state if watch.keeps else (state, None)
    return History(read_rows(folder, done))
