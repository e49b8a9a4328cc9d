"""STEM's and FAFED's local rules as PyTorch optimizers.

Wu, Huang, Hu, Huang 2023, *Faster Adaptive Federated Learning*, Algorithm 2 (lines as there); Khanduri et al. 2021,
*STEM*: the same without the adaptive matrix A.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedoptax.errors import UsageError
from fedoptax.hyper import check_choice, check_fraction, check_positive
from fedoptax.torch.loop import Closure, Params, copies, evaluated, gradients, members


class Iterate(NamedTuple):
    """What a round ends with, one tensor a parameter: x, m and v (empty for STEM) go to the server, x_prev stays."""

    params: list[Tensor]
    m: list[Tensor]
    v: list[Tensor]
    previous: list[Tensor]


class STEM(Optimizer):
    """STEM at a client (Khanduri et al. 2021), in the form of FAFED's Algorithm 2 with A = 1 and without v.

    In round 0 `step` adds up the mean gradient at x₀ (line 2). Later, on one batch: g = g(x; ξ), g₋ = g(x_prev; ξ)
    (line 6); m ← g + (1−α)(m − g₋) (line 7); then x ← x − η m (line 15). That last part waits for the next call of
    `step`: after the last iteration of a round it is the server's, with the mean m (line 12), in `synchronize`. So the
    parameters are complete after `synchronize`, and one step behind before it. A missing gradient counts as 0.

    A loop of one's own calls `step` q times, then `synchronize`, and so on. A client of a federation calls
    `start_round`, `step` K times, `end_round`.

    Args:
      params: parameters or groups, as of any optimizer.
      lr: η > 0.
      alpha: α in (0, 1].

    Raises:
      UsageError: a number is outside its range.
    """

    def __init__(self, params: Params, lr: float, alpha: float = 0.1, **more: Any) -> None:
        check_positive(lr=lr, alpha=alpha)
        if alpha > 1:
            raise UsageError(f"alpha: {alpha!r} given, allowed is a number > 0 and <= 1")
        super().__init__(params, {"lr": lr, "alpha": alpha, "first": True, "steps": 0, "waiting": None, **more})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters, before its first round: m = 0, x_prev = x."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            self.state[p] = {"m": torch.zeros_like(p, requires_grad=False), "previous": p.detach().clone()}

    def start_round(
        self, m: Sequence[Tensor], v: Sequence[Tensor] = (), previous: Sequence[Tensor] = (), first: bool = False
    ) -> None:
        """Begins a round from the present parameters, those that the server sent.

        Args:
          m: the server's m, one tensor a parameter.
          v: the server's v, likewise; none for STEM.
          previous: the client's x_prev, likewise; none for the one that this optimizer keeps.
          first: whether it is round 0.
        """
        for group in self.param_groups:
            group.update(first=first, steps=0, waiting=None)
        for name, values in (("m", m), ("v", v), ("shared_v", v), ("previous", previous)):
            self._put(name, values)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One iteration on one batch.

        Args:
          closure: clears the gradients, computes the batch's loss and its gradient, returns the loss. After round 0 it
            is called twice, with the same randomness.

        Returns:
          The loss at x.

        Raises:
          UsageError: there is no closure.
        """
        if closure is None:
            raise UsageError("closure: None given; one is needed, because a step takes the gradient at two points")
        self._move()
        every = members(self)
        for group in self.param_groups:
            group["steps"] += 1
        if self._first:
            loss = evaluated(closure)
            for p, g in zip(every, gradients(every)):
                self.state[p]["m"].add_(g - self.state[p]["m"], alpha=1 / self.param_groups[0]["steps"])
            return loss
        here = copies(every)
        with torch.random.fork_rng(sorted({p.get_device() for p in every if p.is_cuda})):
            loss = evaluated(closure)
        now = copies(gradients(every))
        for p in every:
            p.copy_(self.state[p]["previous"])
        evaluated(closure)
        before = copies(gradients(every))
        for p, x in zip(every, here):
            p.copy_(x)
            self.state[p]["previous"] = x
        gradient = dict(zip(every, zip(now, before)))
        for group in self.param_groups:
            group["waiting"] = group["lr"]
            for p in group["params"]:
                g, g_before = gradient[p]
                state = self.state[p]
                state["m"] = g + (1 - group["alpha"]) * (state["m"] - g_before)
                self._track(group, p, g)
        return loss

    @torch.no_grad()
    def end_round(self) -> Iterate:
        """Ends a round.

        Returns:
          x, m and v to upload, x_prev to keep. Copies.
        """
        every = members(self)
        if self._first:
            for p in every:
                self.state[p]["previous"] = p.detach().clone()
        return Iterate(copies(every), *(copies(self._get(name)) for name in ("m", "v", "previous")))

    @torch.no_grad()
    def synchronize(self, mean: Iterate | None = None) -> None:
        """Ends a round with the server's part (lines 10 to 12), and begins the next.

        Args:
          mean: the means of the clients' x, m and v; None for a federation of one.
        """
        own = self.end_round()
        x, m, v, _ = own if mean is None else mean
        rates = [group["waiting"] or group["lr"] for group in self.param_groups]
        first = self._first
        for p, value in zip(members(self), x, strict=True):
            p.copy_(value)
        self.start_round(m, v)
        for group, lr in zip(self.param_groups, rates):
            for p in group["params"]:
                if first or self._steps_at_server(group):
                    p.sub_(self.state[p]["m"] if first else self._direction(group, p), alpha=lr)

    @property
    def _first(self) -> bool:
        return bool(self.param_groups[0]["first"])

    def _move(self) -> None:
        """The step that the last iteration left waiting."""
        for group in self.param_groups:
            if group["waiting"] is not None:
                for p in group["params"]:
                    p.sub_(self._direction(group, p), alpha=group["waiting"])
                group["waiting"] = None

    def _steps_at_server(self, group: dict[str, Any]) -> bool:
        return True

    def _direction(self, group: dict[str, Any], p: Tensor) -> Tensor:
        """m/A."""
        return self.state[p]["m"]

    def _track(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """Line 8."""

    def _get(self, name: str) -> list[Tensor]:
        return [self.state[p][name] for p in members(self) if name in self.state[p]]

    def _put(self, name: str, values: Sequence[Tensor]) -> None:
        if values:
            for p, value in zip(members(self), copies(values), strict=True):
                self.state[p][name] = value


class FAFED(STEM):
    """FAFED at a client (Wu et al. 2023, Algorithm 2).

    As `STEM`, with v ← β v + (1−β) g² (line 8) and x ← x − η m/A (line 15), where A = √v + ρ with the v of the last
    synchronisation (line 14); v = m² after round 0 (line 2), whose step has no A (line 3).

    Args:
      params: parameters or groups, as of any optimizer.
      lr: η > 0.
      alpha: α in (0, 1].
      beta: β in [0, 1).
      rho: ρ > 0.
      variant: `"paper"`, or `"released"`: the last iteration of a round steps at the client, too, with the old A.

    Raises:
      UsageError: a number is outside its range or the variant is unknown.
    """

    def __init__(
        self,
        params: Params,
        lr: float,
        alpha: float = 0.1,
        beta: float = 0.9,
        rho: float = 0.01,
        variant: str = "paper",
    ) -> None:
        check_fraction(beta=beta)
        check_positive(rho=rho)
        check_choice("variant", variant, ("paper", "released"))
        super().__init__(params, lr, alpha, beta=beta, rho=rho, variant=variant)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters, before its first round: m = v = 0, x_prev = x."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            zero = torch.zeros_like(p, requires_grad=False)
            self.state[p] |= {"v": zero, "shared_v": zero.clone()}

    @torch.no_grad()
    def end_round(self) -> Iterate:
        """Ends a round.

        Returns:
          x, m and v to upload, x_prev to keep. Copies.
        """
        if self._first:
            for p in members(self):
                self.state[p]["v"] = self.state[p]["m"].square()
        elif not self._steps_at_server(self.param_groups[0]):
            self._move()
        return super().end_round()

    def _steps_at_server(self, group: dict[str, Any]) -> bool:
        return group["variant"] == "paper"

    def _direction(self, group: dict[str, Any], p: Tensor) -> Tensor:
        return self.state[p]["m"] / (self.state[p]["shared_v"].sqrt() + group["rho"])

    def _track(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        self.state[p]["v"] = group["beta"] * self.state[p]["v"] + (1 - group["beta"]) * g.square()
