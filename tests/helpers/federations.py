"""Small deployments for the tests, their expected results, and the processes they leave."""

import json
import math
import os
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from fedoptax.algorithm import BatchList, FedAlgorithm
from fedoptax.deploy.client import NodeClient, Order
from fedoptax.deploy.config import Deployment, build_task
from fedoptax.deploy.evaluation import evaluate_client
from fedoptax.deploy.rounds import Arrived
from fedoptax.deploy.server import RawReply
from fedoptax.deploy.wire import pack
from fedoptax.engine.batches import LocalWork, client_batches, task_grad_fn
from fedoptax.engine.eager import run_round
from fedoptax.engine.sampling import round_key
from fedoptax.experiments.presets import PRESETS
from fedoptax.storage.folder import named_leaves
from fedoptax.tasks.task import Task

ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {"client_lr": 0.05}, "fedadam": {"client_lr": 0.05, "server_lr": 0.03}, "mime": {"client_lr": 0.05},
    "fedlamb": {"lr": 0.01, "second_moment": "device", "gradient": "start"}, "scaffold": {"client_lr": 0.05},
    "fafed": {"lr": 0.02, "adaptive": "global"},
}  # fmt: skip


def need_flower() -> None:
    """Skip the test where Flower is not installed."""
    pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedoptax[flower]')")


task_of = cache(lambda: build_task(deployment()))  # the task of all of them, loaded once
grad_fn_of = cache(lambda: jax.jit(task_grad_fn(task_of())))


def deployment(algorithm: str = "scaffold", **changes: Any) -> Deployment:
    """Logistic regression on digits, three clients with unequal data, two per round."""
    given: dict[str, Any] = {
        "task": {"name": "digits", "model": "logistic", "num_clients": 3, "partition": "dirichlet-by-class"},
        "algorithm": algorithm, "hyperparameters": ALGORITHMS.get(algorithm) or PRESETS["digits"].get(algorithm, {}),
        "rounds": 5, "cohort_size": 2, "batch_size": 50, "quorum": 1.0, "seed": 3,
    }  # fmt: skip
    return Deployment(**(given | changes))


def keys_of(keys: Path) -> dict[str, Any]:
    """What a deployment has of a folder of keys."""
    from fedoptax.deploy.keys import describe_keys

    return describe_keys({path.name: path.read_bytes() for path in keys.glob("*.pub")})


def batches_of(task: Task, partition: int, round: int, seed: int, work: LocalWork) -> list[Any]:
    """The minibatches of one client in one round, as the simulation makes them."""
    key = jax.random.fold_in(round_key(jax.random.key(seed), round), partition)
    examples = {name: jnp.asarray(array) for name, array in task.clients.examples.items()}
    offset, size = task.clients.offsets[partition], task.clients.sizes[partition]
    made = client_batches(examples, jnp.int32(offset), jnp.int32(size), key, work, int(task.clients.sizes.max()))
    return BatchList(map(made.get, range(int(made.num_steps))), made.key)


def expected_params(given: Deployment, accepted: Sequence[Sequence[int]]) -> Any:
    """The parameters after rounds in which just these clients took part, by eager rounds on one machine."""
    task = task_of()
    algorithm: FedAlgorithm = given.build_algorithm()
    weighting = given.weighting or algorithm.weighting
    params = task.init(jax.random.fold_in(jax.random.key(given.seed), 0))
    server, states = algorithm.init(params), [algorithm.init_client(params)] * task.clients.num_clients
    for number, cohort in enumerate(accepted):
        batches = [batches_of(task, i, number, given.seed, given.work) for i in cohort]
        sizes = [int(task.clients.sizes[i]) for i in cohort]
        weights = sizes if weighting == "examples" else None
        old = [states[i] for i in cohort]
        server, new, _ = run_round(algorithm, grad_fn_of(), server, old, batches, weights, task.clients.num_clients)
        for i, state in zip(cohort, new):
            states[i] = state
    return algorithm.params(server)


def network_lines(out: Path) -> list[dict[str, Any]]:
    """The lines of network.jsonl."""
    path = out / "network.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def assert_params(out: Path, params: Any, atol: float = 2e-5, rtol: float = 1e-4) -> None:
    """The run's parameters are these, to float tolerance."""
    with np.load(out / "params.npz") as stored:
        for name, value in named_leaves(params).items():
            np.testing.assert_allclose(stored[name], value, rtol, atol, err_msg=name)


