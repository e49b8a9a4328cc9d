"""Runs side by side: the same results and folders by any executor; what is lost is done again, what is done is not."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from command_line import fedoptax
from fedoptax._files import read_arrays, read_json
from fedoptax.experiments import workers
from fedoptax.experiments.workers import Job, Processes, open_executor, run_jobs
from fedoptax.storage.folder import is_finished
from refusals import refused
from small import small_task

TASK = fx.load_task("quadratic", num_clients=8)
SMALL: dict[str, Any] = {"rounds": 3, "cohort_size": 3, "batch_size": 5}
GRIDS = {"fedavg": {"client_lr": [1e-3, 0.03]}, "scaffold": {"client_lr": [0.03]}}
COMPARE = ["compare", "--task", "digits", "--model", "logistic", "--num-clients", "8", "--cohort-size", "3",
    "--algorithms", "fedavg", "--seeds", "4", "--rounds", "1200"]  # fmt: skip


def params(folder: Path) -> dict[str, np.ndarray]:
    return {
        str(path.relative_to(folder)): next(iter(read_arrays(path).values()))
        for path in sorted(folder.rglob("params.npz"))
    }


def compare(out: Path, **options: Any) -> dict[str, np.ndarray]:
    fx.compare(TASK, ["fedavg", "scaffold"], out, seeds=2, grids=GRIDS, progress=False, **SMALL, **options)
    return params(out)


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys() and one
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return compare(tmp_path_factory.mktemp("alone") / "a")


def test_an_executor_changes_nothing_and_repeats_nothing(alone, tmp_path):
    with ThreadPoolExecutor(1) as executor:
        assert_same(compare(tmp_path / "a", executor=executor), alone)
        summary = tmp_path / "a" / "scaffold" / "seed-1" / "summary.json"
        ended = read_json(summary)["ended"]
        compare(tmp_path / "a", executor=executor)
        assert read_json(summary)["ended"] == ended
        found = fx.tune(TASK, "fedavg", GRIDS["fedavg"], tmp_path / "t", progress=False, executor=executor, **SMALL)
    assert [trial.values["client_lr"] for trial in found.trials] == GRIDS["fedavg"]["client_lr"]
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_rounds_of_jobs_that_run_are_counted(tmp_path):
    def wait_at_five(task: fx.Task, shared: int, progress: Any) -> int:
        progress(5, "")
        return seen.wait(60)

    seen, job = threading.Event(), Job(wait_at_five, (), 9, "job")
    with ThreadPoolExecutor(1) as executor:
        assert run_jobs(TASK, 2, [job], tmp_path, lambda done, _: seen.set() if done == 5 else None, executor) == [True]


class Dying:
    """An executor whose first jobs are lost."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths  # of workers, of a pool that ends with the first

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.deaths -= 1
        if self.deaths >= 0:
            future.set_exception(BrokenExecutor("a process died"))
        else:
            try:
                future.set_result(function(*arguments))
            except Exception as error:
                future.set_exception(error)
        return future


def double(task: fx.Task, shared: int, number: int, progress: Any) -> int:
    if number < 0:
        raise fx.RunError("number must be >= 0, got -1")
    return shared * number


def run(executor: Any, folder: Path, *numbers: int, task: fx.Task = TASK) -> list[int]:
    jobs = [Job(double, (number,), 1, f"job {number}") for number in numbers]
    return run_jobs(task, 2, jobs, folder, lambda done, note: None, executor)


def test_a_job_whose_worker_died_is_done_again(tmp_path):
    assert run(Dying(2), tmp_path, 1, 2, 3) == [2, 4, 6]
    refused(lambda: run(Dying(3), tmp_path, 1), "job 1: 3 workers died, one after another")
    refused(lambda: run(Dying(0), tmp_path, 1, -1, 2), "number must be >= 0")


def test_a_task_of_ones_own_is_sent_if_its_functions_can_be(tmp_path):
    pytest.importorskip("cloudpickle")
    assert run(Dying(0), tmp_path, 4, task=small_task()) == [8]
    lock = threading.Lock()

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return jnp.sum(params["hidden"]["bias"]) * (lock is not None)

    refused(lambda: run(Dying(0), tmp_path, 4, task=small_task(loss)), "be sent to workers: name it as MODULE:FUNCTION")


def test_another_version_or_other_devices_are_one_line(monkeypatch, tmp_path):
    settings = {"version": "0.0", "devices": 1}
    with pytest.raises(fx.RunError, match=r"^a worker has fedoptax .*, and 0\.0 is needed$"):
        workers.work(settings, b"", tmp_path / "stop", Job(double, (1,), 1, ""), tmp_path)
    counts = iter([3, 1, 1])
    monkeypatch.setattr(workers.jax, "device_count", lambda: next(counts))
    refused(lambda: run(Dying(0), tmp_path, 1), "a worker has 1 devices, and 3 are needed")


@pytest.mark.parametrize("text", ["many", "0", "dask:", "slurm:x"])
def test_workers_that_are_none_are_refused(text, tmp_path):
    refused(lambda: open_executor(text, tmp_path).__enter__(), "workers must be")


@pytest.mark.long
def test_processes_dask_and_submitit_give_what_one_process_gives(alone, tmp_path):
    with Processes(2) as executor:
        assert_same(compare(tmp_path / "processes", executor=executor), alone)
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, open_executor(f"dask:{cluster.scheduler_address}", tmp_path) as executor:
        assert_same(compare(tmp_path / "dask", executor=executor), alone)
    pytest.importorskip("submitit")
    with open_executor("submitit:local", tmp_path) as executor:
        assert_same(compare(tmp_path / "submitit", executor=executor), alone)


def wait_for(process: subprocess.Popen[str], found: Callable[[], list[Any]]) -> list[Any]:
    for _ in range(15000):
        if things := found():
            return things
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError("not there after five minutes")


def workers_of(pid: int) -> list[int]:
    children = [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.long
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    lines = "with Processes(1) as pool:", "print(pool.submit(str, 1).result(), flush=True)", "time.sleep(90)"
    script = tmp_path / "parent.py"
    script.write_text("import time\nfrom fedoptax.experiments.workers import Processes\n"
                      "if __name__ == '__main__':\n " + "\n  ".join(lines))  # fmt: skip
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "1\n"
        parent.kill()
        assert parent.communicate(timeout=30) == ("", None)  # an end of the output that workers share


@pytest.mark.long
@pytest.mark.usefixtures("clean_home")
def test_a_killed_worker_costs_nothing_and_ctrl_c_stops_all(tmp_path):
    command = subprocess.Popen(
        [sys.executable, "-m", "fedoptax.cli.main", *COMPARE, "--out", "a", "--workers", "2",
         "--checkpoint-every", "0.1"],
        cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    wait_for(command, lambda: list(tmp_path.glob("a/*/seed-*/checkpoints/*/checkpoint.json")))
    killed, *_ = workers_of(command.pid)
    os.kill(killed, signal.SIGKILL)
    wait_for(command, lambda: [*filter(is_finished, (tmp_path / "a" / "fedavg").iterdir())])  # by the next workers
    os.killpg(command.pid, signal.SIGINT)  # as a terminal does
    _, err = command.communicate(timeout=300)
    assert command.returncode == 130 and "of 4 runs; continue with: fedoptax resume a" in err
    assert fedoptax("resume", tmp_path / "a", "--workers", "2") == 0
    assert fedoptax(*COMPARE, "--out", tmp_path / "b") == 0
    assert_same(params(tmp_path / "a"), params(tmp_path / "b"))
