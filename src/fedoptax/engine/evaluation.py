"""Metrics on held-out examples inside XLA, batch after batch, padded: over all of them, and client by client."""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Tree
from fedoptax.data.federated import check_fields
from fedoptax.engine.mesh import AXIS
from fedoptax.engine.xla import as_bits, host_errors
from fedoptax.errors import DataError, UsageError, check_choice, check_output
from fedoptax.tasks.task import Task

Sums = dict[str, tuple[jax.Array, jax.Array]]  # metric -> Σ weights·values and Σ weights, each (owners,)


PARTS = {"test": "test", "val": "validation"}
"""The kinds of held-out examples: how columns begin, and their names."""


class EvaluationData(NamedTuple):
    """Held-out examples in padded batches, `{field: (batches, batch, …), "mask": …}`, and the client of each."""

    examples: dict[str, jax.Array]
    owners: jax.Array | None


def held_out(task: Task, part: str) -> tuple[Mapping[str, np.ndarray] | None, np.ndarray | None]:
    """Return the task's examples of a part, `"test"` or `"val"`, and their owners, if there are any."""
    return (task.test, task.test_owners) if part == "test" else (task.validation, task.validation_owners)


def part_by_client(task: Task) -> str | None:
    """Return the part of which clients have their own: test examples of those who train, else validation, else test."""
    is_tested, owners = task.test is not None and task.test_owners is not None, task.test_owners
    if task.validation is not None and not (is_tested and np.min(np.asarray(owners)) < task.clients.num_clients):
        return "val"
    return "test" if is_tested else None


@lru_cache(maxsize=4)
def evaluation_data(task: Task) -> dict[str, EvaluationData]:
    """Put the task's held-out examples on the device, once, by part."""
    return {part: _put(task, part) for part in PARTS if held_out(task, part)[0] is not None}


