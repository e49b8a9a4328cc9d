"""Gradients of a module's loss: by PyTorch, in the form that every algorithm takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

from fedoptax.algorithm import Batches, GradFn, Tree
from fedoptax.engine.batches import Minibatch
from fedoptax.errors import UsageError
from fedoptax.torch.loop import gradients
from fedoptax.torch.params import flat, load_params, to_array, to_tensor, trained

ModuleLoss = Callable[[nn.Module, Any], Tensor]
"""`loss(module, batch)`: the mean loss over a batch, a scalar tensor; the batch's arrays come as tensors."""


def torch_grad_fn(module: nn.Module, loss: ModuleLoss) -> GradFn:
    """`(params, batch) -> (loss, grads)` of a module, for any algorithm in an eager round.

    Parameters and gradients cross between JAX and PyTorch through the host's memory, once a gradient. The module is put
    in training mode and keeps the parameters of the last call.

    Args:
      module: any module.
      loss: `(module, batch) -> scalar`. An engine's batch comes as `{field: tensor}` of its real examples, without
        padding and mask; any other tree as it is, its arrays as tensors on the module's device.

    Returns:
      The gradient function. Two calls in a row on one batch share its randomness (dropout), and only the first updates
      running statistics: variance-reduced algorithms take two gradients of one function. An engine's batch brings its
      randomness along, so that all calls on it share it.
    """
    evaluation = Evaluation(module, loss)

    def gradient(params: Tree, batch: Any) -> tuple[jax.Array, Tree]:
        return jax.tree.map(jnp.asarray, evaluation.at(params, batch))

    return gradient


class Place(NamedTuple):
    """A batch at its place in a round: one batch at two places is taken for two."""

    batch: Any


class Evaluation:
    """A module's loss on a batch, its gradient left in `grad` of every trained parameter (0 where there is none).

    Args:
      module: any module.
      loss: as in `torch_grad_fn`.
    """

    def __init__(self, module: nn.Module, loss: ModuleLoss) -> None:
        self.module, self.loss = module, loss
        self._batch: Any = None
        self._seed = 0

    def at(self, params: Tree, batch: Any, seed: int | None = None) -> tuple[np.ndarray, Tree]:
        """Loss and gradient at `params`, as NumPy arrays: no operation of JAX is needed, so XLA may call this.

        Args:
          params: as of `load_params`.
          batch: as in `torch_grad_fn`.
          seed: of the batch's randomness; None for the batch's own.

        Raises:
          UsageError: the parameters are not the module's, or the loss is not a tensor of one number.
        """
        load_params(self.module, params)
        value = self(batch, seed)
        parameters = trained(self.module)
        grads = [to_array("gradient", g) for g in gradients([parameters[name] for name in flat(params)])]
        return to_array("loss", value), jax.tree.unflatten(jax.tree.structure(params), grads)

    def __call__(self, batch: Any, seed: int | None = None) -> Tensor:
        """The loss, a scalar without gradient; on the batch of the call before as `torch_grad_fn` says.

        Raises:
          UsageError: the loss is not a tensor of one number.
        """
        repeated = batch is self._batch
        statistics = [b.clone() for b in self.module.buffers()] if repeated else []
        self._seed = _seed(batch, self._seed if repeated else None) if seed is None else seed
        self._batch = batch
        parameters = list(trained(self.module).values())
        for p in parameters:
            p.grad = None
        self.module.train()
        with torch.random.fork_rng(sorted({p.get_device() for p in parameters if p.is_cuda})), torch.enable_grad():
            torch.manual_seed(self._seed)
            value = self.loss(self.module, as_tensors(batch, parameters[0].device))
            if not isinstance(value, Tensor) or value.shape != ():
                given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise UsageError(f"loss: {given} returned, allowed is a tensor of one number")
            value.backward()
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        with torch.no_grad():
            for b, before in zip(self.module.buffers(), statistics):
                b.copy_(before)
        return value.detach()


def as_tensors(batch: Any, device: torch.device) -> Any:
    """A batch with tensors for arrays, on `device`; an engine's as its real examples."""
    if isinstance(batch, Place):
        batch = batch.batch
    if isinstance(batch, Minibatch):
        examples = {name: np.asarray(a) for name, a in batch.examples.items()}
        mask = examples.pop("mask")
        batch = {name: a[mask] for name, a in examples.items()}

    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device)
        return to_tensor(value).to(device) if isinstance(value, np.ndarray | np.generic | jax.Array) else value

    return jax.tree.map(leaf, batch)


def as_list(batches: Batches | Sequence[Any]) -> list[Place]:
    """A client's minibatches at their places.

    Raises:
      UsageError: their number is traced: a module cannot be part of a compiled program.
    """
    if not isinstance(batches, Batches):
        return [Place(batch) for batch in batches]
    if isinstance(batches.num_steps, jax.core.Tracer):
        raise UsageError("module: traced batches given; allowed is fedoptax.eager.run_round, or a module_task")
    return [Place(batches.get(k)) for k in range(int(batches.num_steps))]


def _seed(batch: Any, before: int | None) -> int:
    if isinstance(batch, Place):
        batch = batch.batch
    if isinstance(batch, Minibatch):
        return seed_of(np.asarray(jax.random.key_data(batch.key)))
    return int(torch.randint(2**62, ())) if before is None else before


def seed_of(key_data: np.ndarray) -> int:
    """A seed for PyTorch from the words of a JAX key."""
    return int.from_bytes(np.ascontiguousarray(key_data).tobytes()[-8:], "little") >> 1
