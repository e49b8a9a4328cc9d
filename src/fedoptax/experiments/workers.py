"""Independent runs by the workers of an executor: processes of this machine, of Dask, or jobs of Slurm.

A worker gets the task by its name and options, and does each run as one process would: in the run's folder, from its
last checkpoint, on as many devices. All workers must reach the folders.
"""

import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import lru_cache
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import jax

import fedoptax
from fedoptax._progress import Update, part_of
from fedoptax.engine.client_states import OnDevice
from fedoptax.engine.sampling import random_settings
from fedoptax.engine.xla import use_cache
from fedoptax.errors import RunError, UsageError, check_int, import_extra, shorten
from fedoptax.experiments.result import Interrupted, RunResult
from fedoptax.experiments.signals import answering, deferred_interrupt, follow_parent
from fedoptax.storage.folder import Status
from fedoptax.storage.history import History
from fedoptax.tasks.task import Task

STOP = ".stop.tmp"
"""The file that tells the workers to stop after the current rounds."""
ATTEMPTS = 3
POLL = 0.1  # seconds
EVERY = 1.0  # seconds between two of a worker's notes on how far its job is


class Job(NamedTuple):
    """One of several runs: `function(task, shared, *arguments, progress=…)`, of the module level; and what it is."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    rounds: int
    name: str
    place: int = 0  # among `size` runs
    size: int = 1


def run_jobs(task: Task, shared: Any, jobs: Sequence[Job], folder: Path, update: Update, executor: Any) -> list[Any]:
    """Run jobs one after another, or by the workers of an executor, if not None; return their results in order.

    `shared` is a further argument of all jobs, which pickle can send. In the `folder` of the results workers look
    whether they should stop. `update` receives the rounds of all jobs together. Besides an `Executor`, `executor` may
    be an object whose `submit` returns what has `done`, `result` and `cancel`.

    Raises:
      UsageError: the task or an argument cannot be sent.
      RunError: a job failed, or three workers died before one was done; the others have stopped.
      Interrupted: Ctrl-C or a signal.
    """
    first = jobs[0].place * jobs[0].rounds if jobs else 0  # rounds of equal runs that came before these
    if executor is None:
        before = accumulate((job.rounds for job in jobs), initial=first)
        parts = [part_of(update, job.place, job.size, done, job.rounds, job.name) for job, done in zip(jobs, before)]
        return [job.function(task, shared, *job.arguments, progress=part) for job, part in zip(jobs, parts)]
    settings = {**random_settings(), "version": fedoptax.__version__, "devices": jax.device_count()}
    order, stop = (settings, _pack(task, shared), (folder / STOP).absolute()), folder / STOP
    rounds_of = [(folder / f".rounds-{i}.tmp").absolute() for i in range(len(jobs))]
    results: dict[int, Any] = {}
    with deferred_interrupt() as stopped:
        lost, has_begun = 0, False  # workers since a job was last done; whether rounds are done
        pending = {i: executor.submit(work, *order, job, rounds_of[i]) for i, job in enumerate(jobs)}
        try:
            while pending:
                broken = []
                for i in [i for i, future in pending.items() if future.done()]:
                    try:
                        results[i] = pending.pop(i).result()
                    except BrokenExecutor:  # a worker died, and with it the pool and all its jobs
                        broken.append(i)
                    else:
                        lost = 0
                running = sum(_read_rounds(rounds_of[k]) for k in pending)
                has_begun = has_begun or running > 0 or not pending  # till then perhaps runs are found that were done
                if has_begun:
                    rounds = first + sum(jobs[k].rounds for k in results) + running
                    update(rounds, f"{rounds} of {jobs[0].size * jobs[0].rounds} rounds done")
                lost += bool(broken)
                if lost == ATTEMPTS:
                    raise RunError(f"{jobs[broken[0]].name}: {ATTEMPTS} workers died, one after another")
                pending |= {i: executor.submit(work, *order, jobs[i], rounds_of[i]) for i in broken}
                if stopped():
                    break
                time.sleep(POLL)
        except (RunError, UsageError):
            raise
        except Exception as error:
            raise RunError(f"a worker failed: {shorten(error)}") from error
        finally:
            _stop(stop, list(pending.values()))
            for file in rounds_of:
                file.unlink(missing_ok=True)
        if pending or stopped():
            message = f"stopped after {jobs[0].place + len(results)} of {jobs[0].size} runs"
            nothing = OnDevice((), 0)
            result = RunResult(History(), (), (), nothing, Status.INTERRUPTED, message, folder, signal=stopped())
            raise Interrupted(result)
    return [results[i] for i in range(len(jobs))]


def _stop(stop: Path, pending: list[Any]) -> None:
    """Let the jobs that are running stop after their rounds, and wait for them; the others do not begin."""
    if not pending:
        return
    stop.touch()
    for future in pending:
        if isinstance(future, Future) or getattr(future, "state", "") == "PENDING":  # a job of Slurm is killed by it
            future.cancel()
    for future in pending:
        while not future.done():
            time.sleep(POLL)
    stop.unlink()


def _write_rounds(file: Path) -> Update:
    """Make an update that writes the rounds done to a file, from which the bar is moved."""
    following = 0.0

    def update(done: int, note: str) -> None:
        nonlocal following
        if (now := time.monotonic()) >= following:
            following = now + EVERY
            with suppress(OSError):
                file.write_text(str(done))

    return update


def _read_rounds(file: Path) -> int:
    with suppress(OSError, ValueError):  # not there yet, or just being written
        return int(file.read_text())
    return 0


def work(settings: dict[str, Any], packed: bytes, stop: Path, job: Job, rounds: Path) -> Any:
    """Do a job in a worker; None if it was stopped. A `RunError` if this process differs from the one that sends it."""
    if settings["version"] != fedoptax.__version__:
        raise RunError(f"a worker has fedoptax {fedoptax.__version__}, and {settings['version']} is needed")
    for name in random_settings():
        jax.config.update(name, settings[name])
    with suppress(RuntimeError):  # JAX is in use already
        jax.config.update("jax_num_cpu_devices", settings["devices"])
    if jax.device_count() != settings["devices"]:
        raise RunError(f"a worker has {jax.device_count()} devices, and {settings['devices']} are needed")
    use_cache()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to all: the file decides
    with answering(lambda: signal.SIGTERM if stop.exists() else 0), suppress(Interrupted):
        if not stop.exists():
            return job.function(*_unpack(packed), *job.arguments, progress=_write_rounds(rounds))
    return None


def _pack(task: Task, shared: Any) -> bytes:
    """Return a task and `shared` as bytes; of a task of one's own, what cloudpickle can send."""
    try:
        return pickle.dumps((task, shared))
    except UsageError:
        try:
            import cloudpickle

            return cloudpickle.dumps(({field.name: getattr(task, field.name) for field in fields(task)}, shared))
        except Exception:
            remedy = "name it as MODULE:FUNCTION, or make it with load_task"
            raise UsageError(f"task '{task.name}' cannot be sent to workers: {remedy}") from None


