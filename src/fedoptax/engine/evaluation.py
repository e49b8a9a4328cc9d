"""Metrics on held-out examples inside XLA, batch after batch, padded: over all of them, and client by client."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Tree
from fedoptax.engine.mesh import AXIS
from fedoptax.engine.xla import as_bits, host_errors, quick_options
from fedoptax.errors import UsageError, check_choice, check_output
from fedoptax.tasks.metrics import TRACED_ROWS, Column, Metric, as_metric
from fedoptax.tasks.task import Task, jit

Sums = dict[str, Any]
"""By metric a tree of sums (owners, …), or of a collected one `Rows`."""

ModelOf = Callable[[Tree, Tree], Tree]  # of a tree for all clients and a client's state

WORST = "worst_client"  # a column of the history


class Rows(NamedTuple):
    """The rows (owners, n, …) of a collected metric, and which of them count, (owners, n)."""

    values: Tree
    mask: jax.Array | np.ndarray


class EvaluationData(NamedTuple):
    """Held-out examples in padded batches, `{field: (batches, batch, …), "mask": …}`, and the client of each."""

    examples: dict[str, jax.Array]
    owners: jax.Array | None


def held_out(task: Task, split: str) -> tuple[Mapping[str, np.ndarray] | None, np.ndarray | None]:
    """Return the task's examples of a split, `"test"` or `"val"`, and their owners, if there are any."""
    return (task.test, task.test_owners) if split == "test" else (task.validation, task.validation_owners)


def choose_split(task: Task) -> str | None:
    """Choose the split for per-client metrics: test if training clients have some, else validation, else test."""
    is_tested, owners = task.test is not None and task.test_owners is not None, task.test_owners
    if task.validation_owners is not None and not (is_tested and np.min(np.asarray(owners)) < task.clients.num_clients):
        return "val"
    return "test" if is_tested else None


@lru_cache(maxsize=4)
def evaluation_data(task: Task) -> dict[str, EvaluationData]:
    """Put the task's held-out examples on the device, once, by split."""
    data = {split: held_out(task, split) for split in ("test", "val")}
    return {split: _put(task, examples, owners) for split, (examples, owners) in data.items() if examples is not None}


