"""Test metrics inside XLA, batch after batch, on padded examples: over all of them, and client by client."""

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Tree
from fedoptax.data.federated import check_fields
from fedoptax.engine.mesh import AXIS
from fedoptax.errors import DataError, UsageError, check_choice
from fedoptax.tasks.task import Task

Sums = dict[str, tuple[jax.Array, jax.Array]]  # metric -> Σ weights·values and Σ weights, each (owners,)


class EvaluationData(NamedTuple):
    """Test examples in padded batches, `{field: (batches, batch, …), "mask": …}`, and the client of each, or None."""

    examples: dict[str, jax.Array]
    owners: jax.Array | None


@lru_cache(maxsize=4)
def evaluation_data(task: Task) -> EvaluationData | None:
    """Put the task's test examples on the device, once; None if it has none."""
    if task.test is None:
        return None
    arrays = {name: np.asarray(value) for name, value in task.test.items()}
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise DataError(f"test examples must have fields of one length > 0, got {counts}")
    check_fields(arrays)
    n = next(iter(counts.values()))
    batch = min(-(-n // jax.device_count()), task.eval_batch)  # a batch at least for each device of a mesh
    batches = -(-n // batch)

    def batched(array: np.ndarray) -> jax.Array:
        padding = [(0, batches * batch - n), *[(0, 0)] * (array.ndim - 1)]
        return jax.device_put(np.pad(array, padding, mode="edge").reshape(batches, batch, *array.shape[1:]))

    examples = {name: batched(array) for name, array in arrays.items()}
    examples["mask"] = jax.device_put((np.arange(batches * batch) < n).reshape(batches, batch))
    if task.test_owners is None:
        return EvaluationData(examples, None)
    owners = np.asarray(task.test_owners)
    if owners.shape != (n,) or not np.issubdtype(owners.dtype, np.integer) or owners.min() < 0:
        raise DataError(f"test_owners must be {n} numbers of clients, got {owners.dtype}{list(owners.shape)}")
    return EvaluationData(examples, batched(owners.astype(np.int32)))


def evaluate(task: Task, params: Tree, data: EvaluationData, mesh: int = 1) -> dict[str, jax.Array]:
    """Evaluate a model; on a mesh of devices each evaluates its part of the batches.

    Returns:
      `test_NAME` for every metric: Σ weights·values / Σ weights over all test examples, and the task's derived metrics
      of these. If the examples have owners, of the primary metric also `client_NAME_mean`, `client_NAME_spread` (the
      standard deviation) and `client_NAME_worst_decile` (the mean over the worst tenth of the clients, at least one),
      every client that has test examples counting once.
    """
    return _summarize(task, _sums(task, params, data, mesh), data.owners is not None)


def evaluate_own(task: Task, models: Tree, data: EvaluationData) -> dict[str, jax.Array]:
    """Evaluate models (N, …) of clients, each on its client's test examples, and summarize as `evaluate` does.

    Test examples of others, who did not train, count for nothing.

    Raises:
      UsageError: the task's test examples have no owners.
    """
    return _summarize(task, own_sums(task, models, data), True)


def own_sums(task: Task, models: Tree, data: EvaluationData) -> Sums:
    """Sum each metric per client, (N,), by its own model of `models` (N, …)."""
    if data.owners is None or task.test_owners is None:
        raise UsageError(f"task '{task.name}' must have test_owners for models of their own")
    clients = jax.tree.leaves(models)[0].shape[0]
    owners = np.asarray(task.test_owners)
    counts = np.bincount(owners, minlength=clients)[:clients]
    if not counts.any():
        raise UsageError(f"task '{task.name}' must have test examples of clients that train")
    batch = min(int(counts.max()), task.eval_batch)
    places = np.arange(-(-int(counts.max()) // batch) * batch).reshape(-1, batch)
    order = jnp.asarray(np.argsort(owners, kind="stable"), jnp.int32)
    flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in data.examples.items()}
    alone = replace(task, test=None, test_owners=None)

    def of_client(given: tuple[Tree, jax.Array, jax.Array]) -> Sums:
        model, start, count = given
        rows = order.at[start + places].get(mode="clip")
        examples = {name: array[rows] for name, array in flat.items()} | {"mask": jnp.less(places, count)}
        return jax.tree.map(lambda a: a[0], _sums(alone, model, EvaluationData(examples, None)))

    starts = jnp.asarray(np.cumsum(counts) - counts, jnp.int32)
    return jax.lax.map(of_client, (models, starts, jnp.asarray(counts, jnp.int32)))


def _summarize(task: Task, sums: Sums, has_owners: bool) -> dict[str, jax.Array]:
    values = metric_values(task, _total(sums))
    name = primary_metric(task, values)
    columns = {f"test_{metric}": value for metric, value in values.items()}
    if not has_owners:
        return columns
    summary = client_summary(metric_values(task, sums)[name], _present(sums), task.higher_is_better)
    return columns | {f"client_{name}_{what}": value for what, value in summary.items()}


def sum_metrics(task: Task, params: Tree, data: EvaluationData) -> Sums:
    """Return Σ weights·values and Σ weights of every metric over all test examples."""
    return _total(_sums(task, params, data))


def evaluate_clients(task: Task, params: Tree) -> dict[str, np.ndarray]:
    """Evaluate every metric per client, float32 (clients,); NaN for one without test examples.

    Raises:
      UsageError: the task's test examples have no owners.
    """
    data = evaluation_data(task)
    if data is None or data.owners is None:
        raise UsageError(f"task '{task.name}' must have test_owners for metrics per client")

    @jax.jit
    def by_client(params: Tree, data: EvaluationData) -> dict[str, jax.Array]:
        sums = _sums(task, params, data)
        return {name: jnp.where(_present(sums), value, jnp.nan) for name, value in metric_values(task, sums).items()}

    return {name: np.asarray(value) for name, value in by_client(params, data).items()}


def column_names(task: Task, params: Tree, data: EvaluationData | None) -> list[str]:
    """List the columns that `evaluate` gives, in the history's order, without computing anything."""
    return [] if data is None else sorted(jax.eval_shape(partial(evaluate, task), params, data))


def primary_metric(task: Task, names: Collection[str]) -> str:
    """Return the task's main metric: its own choice, else `accuracy`, else the first by name."""
    if task.primary_metric is not None:
        check_choice("primary_metric", task.primary_metric, names)
        return task.primary_metric
    return "accuracy" if "accuracy" in names else min(names)


def initial_loss(task: Task, seed: int, examples: int) -> float:
    """Return the training loss, before the first round of a run with this seed, of a batch of all clients' examples."""
    key, total = jax.random.key(seed), int(task.clients.offsets[-1])
    rows = np.linspace(0, total - 1, examples).astype(np.int64)
    batch = {name: jnp.asarray(array[rows]) for name, array in task.clients.examples.items()}
    batch["mask"] = jnp.ones(examples, bool)
    return float(jax.jit(lambda: task.loss(task.init(jax.random.fold_in(key, 0)), batch, key))())


def client_summary(values: jax.Array, present: jax.Array, higher_is_better: bool) -> dict[str, jax.Array]:
    """Summarize `values` (clients,) over the clients that are `present`: mean, spread and worst decile."""
    count = jnp.maximum(jnp.sum(present), 1)
    mean = jnp.sum(jnp.where(present, values, 0)) / count
    spread = jnp.sqrt(jnp.sum(jnp.where(present, jnp.square(values - mean), 0)) / count)
    worst_first = jnp.sort(jnp.where(present, values if higher_is_better else -values, jnp.inf))
    tenth = jnp.ceil(count / 10)
    worst = jnp.sum(jnp.where(jnp.arange(len(values)) < tenth, worst_first, 0)) / tenth
    return {"mean": mean, "spread": spread, "worst_decile": worst if higher_is_better else -worst}


def _sums(task: Task, params: Tree, data: EvaluationData, mesh: int = 1) -> Sums:
    """Sum each metric's weights·values and weights per owner, or over all examples; padding counts for nothing."""
    owners = 1 if task.test_owners is None else int(np.max(np.asarray(task.test_owners))) + 1

    @partial(jax.jit, inline=True)  # traced once, for its form and for the loop
    def of_batch(examples: Tree, owner: jax.Array | None) -> Sums:
        def add_up(values: jax.Array) -> jax.Array:
            by_example = jnp.sum(values.reshape(len(values), -1), axis=1, dtype=jnp.float32)
            if owner is None:
                return jnp.sum(by_example, keepdims=True)
            return jax.ops.segment_sum(by_example, owner, owners)

        sums = {}
        for name, given in task.metrics(params, examples).items():
            values, weights = given if isinstance(given, tuple) else (given, jnp.ones_like(given, jnp.float32))
            weights = jnp.where(examples["mask"].reshape(-1, *[1] * (weights.ndim - 1)), weights, 0)
            sums[name] = add_up(jnp.where(weights > 0, weights * values, 0)), add_up(weights)
        return sums

    def add(i: jax.Array, total: Sums) -> Sums:
        return jax.tree.map(jnp.add, total, of_batch(*jax.tree.map(lambda a: a[i], data)))

    form = jax.eval_shape(of_batch, *jax.tree.map(lambda a: a[0], data))
    zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), form)
    batches = data.examples["mask"].shape[0]
    if mesh == 1:
        return jax.lax.fori_loop(0, batches, add, zero)
    device = jax.lax.axis_index(AXIS)
    own = (batches - device + mesh - 1) // mesh
    return jax.lax.psum(jax.lax.fori_loop(0, own, lambda i, total: add(device + i * mesh, total), zero), AXIS)


def _total(sums: Sums) -> Sums:
    return {name: (jnp.sum(value), jnp.sum(weight)) for name, (value, weight) in sums.items()}


def _present(sums: Sums) -> jax.Array:
    """Whether each owner has examples for every metric."""
    return jnp.all(jnp.stack([weight > 0 for _, weight in sums.values()]), axis=0)


def metric_values(task: Task, sums: Sums) -> dict[str, jax.Array]:
    """Return every metric of its sums, and the derived ones."""
    means = {name: value / jnp.maximum(weight, 1e-30) for name, (value, weight) in sums.items()}
    return means | {name: derive(means) for name, derive in task.derived.items()}