def processes_of(work: Path) -> dict[int, str]:
    """The running processes that have the work folder in their environment or command line, with their commands."""
    found = {}
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            if str(work) in f"{process.environ()} {command}" and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = command
        except psutil.Error:
            continue
    found.pop(os.getpid(), None)
    return found


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait for something, or fail."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.3)


def write_network(work: Path, given: Deployment, nodes: int, name: str) -> Path:
    """Write keys, an app and the settings of its first run into a folder; return the app's package."""
    from fedoptax.deploy.app import write_app
    from fedoptax.deploy.keys import make_keys, write_keys

    write_keys(work / "keys", make_keys(nodes))
    write_app(work / "app", replace(given, **keys_of(work / "keys")), name)
    (work / "run.toml").write_text("resume = false\n")
    return work / "app" / "fedoptax_app"


def arrays_of(message: bytes) -> dict[str, np.ndarray]:
    """The arrays of a packed message, by name."""
    line, _, rest = message.partition(b"\n")
    arrays = {}
    for name, (dtype, shape) in json.loads(line).items():
        size = math.prod(shape) * np.dtype(dtype).itemsize
        arrays[name], rest = np.frombuffer(rest[:size], dtype).reshape(shape), rest[size:]
    return arrays


def replace_arrays(message: bytes, **arrays: np.ndarray) -> bytes:
    """A packed message with other arrays in the place of some."""
    arrays = arrays_of(message) | arrays
    line = json.dumps({name: (array.dtype.name, array.shape) for name, array in arrays.items()}).encode()
    line = line.ljust(len(message.partition(b"\n")[0])) + b"\n"
    return line + b"".join(array.tobytes() for array in arrays.values())


class InMemory:
    """A `Network` of clients that answer at once, with their states in a folder."""

    def __init__(self, given: Deployment, states: Path) -> None:
        algorithm = given.build_algorithm()
        numbers = range(task_of().clients.num_clients)
        self.clients = [NodeClient(task_of(), algorithm, given.work, i, given.seed) for i in numbers]
        self.states, self.orders = states, list[Mapping[str, Any]]()
        self.names = {i: f"node-{i}" for i in numbers}
        self._due: list[Arrived] = []

    def begin(
        self,
        arrays: bytes,
        order: Callable[[int], Mapping[str, Any]],
        kind: str = "train",
        at_work: Container[int] = (),
    ) -> None:
        self._arrays, self._order, self._kind = arrays, order, kind

    def connected(self) -> set[int]:
        return set(range(len(self.clients)))

    def absent(self, partition: int) -> str:
        return "not connected"

    def send(self, partitions: Sequence[int]) -> Sequence[int]:
        for i in partitions:
            if self._kind == "evaluate":
                do, order = evaluate_client, self._order(i)
            else:
                do, order = NodeClient.compute, self._order(i)
                self.orders.append(order)
            sent, numbers = do(self.clients[i], self._arrays, Order.read(order), self.states / f"node-{i}")
            self._due.append(Arrived(i, RawReply(pack(sent), numbers)))
        return partitions

    def receive(self) -> list[Arrived]:
        due, self._due = self._due, []
        return [a._replace(reply=self.change(a.partition, a.reply)) for a in due]

    def change(self, partition: int, reply: RawReply) -> RawReply:
        """Make of a client's reply what arrives: the reply itself."""
        return reply


def small_deployment(out: Path, algorithm: str = "fedadam", **changes: Any) -> Deployment:
    """Three rounds of `deployment`, for `run_in_memory`."""
    return deployment(algorithm, **({"out": str(out), "rounds": 3} | changes))


def run_in_memory(given: Deployment, network: Any = None, lines: list[str] | None = None) -> None:
    """Run a deployment, by default with honest clients; `lines` takes what it prints."""
    from fedoptax.deploy.deployment import run_deployment  # needs Flower

    network = network or InMemory(given, Path(given.out).with_name("nodes"))
    run_deployment(given, network.clients[0].task, network, (lines if lines is not None else []).append)


def rounds_in(out: Path) -> tuple[list[int], list[int]]:
    """The rounds of the history and of network.jsonl."""
    rows = (out / "history.jsonl").read_text().splitlines()
    return [json.loads(row)["round"] for row in rows], [line["round"] for line in network_lines(out)]
