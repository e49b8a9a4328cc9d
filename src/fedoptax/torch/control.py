"""SCAFFOLD's and FedProx's local rules as PyTorch optimizers: steps with a correction of the clients' drift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedoptax.hyper import check, check_positive
from fedoptax.torch.loop import Closure, Params, copies, evaluated, members


class Scaffold(Optimizer):
    """SCAFFOLD at a client (Karimireddy et al. 2020, Algorithm 1; lines as there).

    `step`: y ← y − η_l (g − cᵢ + c) (line 10). A round is `start_round`, K steps, `end_round`. Without rounds, c = cᵢ =
    0 and this is SGD. `state[y]["control"]` is the client's cᵢ, which it keeps between rounds. Parameters without a
    gradient stay as they are.

    Args:
      params: parameters or groups, as of any optimizer.
      lr: η_l > 0.

    Raises:
      UsageError: `lr` is not a number > 0.
    """

    def __init__(self, params: Params, lr: float) -> None:
        check_positive(lr=lr)
        super().__init__(params, {"lr": lr, "distance": 0.0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters, with both controls 0."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            zero = torch.zeros_like(p, requires_grad=False)
            self.state[p] = {"control": zero, "server_control": zero.clone(), "start": p.detach().clone()}

    @torch.no_grad()
    def start_round(self, server_control: Sequence[Tensor], control: Sequence[Tensor] | None = None) -> None:
        """Begins a round from the present parameters, those that the server sent (lines 4 and 6).

        Args:
          server_control: c, one tensor a parameter.
          control: cᵢ, likewise; None for the one that this optimizer keeps.
        """
        for group in self.param_groups:
            group["distance"] = 0.0
        for p, c in zip(members(self), copies(server_control), strict=True):
            self.state[p] |= {"server_control": c, "start": p.detach().clone()}
        if control is not None:
            for p, own in zip(members(self), copies(control), strict=True):
                self.state[p]["control"] = own

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One local step; `closure` as of any optimizer."""
        loss = evaluated(closure)
        for group in self.param_groups:
            group["distance"] += group["lr"]
            for p in group["params"]:
                if p.grad is not None:
                    correction = self.state[p]["server_control"] - self.state[p]["control"]
                    p.sub_(p.grad + correction, alpha=group["lr"])
        return loss

    @torch.no_grad()
    def end_round(self, gradient: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Ends a round (lines 12 to 14): cᵢ ← cᵢ⁺.

        Args:
          gradient: option I, cᵢ⁺ = ∇fᵢ(x), one tensor a parameter; None: option II, cᵢ⁺ = cᵢ − c + (x − y)/(K η_l),
            with the sum of the steps' η_l for K η_l. Without a step the control stays.

        Returns:
          Δcᵢ = cᵢ⁺ − cᵢ to upload, one tensor a parameter.
        """
        deltas = []
        own = iter(copies(gradient)) if gradient is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                state, distance = self.state[p], group["distance"]
                if own is not None:
                    delta = next(own) - state["control"]
                else:
                    delta = (state["start"] - p) / (distance or 1.0) - state["server_control"]
                delta = delta if distance else torch.zeros_like(delta)
                state["control"] = state["control"] + delta
                deltas.append(delta)
        return deltas


class FedProx(Optimizer):
    """FedProx at a client (Li et al. 2020, Algorithm 2, line 5), by SGD: y ← y − η_l (g + μ (y − x)).

    x, the point that the proximal term pulls towards, is where `start_round` was last called, at first where the
    optimizer was made. Parameters without a gradient stay as they are.

    Args:
      params: parameters or groups, as of any optimizer.
      lr: η_l > 0.
      mu: μ ≥ 0.

    Raises:
      UsageError: a number is outside its range.
    """

    def __init__(self, params: Params, lr: float, mu: float) -> None:
        check_positive(lr=lr)
        check("mu", mu, 0.0)
        super().__init__(params, {"lr": lr, "mu": mu})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters, pulled to where they are."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            self.state[p] = {"start": p.detach().clone()}

    def start_round(self) -> None:
        """Takes the present parameters, those that the server sent, for x."""
        for p in members(self):
            self.state[p]["start"] = p.detach().clone()

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One local step; `closure` as of any optimizer."""
        loss = evaluated(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad.add(p - self.state[p]["start"], alpha=group["mu"]), alpha=group["lr"])
        return loss
