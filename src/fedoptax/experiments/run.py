"""A run: rounds until the end, with progress, results on disk, and resuming.

`run_rounds` is the one loop for simulations and deployments: `Rounds` advance; observer and progress bar follow them.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedoptax._files import read_json
from fedoptax._progress import Update, bar
from fedoptax.algorithm import FedAlgorithm, check_algorithm
from fedoptax.distributed import broadcast, check_same, gather_from_all, is_distributed, is_leader, run_on_all_or_fail
from fedoptax.engine.client_states import OnHost
from fedoptax.engine.options import RunOptions
from fedoptax.engine.personalization import with_rate
from fedoptax.engine.plan import make_plan
from fedoptax.engine.program import Fixed, Point
from fedoptax.errors import UsageError, check_int
from fedoptax.experiments.client_models import Baseline, OwnModels, pool
from fedoptax.experiments.observers import CheckpointShare, FolderWriter, Observer, RunEnd, progress_note
from fedoptax.experiments.record import Record, split_options, with_original_placement
from fedoptax.experiments.result import RunResult, describe_end, raise_unless_completed
from fedoptax.experiments.rounds import Rounds, RoundsResult, Simulation
from fedoptax.experiments.selection import Watch, make_watch, was_evaluated
from fedoptax.experiments.signals import deferred_interrupt
from fedoptax.names import BASELINES
from fedoptax.storage.checkpoint import least_total, load_clients, restore_checkpoint, rounds_of
from fedoptax.storage.config import check_same_experiment, run_config
from fedoptax.storage.folder import ENDED, Status, check_names, locked, prepare, read_summary
from fedoptax.storage.history import History, read_rows
from fedoptax.storage.model import export_predict, write_model
from fedoptax.tasks.task import Task, check_task


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


def simulate(
    task: Task, algorithm: FedAlgorithm | Point, options: RunOptions, record: Record, name: str = ""
) -> RunResult:
    """Run `algorithm` on `task` as `run` does; return also a run that did not end well.

    `name` is the algorithm's: `local` and `centralized` have rounds of their own, see `experiments.client_models`.
    """
    check_task(task)
    check_algorithm(algorithm.algorithm if isinstance(algorithm, Point) else algorithm)
    if (record.trackers or options.client_metrics) and record.folder is None:
        raise UsageError(f"{'trackers' if record.trackers else 'client_metrics'} need a folder: pass out")
    task, options = pool(task, options) if name == "centralized" else (task, options)
    point = algorithm if isinstance(algorithm, Point) else Point(Fixed(algorithm), {})
    if record.resume_from is not None and not is_distributed():
        options = with_original_placement(options, Path(record.resume_from))
    exchanges, values = point.algorithm.exchanges, {**point.values, **record.hyperparameters}
    rated = options if name in BASELINES else with_rate(options, task, values, exchanges)
    plan, watch = make_plan(options, task, point.algorithm, record.label), make_watch(task, options)
    if not is_leader():
        record = replace(record, out=None, resume_from=None, resume_round=None, trackers=(), progress=False)
    folders = [Path(one).resolve() for one in (record.out, record.resume_from) if one is not None]
    new = record.out if len(set(folders)) == len(folders) else None
    has_own_models = point.algorithm.client_params is not None
    make = Baseline if name in BASELINES else OwnModels if has_own_models else Simulation
    simulation = make(task, point, rated, plan)
    described = {"name": record.label, "hyperparameters": dict(record.hyperparameters)}
    config = run_config(task, described, options, plan, simulation.program, record.wrappers, record.trackers)
    config |= {"paper_weighting": point.algorithm.weighting, "rates": record.rates, "command": record.command}
    check_same(config)
    run_on_all_or_fail(lambda: None if new is None else prepare(new, record.overwrite))
    return run_rounds(simulation, options.rounds, config, record, watch)


def run_rounds(
    rounds: Rounds, total: int, config: Mapping[str, Any], record: Record, watch: Watch | None = None
) -> RunResult:
    """Advance a run to its end, or until it stops early, diverges or a signal comes, and write its folder.

    The rounds of `total` that were done before are restored to `rounds` and `watch`; a folder that is continued must
    have the same `config`, and `record.out` is new or empty (`storage.folder.prepare`).
    """
    watch = watch or Watch()
    watch.keep(0, rounds.params)
    with ExitStack() as stack:
        stop = stack.enter_context(deferred_interrupt())
        has_folder = broadcast(record.folder is not None)
        history, observer, update = run_on_all_or_fail(lambda: _begin(stack, rounds, total, config, record, watch))
        if has_folder and not is_leader() and isinstance(rounds.clients, OnHost):
            observer = CheckpointShare(rounds.clients)
        _send_to_all(history, rounds, watch, record.resume_from)
        watch.add(history.rows)
        status, message, signal = *_next_status(RoundsResult([]), watch, 0, len(history) >= total), 0
        while status == Status.RUNNING and len(history) < total:
            step = rounds.advance(len(history))
            history.rows += step.rows
            watch.add(step.rows)
            watch.keep(len(history), rounds.params)
            by_client = rounds.client_metrics(len(history)) if step.rows else None
            run_on_all_or_fail(observer.after_rounds, step.rows, by_client)
            run_on_all_or_fail(lambda: update(len(history), progress_note(history, config["primary_metric"])))
            run_on_all_or_fail(observer.save_if_due)
            signal = int(gather_from_all(np.int32(stop())).max())
            status, message = _next_status(step, watch, signal, len(history) >= total)
        status, message = describe_end(status, message, len(history), total, record.label, config["seed"], has_folder)
        params, best_params = rounds.finish(), watch.best_params
        notes = rounds.evaluate_end(params if best_params is None else best_params) if status in ENDED else {}
        run_on_all_or_fail(observer.at_end, RunEnd(status, message, params, notes))
        signal = signal or int(gather_from_all(np.int32(stop())).max())  # else the next of several runs would begin
    return RunResult(
        history, params, rounds.server, rounds.clients, status, message, record.folder,
        dict(record.hyperparameters), signal, rounds.task if rounds.has_one_model else None, watch.best,
        best_params, notes.get("personalized"), notes.get("initial"),
    )  # fmt: skip


def _begin(
    stack: ExitStack, rounds: Rounds, total: int, config: Mapping[str, Any], record: Record, watch: Watch
) -> tuple[History, Observer, Update]:
    """Open the run's folder, until `stack` closes it; return the history so far, and what follows the run."""
    if record.folder is not None:
        check_names(rounds.params())
        stack.enter_context(locked(record.folder))
    history = _restore(rounds, total, config, record, watch)
    observer = Observer()
    if record.folder is not None:
        has_model = rounds.has_one_model and rounds.task.predict is not None
        if has_model:
            export_predict(rounds.task)  # if it fails, nothing is left behind
        observer = FolderWriter(record.folder, record, config, rounds, history, watch)
        stack.callback(observer.close)
        if has_model:
            write_model(record.folder, rounds.task)
    return history, observer, stack.enter_context(bar(record.label, total, len(history), enabled=record.progress))


