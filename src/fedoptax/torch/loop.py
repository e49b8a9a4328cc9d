"""What the optimizers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
"""What an optimizer takes: parameters, groups of them, or named parameters."""

Closure = Callable[[], Any]
"""Clears the gradients, computes the loss and its gradient, returns the loss."""


def evaluated(closure: Closure | None) -> Any:
    """The loss that a closure returns; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def members(optimizer: Optimizer) -> list[Tensor]:
    """All parameters of an optimizer, in the order in which they were given."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies that no later step changes and no gradient reaches."""
    return [tensor.detach().clone() for tensor in tensors]


def gradients(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The gradient of each parameter; 0 where there is none."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in tensors]
