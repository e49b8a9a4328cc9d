"""Local AMSGrad and Fed-LAMB as PyTorch optimizers.

*Layerwise and Dimensionwise Locally Adaptive Optimization Method*, Algorithm 1 (Fed-LAMB; lines as there), after Chen,
Li, Li 2020 (Local AMSGrad). The readings of the paper are those of `fedoptax.fedlamb`, whose hyper-parameters these
share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedoptax.errors import UsageError
from fedoptax.hyper import check, check_choice, check_fraction, check_positive
from fedoptax.torch.loop import Closure, Params, evaluated, members

Phi = str | Callable[[Tensor], Any]
"""φ: `"clip"`, `"identity"`, or a function of a layer's norm, a tensor of one number, to a number."""


class LocalAMSGrad(Optimizer):
    """Local AMSGrad (Chen, Li, Li 2020): Fed-LAMB's Algorithm 1 with θ ← θ − α p in place of line 12.

    `step`: m ← β₁ m + (1−β₁) g (line 9); v ← β₂ v + (1−β₂) g² (line 10); p = m/(√v̂ + ε) (line 11); θ ← θ − α p. v̂ is
    fixed until `synchronize`. A client of a federation uploads θ and `state[θ]["v"]` (line 14). Parameters without a
    gradient stay as they are.

    Args:
      params: parameters or groups, as of any optimizer.
      lr: α > 0.
      b1: β₁ in [0, 1).
      b2: β₂ in [0, 1).
      eps: ε > 0.
      v0: v̂₀ > 0, the starting value of v̂ and v (lines 2 and 6).
      bias_correction: divide a copy of m by 1 − β₁ˢ, s the steps taken since m was 0.

    Raises:
      UsageError: a number is outside its range.
    """

    def __init__(
        self,
        params: Params,
        lr: float,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        v0: float = 1e-4,
        bias_correction: bool = False,
        **more: Any,
    ) -> None:
        check_fraction(b1=b1, b2=b2)
        check_positive(lr=lr, eps=eps, v0=v0)
        defaults = {"lr": lr, "b1": b1, "b2": b2, "eps": eps, "v0": v0, "bias_correction": bias_correction, **more}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters, with m = 0 and v = v̂ = v₀."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for p in group["params"]:
            v0 = torch.full_like(p, group["v0"], requires_grad=False)
            m = torch.zeros_like(p, requires_grad=False)
            self.state[p] = {"m": m, "v": v0, "v_max": v0.clone(), "steps": 0}

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One local step; `closure` as of any optimizer."""
        loss = evaluated(closure)
        for group in self.param_groups:
            moving = [p for p in group["params"] if p.grad is not None]
            for p, change in zip(moving, self._changes(group, moving)):
                p.sub_(change)
        return loss

    @torch.no_grad()
    def synchronize(self, v: Sequence[Tensor] | None = None) -> None:
        """The end of a round: v̂ ← max(v̂, mean v) (line 16), and the next round's v ← v̂ (line 6); m stays.

        Args:
          v: the mean of the clients' v, one tensor a parameter; None for a federation of one.
        """
        every = members(self)
        own = [self.state[p]["v"] for p in every] if v is None else list(v)
        for p, mean in zip(every, own, strict=True):
            state = self.state[p]
            state["v_max"] = torch.maximum(state["v_max"], mean)
            state["v"] = state["v_max"].clone()

    def _changes(self, group: dict[str, Any], moving: Sequence[Tensor]) -> list[Tensor]:
        """What line 12 subtracts from each parameter."""
        return [group["lr"] * self._direction(group, p) for p in moving]

    def _direction(self, group: dict[str, Any], p: Tensor) -> Tensor:
        """p of line 11, after lines 9 and 10."""
        state, g = self.state[p], p.grad
        assert g is not None
        state["steps"] += 1
        state["m"].mul_(group["b1"]).add_(g, alpha=1 - group["b1"])
        state["v"].mul_(group["b2"]).add_(g * g, alpha=1 - group["b2"])
        direction = state["m"] / (state["v_max"].sqrt() + group["eps"])
        return direction / (1 - group["b1"] ** state["steps"]) if group["bias_correction"] else direction


class FedLAMB(LocalAMSGrad):
    """Fed-LAMB (Karimi, Li, Li, Algorithm 1): Local AMSGrad whose step is normalised layer by layer.

    Line 12, per layer ℓ with u = p^ℓ + λ θ^ℓ: θ^ℓ ← θ^ℓ − α φ(‖θ^ℓ‖) u/‖u‖; a layer with ‖u‖ = 0 does not move.

    Args:
      params: parameters or groups, as of any optimizer.
      lr: α > 0.
      b1: β₁ in [0, 1).
      b2: β₂ in [0, 1).
      eps: ε > 0.
      v0: v̂₀ > 0.
      weight_decay: λ ≥ 0.
      phi: `"clip"`, φ(a) = min(max(a, 10⁻³), 10); `"identity"`; or a function of the layer's norm.
      layers: `"tensor"`: each parameter is a layer; `"module"`: the parameters of a group whose names agree up to the
        last part are one, for which `params` must be `module.named_parameters()`.
      bias_correction: as in `LocalAMSGrad`.

    Raises:
      UsageError: a number is outside its range, an option is unknown, or names are needed and not given.
    """

    def __init__(
        self,
        params: Params,
        lr: float,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        v0: float = 1e-4,
        weight_decay: float = 0.0,
        phi: Phi = "clip",
        layers: str = "tensor",
        bias_correction: bool = False,
    ) -> None:
        check("weight_decay", weight_decay, 0.0)
        check_choice("layers", layers, ("tensor", "module"))
        self._phi = _phi(phi)
        more = {"weight_decay": weight_decay, "layers": layers}
        super().__init__(params, lr, b1, b2, eps, v0, bias_correction, **more)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters, with m = 0 and v = v̂ = v₀."""
        super().add_param_group(param_group)
        if self.param_groups[-1]["layers"] == "module" and "param_names" not in self.param_groups[-1]:
            raise UsageError("params: parameters without names given; layers='module' needs module.named_parameters()")

    def _changes(self, group: dict[str, Any], moving: Sequence[Tensor]) -> list[Tensor]:
        steps = [self._direction(group, p).add(p, alpha=group["weight_decay"]) for p in moving]
        layers = _layers(group, moving)
        norms, lengths = _norms(steps, layers), _norms(moving, layers)
        changes = []
        for u, layer in zip(steps, layers):
            norm = norms[layer]
            length = group["lr"] * torch.as_tensor(self._phi(lengths[layer]), dtype=norm.dtype, device=norm.device)
            changes.append(torch.where(norm > 0, length / norm, torch.zeros_like(norm)).to(u.dtype) * u)
        return changes


def _phi(phi: Phi) -> Callable[[Tensor], Any]:
    if callable(phi):
        return phi
    check_choice("phi", phi, ("clip", "identity"))
    return (lambda norm: norm.clamp(1e-3, 10.0)) if phi == "clip" else (lambda norm: norm)


def _layers(group: dict[str, Any], moving: Sequence[Tensor]) -> list[Any]:
    """The layer of each parameter that moves."""
    if group["layers"] == "tensor":
        return list(range(len(moving)))
    names = {p: name.rpartition(".")[0] for p, name in zip(group["params"], group["param_names"])}
    return [names[p] for p in moving]


def _norms(values: Sequence[Tensor], layers: Sequence[Any]) -> dict[Any, Tensor]:
    """The 2-norm of each layer, in at least float32."""
    squares: dict[Any, Tensor] = {}
    for value, layer in zip(values, layers):
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32
        square = value.to(wide).square().sum()
        squares[layer] = squares[layer] + square if layer in squares else square
    return {layer: square.sqrt() for layer, square in squares.items()}