def _send_to_all(history: History, rounds: Rounds, watch: Watch, folder: str | Path | None) -> None:
    if is_distributed():
        history.rows, rounds.server, watch.saved_params = broadcast((history.rows, rounds.server, watch.saved_params))
        rounds.server = jax.device_put(rounds.server)
        if isinstance(rounds.clients, OnHost):
            load_clients(rounds.clients, None if folder is None else Path(folder), len(history))
        else:
            rounds.clients.put(jax.device_put(broadcast(rounds.clients.tree)))


def _next_status(step: RoundsResult, watch: Watch, signal: int, is_last: bool) -> tuple[Status, str | None]:
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
    check_same_experiment(folder, stored := read_json(folder / "config.json"), config)
    if record.resume_round is not None:
        check_int("rounds", total, least_total(folder, record.resume_round))
    if not rounds_of(folder) and read_summary(folder).get("status", Status.RUNNING) == Status.RUNNING:
        return History()  # killed before its first checkpoint: begin again
    at_least, at_most = (0, total) if record.resume_round is None else [record.resume_round] * 2
    done, state = restore_checkpoint(folder, watch.saved_state(rounds.server), rounds.clients, at_most, at_least)
    rounds.server, watch.saved_params = state if watch.keeps else (state, None)
    history = History(read_rows(folder, done))
    if done == total != stored["rounds"] and config["metrics"] and not was_evaluated(history[-1]):
        raise UsageError(f"rounds must be > {done}, as the state after round {done} was not evaluated")
    return history