def _put(task: Task, part: str) -> EvaluationData:
    given, owned_by = held_out(task, part)
    arrays = {name: np.asarray(value) for name, value in (given or {}).items()}
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise DataError(f"{PARTS[part]} examples must have fields of one length > 0, got {counts}")
    check_fields(arrays)
    n = next(iter(counts.values()))
    batch = min(-(-n // jax.device_count()), task.eval_batch)  # a batch at least for each device of a mesh
    batches = -(-n // batch)

    def batched(array: np.ndarray) -> jax.Array:
        padding = [(0, batches * batch - n), *[(0, 0)] * (array.ndim - 1)]
        return jax.device_put(np.pad(array, padding, mode="edge").reshape(batches, batch, *array.shape[1:]))

    examples = {name: batched(array) for name, array in arrays.items()}
    examples["mask"] = jax.device_put((np.arange(batches * batch) < n).reshape(batches, batch))
    if owned_by is None:
        return EvaluationData(examples, None)
    owners = np.asarray(owned_by)
    if owners.shape != (n,) or not np.issubdtype(owners.dtype, np.integer) or owners.min() < 0:
        kind = f"{owners.dtype}{list(owners.shape)}"
        raise DataError(f"{PARTS[part]}_owners must be {n} numbers of clients, got {kind}")
    return EvaluationData(examples, batched(owners.astype(np.int32)))


def evaluate(task: Task, params: Tree, data: Mapping[str, EvaluationData], mesh: int = 1) -> dict[str, jax.Array]:
    """Evaluate a model; on a mesh of devices each evaluates its part of the batches.

    Returns:
      `test_NAME` for every metric: Σ weights·values / Σ weights over all test examples, and the task's derived metrics
      of these; `val_NAME` likewise over the validation examples. Where clients have held-out examples of their own
      (see `part_by_client`), of the primary metric also `client_NAME_mean`, `client_NAME_spread` (the standard
      deviation) and `client_NAME_worst_decile` (the mean over the worst tenth of the clients, at least one), every
      client that has such examples counting once.
    """
    sums = {part: _sums(task, params, own, count_owners(task, part), mesh) for part, own in data.items()}
    return _summarize(task, sums)


def evaluate_own(task: Task, models: Tree, data: Mapping[str, EvaluationData]) -> dict[str, jax.Array]:
    """Evaluate models (N, …) of clients, each on its client's held-out examples, and summarize as `evaluate` does.

    Examples of nobody, or of others, who did not train, count for nothing.

    Raises:
      UsageError: no client that trains has held-out examples.
    """
    clients = jax.tree.leaves(models)[0].shape[0]
    owned = {part: owners for part in data if (owners := held_out(task, part)[1]) is not None}
    sums = {part: own_sums(task, models, data[part], part) for part in owned if np.min(owned[part]) < clients}
    if not sums:
        raise UsageError(f"task '{task.name}' must have test or validation examples of clients that train")
    return _summarize(task, sums)


def own_sums(task: Task, models: Tree, data: EvaluationData, part: str) -> Sums:
    """Sum each metric per client, (N,), by its own model of `models` (N, …)."""
    clients = jnp.arange(jax.tree.leaves(models)[0].shape[0], dtype=jnp.int32)
    evaluate_client = own_evaluation(task, data, part)
    return jax.lax.map(lambda given: evaluate_client(*given), (models, clients))


def own_evaluation(task: Task, data: EvaluationData, part: str) -> Callable[[Tree, jax.Array], Sums]:
    """Make `(model, client) -> sums` of each metric over the examples of a part that are the client's."""
    owners = np.asarray(held_out(task, part)[1])
    counts = np.bincount(owners, minlength=task.clients.num_clients)
    most = int(counts[: task.clients.num_clients].max())
    batch = min(most, task.eval_batch)
    places = np.arange(-(-most // batch) * batch).reshape(-1, batch)
    order = jnp.asarray(np.argsort(owners, kind="stable"), jnp.int32)
    starts, ends = (jnp.asarray(np.cumsum(counts) - first, jnp.int32) for first in (counts, 0))
    flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in data.examples.items()}

    def of_client(model: Tree, client: jax.Array) -> Sums:
        chosen = starts[client] + places
        rows = order.at[chosen].get(mode="clip")
        examples = {name: array[rows] for name, array in flat.items()} | {"mask": jnp.less(chosen, ends[client])}
        return jax.tree.map(lambda a: a[0], _sums(task, model, EvaluationData(examples, None)))

    return of_client


def _summarize(task: Task, sums: Mapping[str, Sums]) -> dict[str, jax.Array]:
    """Return the columns of the sums of each part."""
    columns: dict[str, jax.Array] = {}
    by_client = part_by_client(task)
    for part, own in sums.items():
        values = metric_values(task, _total(own))
        name = primary_metric(task, values)
        columns |= {f"{part}_{metric}": value for metric, value in values.items()}
        if part == by_client:
            summary = client_summary(metric_values(task, own)[name], _present(own), task.higher_is_better)
            columns |= {f"client_{name}_{what}": value for what, value in summary.items()}
    return columns


def sum_metrics(task: Task, params: Tree, data: EvaluationData) -> Sums:
    """Return Σ weights·values and Σ weights of every metric over all examples of `data`."""
    return _total(_sums(task, params, data))


@host_errors()
def evaluate_clients(task: Task, params: Tree) -> dict[str, np.ndarray]:
    """Evaluate every metric per client, float32 (clients,), on its test examples, or where there are none, validation.

    NaN for a client without such examples.

    Raises:
      UsageError: clients have no held-out examples of their own.
    """
    part = part_by_client(task)
    if part is None:
        raise UsageError(f"task '{task.name}' must have test_owners or a validation fraction for metrics per client")
    found = _client_values(task, part)(params, evaluation_data(task)[part])
    return {name: np.asarray(value).view(np.float32) for name, value in found.items()}


@host_errors()
def evaluate_own_clients(task: Task, models: Tree) -> dict[str, np.ndarray]:
    """Evaluate models (N, …) of clients as `evaluate_clients` does, each on its client's examples, float32 (N,)."""
    part = str(part_by_client(task))
    found = _client_values(task, part, True)(models, evaluation_data(task)[part])
    return {name: np.asarray(value).view(np.float32) for name, value in found.items()}


@lru_cache(maxsize=4)
def _client_values(
    task: Task, part: str, is_own: bool = False
) -> Callable[[Tree, EvaluationData], dict[str, jax.Array]]:
    @jax.jit
    def by_client(params: Tree, data: EvaluationData) -> dict[str, jax.Array]:
        own = own_sums(task, params, data, part) if is_own else None
        sums = own or _sums(task, params, data, count_owners(task, part))
        return {name: as_bits(value, _present(sums)) for name, value in metric_values(task, sums).items()}

    return by_client


def column_names(task: Task, params: Tree, data: Mapping[str, EvaluationData]) -> list[str]:
    """List the columns that `evaluate` gives, in the history's order, without computing anything."""
    return sorted(jax.eval_shape(partial(evaluate, task), params, data))


def primary_metric(task: Task, names: Collection[str]) -> str:
    """Return the task's main metric: its own choice, else `accuracy`, else the first by name."""
    if task.primary_metric is not None:
        check_choice("primary_metric", task.primary_metric, names)
        return task.primary_metric
    return "accuracy" if "accuracy" in names else min(names)


@host_errors()
def initial_loss(task: Task, seed: int, examples: int) -> float:
    """Return the training loss, before the first round of a run with this seed, of a batch of all clients' examples."""
    key, total = jax.random.key(seed), int(task.clients.offsets[-1])
    rows = np.linspace(0, total - 1, examples).astype(np.int64)
    batch = {name: jnp.asarray(array[rows]) for name, array in task.clients.examples.items()}
    batch["mask"] = jnp.ones(examples, bool)
    name, params = f"loss of task '{task.name}'", task.init(jax.random.fold_in(key, 0))
    return float(jax.jit(lambda: check_output(name, task.loss(params, batch, key)))())


def client_summary(values: jax.Array, present: jax.Array, higher_is_better: bool) -> dict[str, jax.Array]:
    """Summarize `values` (clients,) over the clients that are `present`: mean, spread and worst decile."""
    count = jnp.maximum(jnp.sum(present), 1).astype(values.dtype)
    mean = jnp.sum(jnp.where(present, values, 0)) / count
    spread = jnp.sqrt(jnp.sum(jnp.where(present, jnp.square(values - mean), 0)) / count)
    worst_first = jnp.sort(jnp.where(present, values if higher_is_better else -values, jnp.inf))
    tenth = jnp.ceil(count / 10)
    worst = jnp.sum(jnp.where(jnp.arange(len(values), dtype=tenth.dtype) < tenth, worst_first, 0)) / tenth
    return {"mean": mean, "spread": spread, "worst_decile": worst if higher_is_better else -worst}


def count_owners(task: Task, part: str) -> int:
    """Return how many clients the owners of a part number, 1 if it has none."""
    owners = held_out(task, part)[1]
    return 1 if owners is None else int(np.max(np.asarray(owners))) + 1


def _sums(task: Task, params: Tree, data: EvaluationData, owners: int = 1, mesh: int = 1) -> Sums:
    """Sum each metric's weights·values and weights per owner, or over all examples; padding counts for nothing."""

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
            sums[name] = add_up(jnp.where(weights > 0, weights * values.astype(weights.dtype), 0)), add_up(weights)
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
    shape = next(iter(means.values())).shape if means else ()
    return means | {
        name: check_output(f"derived metric '{name}' of task '{task.name}'", derive(means), shape, "real")
        for name, derive in task.derived.items()
    }