@lru_cache(maxsize=1)
def _unpack(packed: bytes) -> tuple[Task, Any]:
    """Return task and `shared`, once for all jobs of a worker, so that they share compilations."""
    task, shared = pickle.loads(packed)
    return (task if isinstance(task, Task) else Task(**task)), shared


class Processes(Executor):
    """Processes of this machine; where one dies, others are started for the jobs that are left."""

    def __init__(self, count: int) -> None:
        # not by fork, which would copy a JAX that is in use
        self._start = lambda: ProcessPoolExecutor(check_int("workers", count), get_context("spawn"), follow_parent)
        self._pool = self._start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        """Submit a job, to new processes if the present ones are broken."""
        try:
            return self._pool.submit(function, *arguments, **more)
        except BrokenExecutor:
            self._pool = self._start()
            return self._pool.submit(function, *arguments, **more)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes."""
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


@contextmanager
def open_executor(workers: str | None, folder: Path) -> Iterator[Any]:
    """Open the executor that `workers` names: N processes, `dask:ADDRESS` or `submitit:PARTITION`; of None, None.

    Another text or a missing package is a `UsageError`, an address without an answer a `RunError`.
    """
    kind, _, place = (workers or "").partition(":")
    if workers is None:
        yield None
    elif workers.isdecimal():
        with Processes(int(workers)) as executor:
            yield executor
    elif kind == "dask" and place:
        distributed = import_extra("distributed", "workers dask need", kind)
        try:
            client = distributed.Client(place, timeout=10, set_as_default=False)
        except (OSError, ValueError) as error:
            raise RunError(f"workers: no answer from {place} ({shorten(error)})") from None
        with client:
            yield client.get_executor(pure=False)
    elif kind == "submitit" and place:
        submitit = import_extra("submitit", "workers submitit need", kind)
        executor = submitit.AutoExecutor(folder / "submitit", "local" if place == "local" else "slurm")
        executor.update_parameters(timeout_min=24 * 60, **({} if place == "local" else {"slurm_partition": place}))
        yield executor
    else:
        raise UsageError(f"workers must be a number, dask:ADDRESS or submitit:PARTITION, got {workers!r}")