def _put(task: Task, examples: Mapping[str, np.ndarray], owners: np.ndarray | None) -> EvaluationData:
    arrays = {name: np.asarray(value) for name, value in examples.items()}
    n = len(next(iter(arrays.values())))
    batch = min(-(-n // jax.device_count()), task.eval_batch)  # a batch at least for each device of a mesh
    batches = -(-n // batch)

    def batched(array: np.ndarray) -> jax.Array:
        padding = [(0, batches * batch - n), *[(0, 0)] * (array.ndim - 1)]
        return jax.device_put(np.pad(array, padding, mode="edge").reshape(batches, batch, *array.shape[1:]))

    mask = jax.device_put((np.arange(batches * batch) < n).reshape(batches, batch))
    batched_examples = {name: batched(array) for name, array in arrays.items()} | {"mask": mask}
    return EvaluationData(batched_examples, None if owners is None else batched(np.asarray(owners, np.int32)))


def evaluate(
    task: Task, params: Tree, data: Mapping[str, EvaluationData], mesh: int = 1, model_of: ModelOf | None = None
) -> dict[str, jax.Array]:
    """Evaluate a model; on a mesh of devices each evaluates its part of the batches.

    With `model_of`, `params` are a pair, a tree for all clients and their states (N, …), and each client's model is
    evaluated on its examples, one after another; the examples of clients who do not train are left out.

    Returns:
      `test_NAME` and `val_NAME` for every metric over all test and validation examples. Where clients have held-out
      examples (see `choose_split`), also the primary metric's mean over the clients, `client_NAME_mean`, its
      standard deviation, `client_NAME_spread`, and the mean over the worst tenth of them, at least one,
      `client_NAME_worst_decile`; where clients have names, the number of the worst one, `worst_client`.

    Raises:
      UsageError: with `model_of`, if no client that trains has held-out examples.
    """
    columns: dict[str, jax.Array] = {}
    for split, examples in data.items():
        owners = held_out(task, split)[1]
        if model_of is not None and (owners is None or np.min(owners) >= len(jax.tree.leaves(params[1])[0])):
            continue
        sums = _sum_by_owner(task, params, examples, split, mesh, model_of)
        values = metric_values(task, _total(sums))
        columns |= {str(Column(split, name)): value for name, value in values.items()}
        if split == choose_split(task) and values:
            name, by_client, higher = client_values(task, sums)
            summary = summarize(by_client, higher)
            columns |= {str(Column("client", name, what)): value for what, value in summary.items()}
            if task.client_names is not None:
                columns[WORST] = worst_client(by_client, higher)
    if model_of is not None and not columns:
        raise UsageError(f"task '{task.name}' must have test or validation examples of clients that train")
    return columns


@host_errors()
def evaluate_clients(task: Task, params: Tree, model_of: ModelOf | None = None) -> dict[str, np.ndarray]:
    """Evaluate every metric per client, float32 (owners,), on its test examples, or where there are none, validation.

    NaN for a client without such examples; owners end with the last client that has some. With `model_of`, as an
    algorithm's `client_params`, `params` are a pair: the server's parameters and the clients' states (N, …).

    Raises:
      UsageError: clients have no held-out examples of their own.
    """
    split = choose_split(task)
    if split is None:
        raise UsageError(f"task '{task.name}' must have test_owners or a validation fraction for metrics per client")
    values = _client_values(task, split, model_of)(params, evaluation_data(task)[split])
    return {name: np.asarray(value).view(np.float32) for name, value in values.items()}


@lru_cache(maxsize=4)
def _client_values(task: Task, split: str, model_of: ModelOf | None) -> Callable[..., dict[str, jax.Array]]:
    def by_client(params: Tree, data: EvaluationData) -> dict[str, jax.Array]:
        sums = _sum_by_owner(task, params, data, split, model_of=model_of)
        return jax.tree.map(as_bits, jax.vmap(partial(metric_values, task))(sums))

    return jit(task, by_client)


def _sum_by_owner(
    task: Task, params: Tree, data: EvaluationData, split: str, mesh: int = 1, model_of: ModelOf | None = None
) -> Sums:
    """Sum each metric over the examples of each owner, (owners,), or of all, (1,); with `model_of`, (N,)."""
    owners = held_out(task, split)[1]
    if model_of is None:
        return _sums(task, params, data, None if owners is None else np.bincount(np.asarray(owners)), mesh)
    clients = jnp.arange(len(jax.tree.leaves(params[1])[0]), dtype=jnp.int32)
    evaluate_client = client_evaluation(task, data, split)
    return jax.lax.map(lambda pair: evaluate_client(model_of(params[0], pair[0]), pair[1]), (params[1], clients))


def client_evaluation(task: Task, data: EvaluationData, split: str) -> Callable[[Tree, jax.Array], Sums]:
    """Make `(model, client) -> sums` of each metric over the examples of a split that are the client's."""
    owners = np.asarray(held_out(task, split)[1])
    counts = np.bincount(owners, minlength=task.num_clients)
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


def sum_metrics(task: Task, params: Tree, data: EvaluationData) -> Sums:
    """Return the sums of every metric over all examples of `data`."""
    return _total(_sums(task, params, data))


def column_names(task: Task, params: Tree, data: Mapping[str, EvaluationData]) -> list[str]:
    """List the columns of `evaluate`, in the history's order, without computing anything."""
    return sorted(jax.eval_shape(partial(evaluate, task), params, data))


@lru_cache(maxsize=16)
def describe_metrics(task: Task) -> dict[str, Metric]:
    """Return the metrics by name, without computing anything; a `UsageError` if they are not what `Task` describes."""
    form = {"mask": jax.ShapeDtypeStruct((TRACED_ROWS,), np.dtype(bool))}
    for name, array in (task.test or task.validation or task.clients.examples).items():
        array = np.asarray(array)
        form[name] = jax.ShapeDtypeStruct((TRACED_ROWS, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype))
    return jax.eval_shape(partial(_measure, task), jax.eval_shape(task.init, jax.random.key(0)), form)


def primary_metric(task: Task, names: Collection[str] | None = None) -> str:
    """Return the task's main metric of these, or of all: its own choice, else `accuracy`, else the first by name."""
    names = describe_metrics(task) if names is None else names
    if task.primary_metric is not None:
        check_choice("primary_metric", task.primary_metric, names)
        return task.primary_metric
    return "accuracy" if "accuracy" in names else min(names)


def _measure(task: Task, params: Tree, batch: Mapping[str, jax.Array]) -> dict[str, Metric]:
    try:
        values = task.metrics(params, batch)
    except KeyError as error:
        if (field := error.args[0]) in batch or field not in task.clients.examples:
            raise
        raise UsageError(f"test of task '{task.name}' must have the field '{field}', which its metrics read") from error
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise UsageError(f"metrics of task '{task.name}' must return values by name, got {type(values).__name__}")
    metrics = {name: as_metric(name, value, len(batch["mask"])) for name, value in values.items()}
    name, stated = primary_metric(task, values) if values else "", task.higher_is_better
    if stated is not None and name in values and not isinstance(values[name], Metric):
        metrics[name] = replace(metrics[name], higher_is_better=stated)
    return metrics


@host_errors()
def initial_loss(task: Task, seed: int, examples: int) -> float:
    """Return the training loss, before the first round of a run with this seed, of a batch of all clients' examples."""
    key, total = jax.random.key(seed), int(task.clients.offsets[-1])
    rows = np.linspace(0, total - 1, examples).astype(np.int64)
    batch = {name: jnp.asarray(array[rows]) for name, array in task.clients.examples.items()}
    batch["mask"] = jnp.ones(examples, bool)

    def loss() -> Any:
        return check_output(f"loss of task '{task.name}'", task.loss(task.init(jax.random.fold_in(key, 0)), batch, key))

    return float(jit(task, loss, compiler_options=quick_options())())


def client_values(task: Task, sums: Sums) -> tuple[str, jax.Array, bool]:
    """Return the primary metric's name, its value for each owner of `sums`, and whether more is better."""
    name = primary_metric(task)
    values = jax.vmap(partial(metric_values, task))(sums)[name]
    return name, values, describe_metrics(task)[name].higher_is_better


def summarize(values: jax.Array, higher_is_better: bool) -> dict[str, jax.Array]:
    """Summarize `values` (clients,) over those that are not NaN: mean, spread and worst decile; NaN if all are."""
    present = ~jnp.isnan(values)
    count = jnp.maximum(jnp.sum(present), 1).astype(values.dtype)
    mean = jnp.sum(jnp.where(present, values, 0)) / count
    spread = jnp.sqrt(jnp.sum(jnp.where(present, jnp.square(values - mean), 0)) / count)
    worst_first = jnp.sort(jnp.where(present, values if higher_is_better else -values, jnp.inf))
    tenth = jnp.ceil(count / 10)
    worst = jnp.sum(jnp.where(jnp.arange(len(values), dtype=tenth.dtype) < tenth, worst_first, 0)) / tenth
    summary = {"mean": mean, "spread": spread, "worst_decile": worst if higher_is_better else -worst}
    return {name: jnp.where(jnp.any(present), value, jnp.nan) for name, value in summary.items()}


def worst_client(values: jax.Array, higher_is_better: bool) -> jax.Array:
    """Return the place of the worst of `values` (clients,), float32 as rows hold it; NaN if all are NaN."""
    worst_first = values if higher_is_better else -values
    worst = jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, worst_first)).astype(jnp.float32)
    return jnp.where(jnp.all(jnp.isnan(values)), jnp.nan, worst)


def _sums(task: Task, params: Tree, data: EvaluationData, counts: np.ndarray | None = None, mesh: int = 1) -> Sums:
    """Sum each metric's rows over all examples, or per owner of `counts` examples; collected metrics keep theirs."""
    batches, metrics = len(data.examples["mask"]), describe_metrics(task)

    @partial(jax.jit, inline=True)  # traced once, for its form and for the loop
    def of_batch(examples: Tree, owner: jax.Array | None) -> Sums:
        def add_up(rows: jax.Array) -> jax.Array:
            rows = jnp.where(examples["mask"].reshape(-1, *[1] * (rows.ndim - 1)), rows, 0).astype(jnp.float32)
            if owner is None or counts is None:
                return jnp.sum(rows, axis=0, keepdims=True)
            return jax.ops.segment_sum(rows, owner, len(counts))

        measured = _measure(task, params, examples).items()
        return {n: one.values if one.is_collected else jax.tree.map(add_up, one.values) for n, one in measured}

    def add(step: jax.Array, total: Sums) -> Sums:
        i = first + step * mesh
        new = of_batch(*jax.tree.map(lambda a: a[i], data))
        merge = {name: (lambda a, b: a.at[i].set(b)) if one.is_collected else jnp.add for name, one in metrics.items()}
        return {name: jax.tree.map(merge[name], total[name], new[name]) for name in total}

    first = jax.lax.axis_index(AXIS) if mesh > 1 else 0
    total: Sums = {}
    for name, form in jax.eval_shape(of_batch, *jax.tree.map(lambda a: a[0], data)).items():
        shape = (batches,) if metrics[name].is_collected else ()
        total[name] = jax.tree.map(lambda a, shape=shape: jnp.zeros((*shape, *a.shape), a.dtype), form)
    total = jax.lax.fori_loop(0, (batches - first + mesh - 1) // mesh, add, total)
    if mesh > 1:
        total = jax.lax.psum(total, AXIS)  # each device has zeros for the rows of others
    return {n: _divide_rows(tree, data, counts) if metrics[n].is_collected else tree for n, tree in total.items()}


def _divide_rows(rows: Tree, data: EvaluationData, counts: np.ndarray | None) -> Rows:
    rows = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), rows)
    mask = data.examples["mask"].reshape(-1)
    if data.owners is None or counts is None:
        return jax.tree.map(lambda a: a[None], Rows(rows, mask))
    order = jnp.argsort(jnp.where(mask, data.owners.reshape(-1), len(counts)))
    place, size = np.arange(counts.max()), np.asarray(counts)[:, None]
    chosen = order.at[np.cumsum(size)[:, None] - size + place].get(mode="clip")
    return Rows(jax.tree.map(lambda a: a[chosen], rows), place < size)


def _total(sums: Sums) -> Sums:
    """Return the sums, or all rows and their mask, of all owners together."""

    def merge(tree: Tree) -> Tree:
        if not isinstance(tree, Rows):
            return jax.tree.map(partial(jnp.sum, axis=0), tree)
        is_known = isinstance(tree.mask, np.ndarray)  # then without the padding, of which unequal owners have much
        places = np.flatnonzero(tree.mask) if is_known else slice(None)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[places], tree)

    return {name: merge(tree) for name, tree in sums.items()}


def metric_values(task: Task, sums: Sums) -> dict[str, jax.Array]:
    """Return every metric of its sums; a result that is not one number is a `UsageError`."""
    values = {}
    for name, metric in describe_metrics(task).items():
        value = metric.result(*sums[name]) if metric.is_collected else metric.result(sums[name])
        values[name] = check_output(f"result of metric '{name}'", value, kind="real")
    return values
