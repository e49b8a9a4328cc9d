"""Personalization: each client takes local SGD steps from the global model; its held-out examples before and after."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax._files import finite_or_none
from fedoptax.algorithm import Tree, local_steps
from fedoptax.engine.batches import LocalWork, client_batches, task_grad_fn
from fedoptax.engine.data import DeviceData, device_data
from fedoptax.engine.evaluation import Sums, choose_split, client_evaluation, client_values, held_out, summarize
from fedoptax.engine.mesh import AXIS, over_mesh, replicate
from fedoptax.engine.options import RunOptions, parse_personalize
from fedoptax.engine.plan import Plan, runs_sequentially
from fedoptax.errors import UsageError
from fedoptax.schedules import is_schedule, parse_schedule, value_at
from fedoptax.tasks.metrics import Column
from fedoptax.tasks.task import Task

KEY = 5  # folded into a run's key, after those of the parameters, rounds, cohorts, speeds and faults


def clients_with_held_out(task: Task) -> tuple[str, np.ndarray]:
    """Return the split in which training clients have examples, and these clients; raise a `UsageError` without any."""
    split = choose_split(task)
    owners = np.unique(np.asarray(held_out(task, split)[1])) if split is not None else np.arange(0)
    clients = owners[owners < task.clients.num_clients]
    if split is None or not len(clients):
        needed = "test examples of the clients that train, or validation_fraction"
        raise UsageError(f"personalize needs {needed}, and task '{task.name}' has neither")
    return split, clients


def with_rate(options: RunOptions, task: Task, hyperparameters: Mapping[str, Any], exchanges: int = 1) -> RunOptions:
    """Return options with a learning rate in `personalize`: that of the option, else the last step's `client_lr`.

    Without a rate, or a client that trains and has held-out examples, it is a `UsageError`.
    """
    if options.personalize is None:
        return options
    clients_with_held_out(task)
    steps, lr = parse_personalize(options.personalize)
    if lr is None:
        if "client_lr" not in hyperparameters:
            raise UsageError("personalize needs a learning rate, as the algorithm has no client_lr: use STEPS:LR")
        rate = hyperparameters["client_lr"]
        lr = float(value_at(parse_schedule(rate) if is_schedule(rate) else rate, (options.rounds - 1) // exchanges))
    return replace(options, personalize=f"{steps}:{lr!r}")


def personalize(task: Task, params: Tree, plan: Plan, text: str, key: jax.Array) -> dict[str, Any]:
    """Evaluate every client's held-out examples with a model, before and after local SGD steps on the client.

    `text` is `STEPS:LR`; the steps take minibatches of the plan's size; `key` is the run's. The result, as summary.json
    has it: `steps`, `client_lr`, `metric`, the number of `clients`, and `before` and `after`, each with mean, spread
    and worst decile of the primary metric over the clients, None for what is not finite.
    """
    (split, clients), (steps, lr) = clients_with_held_out(task), parse_personalize(text)
    padded = np.resize(clients, -(-len(clients) // plan.mesh) * plan.mesh).astype(np.int32)
    inputs = params, device_data(task, plan.mesh), jax.random.fold_in(key, KEY), padded, np.float32(lr)
    both = _program(task, plan, split, steps)(*(replicate(inputs, plan.mesh) if plan.mesh > 1 else inputs))
    result: dict[str, Any] = {"steps": steps, "client_lr": lr, "metric": "", "clients": len(clients)}
    counted = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)[: len(clients)]), both)
    for when, sums in zip(("before", "after"), counted):
        metric, by_client, higher = client_values(task, sums)
        result["metric"] = str(Column(split, metric))
        summary = summarize(by_client, higher)
        result[when] = {name: finite_or_none(float(value)) for name, value in summary.items()}
    return result


@lru_cache(maxsize=4)
def _program(task: Task, plan: Plan, split: str, steps: int) -> Callable[..., tuple[Sums, Sums]]:
    """Make `(params, data, key, clients, lr) -> sums before, sums after`, by client, compiled."""
    work, sizes = LocalWork(plan.work.batch_size, steps=steps), task.clients.sizes
    is_sequential, grad_fn = runs_sequentially(plan, task), task_grad_fn(task)

    def of_clients(params: Tree, data: DeviceData, key: jax.Array, clients: jax.Array, lr: jax.Array) -> Any:
        evaluate = client_evaluation(task, data.held_out[split], split)

        def step(model: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
            loss, grads = grad_fn(model, batch)
            return jax.tree.map(lambda p, g: (p - lr * g).astype(p.dtype), model, grads), loss

        def of_client(i: jax.Array) -> tuple[Sums, Sums]:
            client = data.examples, data.offsets[i], data.sizes[i], jax.random.fold_in(key, i)
            batches = client_batches(*client, work, int(sizes.max()), is_sequential, int(sizes.min()))
            return evaluate(params, i), evaluate(local_steps(step, params, batches)[0], i)

        share = clients if plan.mesh == 1 else clients.reshape(plan.mesh, -1)[jax.lax.axis_index(AXIS)]
        with task.frozen.bound(data.frozen):
            sums = jax.lax.map(of_client, share, batch_size=None if is_sequential else plan.cohort_size)
        return sums if plan.mesh == 1 else jax.lax.all_gather(sums, AXIS, tiled=True)

    return jax.jit(of_clients if plan.mesh == 1 else over_mesh(of_clients, plan.mesh))
