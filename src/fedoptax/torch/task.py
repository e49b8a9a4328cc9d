"""A module as a task: simulated, compared, reported and deployed like any other."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

from fedoptax.algorithm import Tree
from fedoptax.data.federated import FederatedData
from fedoptax.engine.xla import call_host
from fedoptax.errors import UsageError, check_output
from fedoptax.tasks.custom import fingerprint
from fedoptax.tasks.task import Task
from fedoptax.torch import gradients

ModuleMetric = Callable[[nn.Module, Any], Tensor | tuple[Tensor, Tensor]]
"""`metric(module, batch)`: one value per example, (batch,), or a pair (values, weights)."""


def module_task(
    name: str,
    module: nn.Module,
    loss: gradients.ModuleLoss,
    metrics: Mapping[str, ModuleMetric],
    clients: FederatedData,
    test: Mapping[str, np.ndarray] | None = None,
    **attributes: Any,
) -> Task:
    """A task with a PyTorch module as its model.

    Every client starts from the module's present parameters, whatever the seed. A run does not change them, but
    its mode (`train` or `eval`); `load_params(module, result.params)` gives the module those of a run.

    Args:
      name: for tables and files.
      module: any module; one with running statistics only for `with_module` and without test examples.
      loss: `(module, batch) -> scalar`, the mean over a batch `{field: tensor}`, in which there is no padding.
      metrics: by name `(module, batch) -> (batch,)`, one value per example, or a pair (values, weights), computed
        without gradient.
      clients: the training examples and who holds them.
      test: central test examples, or None.
      **attributes: further attributes of `Task`.

    Raises:
      UsageError: the module has no parameters, or when a run begins: it keeps running statistics that are no client's.
    """
    gradient = gradients.ModuleGradient(module, loss, restores_buffers=True)
    device = next(iter(gradients.trained(module).values())).device
    start = jax.tree.map(np.asarray, gradients.params_from_module(module))
    frozen = {n: p.detach().cpu() for n, p in module.named_parameters() if not p.requires_grad}
    if contents := {n: p.reshape(-1).view(torch.uint8).numpy() for n, p in frozen.items()}:
        attributes["spec"] = {"contents": fingerprint(contents), **attributes.get("spec", {})}

    def values_on_host(params: Tree, examples: Mapping[str, Any]) -> dict[str, np.ndarray]:
        mask = np.asarray(examples.get("mask", np.ones(len(jax.tree.leaves(examples)[0]), bool)))
        mask = mask if mask.any() else ~mask  # a client without examples: what is computed does not count

        def compute(key: str) -> np.ndarray:
            value: Any = metrics[key](module, batch)
            size, rows = int(mask.sum()), np.zeros((2, len(mask)), np.float32)
            pair = value if isinstance(value, tuple) and len(value) == 2 else (value, np.ones(size, np.float32))
            arrays = [a.detach().float().cpu().numpy() if isinstance(a, Tensor) else a for a in pair]
            rows[:, mask] = [check_output(f"metric '{key}'", a, (size,), "real") for a in arrays]
            return rows

        with gradient.holding(params), torch.no_grad():
            module.eval()
            batch = gradients.as_tensors(gradients.real_examples({**examples, "mask": mask}), device)
            return {key: compute(key) for key in metrics}

    def values(params: Tree, batch: Mapping[str, Any]) -> dict[str, tuple[jax.Array, jax.Array]]:
        check_statistics(module)
        form = jax.ShapeDtypeStruct((2, len(jax.tree.leaves(batch)[0])), jnp.float32)
        pairs = call_host(values_on_host, dict.fromkeys(metrics, form), params, batch)
        return {key: (pair[0], pair[1]) for key, pair in pairs.items()}

    loss_of = _differentiable(gradient)
    return Task(name, lambda key: jax.tree.map(jnp.asarray, start), loss_of, values, clients, test, **attributes)


def check_statistics(module: nn.Module) -> None:
    """Check that a module keeps no running statistics, since there is no client state for them here."""
    for path, part in module.named_modules():
        if getattr(part, "track_running_stats", False):
            hint = "GroupNorm, track_running_stats=False, or with_module and no test examples"
            raise UsageError(f"module must not keep running statistics, got '{path}' (use {hint})")


def _differentiable(gradient: gradients.ModuleGradient) -> Callable[[Tree, Any, jax.Array], jax.Array]:
    """The module's loss as JAX differentiates it: the gradient comes with the value, in one call of PyTorch."""

    def value_and_grads(params: Tree, batch: Tree, key_data: jax.Array) -> tuple[jax.Array, Tree]:
        check_statistics(gradient.module)
        gradients.check_params(gradient.module, params)
        gradient.check_batch(batch)
        return call_host(gradient.at_minibatch, gradients.gradient_form(params), params, batch, key_data)

    @jax.custom_vjp
    def value(params: Tree, batch: Tree, key_data: jax.Array) -> jax.Array:
        return value_and_grads(params, batch, key_data)[0]

    value.defvjp(value_and_grads, lambda grads, g: (jax.tree.map(lambda a: (g * a).astype(a.dtype), grads), None, None))

    return lambda params, batch, key: value(params, batch, jax.random.key_data(key))
