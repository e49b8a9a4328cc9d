"""A small ragged task for the engines: the oracles' network and loss, clients of 1 to 11 examples."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.data.federated import FederatedData
from fedoptax.engine.batches import LocalWork, Minibatch, client_batches, count_local_steps
from fedoptax.engine.data import device_data
from fedoptax.engine.plan import Plan
from fedoptax.engine.sampling import round_key, sample_cohort
from fedoptax.tasks.task import Task, masked_mean
from oracles.compare import log_probabilities
from oracles.problem import Batch, Problem, flatten, nest
from oracles.problem import make as make_problem

SIZES = (7, 3, 11, 1, 6, 4, 9)
START = make_problem().params


def ragged_clients(sizes: tuple[int, ...] = SIZES, dtype: str = "float64") -> FederatedData:
    rng = np.random.default_rng(5)
    clients = []
    for size in sizes:
        truth = rng.normal(size=(4, 3)) * 2
        x = rng.normal(size=(size, 4)) + rng.normal(size=4) / 2
        clients.append({"x": x.astype(dtype), "y": np.argmax(x @ truth, axis=1).astype(np.int32)})
    return FederatedData.from_clients(clients)


def masked_loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
    return masked_mean(-log_probabilities(params, batch), {"mask": batch["mask"]})


def plain_loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
    """As a user writes it who has not heard of masks."""
    return -jnp.mean(log_probabilities(params, batch))


def noisy_loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
    """A loss with dropout on the inputs."""
    keep = jax.random.bernoulli(key, 0.7, batch["x"].shape)
    return masked_loss(params, {**batch, "x": jnp.where(keep, batch["x"], 0)}, key)


def metrics(params: Any, batch: Any) -> dict[str, jax.Array]:
    return {"nll": -log_probabilities(params, batch)}


def small_task(loss: Any = masked_loss, dtype: str = "float32", sizes: tuple[int, ...] = SIZES, **changes: Any) -> Task:
    data = ragged_clients(sizes, dtype)
    params = jax.tree.map(lambda a: np.asarray(a, dtype), nest(START))
    settings = {
        "name": "small", "init": lambda key: jax.tree.map(jnp.asarray, params), "loss": loss, "metrics": metrics,
        "clients": data, "test": data.client(2), "primary_metric": "nll", "higher_is_better": False,
    }  # fmt: skip
    return Task(**(settings | changes))


LINE_SIZES = (7, 3, 11, 1, 6, 4, 9, 5)


@cache
def line() -> Task:
    """One vector to be learned, as the mean of the clients' vectors: small, so that XLA compiles it quickly."""
    rng = np.random.default_rng(0)
    clients = [{"x": (rng.normal(size=(n, 3)) + i / 4).astype(np.float32)} for i, n in enumerate(LINE_SIZES)]

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        return masked_mean(jnp.sum(jnp.square(params - batch["x"]), axis=1), {"mask": batch["mask"]})

    data = FederatedData.from_clients(clients)
    return Task("line", lambda key: jnp.full(3, 2.0), loss, lambda p, b: {}, data, label=None, spec={"made": "here"})


def batch_maker(task: Task, work: LocalWork) -> Callable[[int, jax.Array], list[Minibatch]]:
    """Make `(client, key of the round) -> minibatches` as the engine draws them; compiled once for all clients."""
    data, sizes = device_data(task), task.clients.sizes
    most = int(count_local_steps(jnp.asarray(sizes), work).max())

    @jax.jit
    def draw(client: jax.Array, key: jax.Array) -> tuple[jax.Array, Minibatch]:
        own = jax.random.fold_in(key, client)
        made = client_batches(data.examples, data.offsets[client], data.sizes[client], own, work, int(sizes.max()))
        return made.num_steps, jax.vmap(made.get)(jnp.arange(most))

    def batches(client: int, key: jax.Array) -> list[Minibatch]:
        number, stacked = draw(client, key)
        return [jax.tree.map(lambda a, k=k: a[k], stacked) for k in range(int(number))]

    return batches


class EngineProblem(Problem):
    """The oracles' problem with the cohorts and minibatches that the engine draws for a task."""

    def __init__(self, task: Task, plan: Plan, seed: int, rounds: int) -> None:
        key, make_batches = jax.random.key(seed), batch_maker(task, plan.work)
        cohorts = tuple(
            tuple(int(i) for i in sample_cohort(key, r, task.clients.num_clients, plan.cohort_size))
            for r in range(rounds)
        )
        params = flatten(jax.tree.map(np.asarray, task.init(key)))
        super().__init__(params, tuple(() for _ in range(task.clients.num_clients)), cohorts)
        drawn: dict[tuple[int, int], list[Batch]] = {}
        for r, cohort in enumerate(cohorts):
            for i in cohort:
                drawn[r, i] = [real_examples(batch.examples) for batch in make_batches(i, round_key(key, r))]
        object.__setattr__(self, "drawn", drawn)
        object.__setattr__(self, "sizes", task.clients.sizes)

    def batches(self, r: int, i: int) -> list[Batch]:
        return self.drawn[r, i]

    def examples(self, i: int) -> int:
        return int(self.sizes[i])


def real_examples(examples: dict[str, jax.Array]) -> Batch:
    """A minibatch without its padding, in float64."""
    mask = np.asarray(examples["mask"])
    batch = {name: np.asarray(a)[mask] for name, a in examples.items() if name != "mask"}
    return {"x": batch["x"].astype(np.float64), "y": batch["y"]}
