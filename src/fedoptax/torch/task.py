"""A module as a task: simulated, compared, reported and deployed like any other.

XLA calls PyTorch back for every loss and gradient, so a compiled round works, at PyTorch's speed and a call's cost
more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

from fedoptax.algorithm import Tree
from fedoptax.data.federated import FederatedData
from fedoptax.errors import UsageError
from fedoptax.tasks.task import Task
from fedoptax.torch.gradients import Evaluation, ModuleLoss, as_tensors, seed_of
from fedoptax.torch.params import load_params, params_from_module, trained

ModuleMetric = Callable[[nn.Module, Any], Tensor]
"""`metric(module, batch)`: a value for every example, (batch,)."""

_ALONE = threading.Lock()
"""XLA calls back from several threads at once, and a module, like PyTorch's random numbers, is one."""


def module_task(
    name: str,
    module: nn.Module,
    loss: ModuleLoss,
    metrics: Mapping[str, ModuleMetric],
    clients: FederatedData,
    test: Mapping[str, np.ndarray] | None = None,
    **more: Any,
) -> Task:
    """A task whose model is a PyTorch module.

    Every client starts from the module's present parameters, whatever the seed. The module itself is left with whatever
    parameters were used last; `load_params(module, result.params)` gives it those of a run.

    Args:
      name: for tables and files.
      module: any module without running statistics.
      loss: `(module, batch) -> scalar`, the mean over a batch `{field: tensor}`, in which there is no padding.
      metrics: for each name `(module, batch) -> (batch,)`, one value an example, without gradient.
      clients: the training examples and who holds them.
      test: central test examples, or None.
      **more: further attributes of `Task`.

    Raises:
      UsageError: the module keeps running statistics: there is no client here to whom they could belong.
    """
    for path, part in module.named_modules():
        if getattr(part, "track_running_stats", False):
            raise UsageError(
                f"module: '{path}' keeps running statistics, allowed is a module without (track_running_stats=False, "
                "GroupNorm); the clients of with_module can keep them"
            )
    start = jax.tree.map(np.asarray, params_from_module(module))
    device = next(iter(trained(module).values())).device

    def measured(params: Tree, batch: Any) -> dict[str, np.ndarray]:
        with _ALONE, torch.no_grad():
            load_params(module, params)
            module.eval()
            examples = as_tensors({field: np.asarray(a) for field, a in batch.items()}, device)
            return {key: metric(module, examples).float().cpu().numpy() for key, metric in metrics.items()}

    def task_metrics(params: Tree, batch: Any) -> dict[str, jax.Array]:
        examples = {field: a for field, a in batch.items() if field != "mask"}
        size = jax.tree.leaves(examples)[0].shape[0]
        form = {key: jax.ShapeDtypeStruct((size,), jnp.float32) for key in metrics}
        return jax.pure_callback(measured, form, params, examples, vmap_method="sequential")

    return Task(
        name=name,
        init=lambda key: jax.tree.map(jnp.asarray, start),
        loss=_loss(Evaluation(module, loss)),
        metrics=task_metrics,
        clients=clients,
        test=test,
        **more,
    )


def _loss(evaluation: Evaluation) -> Callable[[Tree, Any, jax.Array], jax.Array]:
    """A loss that JAX can differentiate, though it is computed by PyTorch on the host."""

    def on_host(params: Tree, batch: Any, seed: Any) -> tuple[np.ndarray, Tree]:
        mask = np.asarray(batch["mask"])
        examples = {field: np.asarray(a)[mask] for field, a in batch.items() if field != "mask"}
        with _ALONE:
            return evaluation.at(params, examples, seed_of(np.asarray(seed)))

    def both(params: Tree, batch: Any, seed: jax.Array) -> tuple[jax.Array, Tree]:
        leaf = jax.tree.leaves(params)[0]
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)
        form = (jax.ShapeDtypeStruct((), leaf.dtype), like)
        return jax.pure_callback(on_host, form, params, batch, seed, vmap_method="sequential")

    @jax.custom_vjp
    def value(params: Tree, batch: Any, seed: jax.Array) -> jax.Array:
        return both(params, batch, seed)[0]

    value.defvjp(both, lambda grads, g: (jax.tree.map(lambda a: (g * a).astype(a.dtype), grads), None, None))

    def loss(params: Tree, batch: Any, key: jax.Array) -> jax.Array:
        mask = batch["mask"]  # asked for by name: see `padded_loss`
        return value(params, {**batch, "mask": mask}, jax.random.key_data(key))

    return loss
