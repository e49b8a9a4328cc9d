"""Local AMSGrad, Fed-LAMB, STEM and FAFED as PyTorch optimizers, each in its paper's lines.

A client takes its local steps with `step`. At the end of a round, `upload` gives what it sends and `synchronize` takes
what all clients sent:

    uploads = [optimizer.upload() for optimizer in optimizers]
    for optimizer in optimizers:
        optimizer.synchronize(uploads)

`synchronize()` alone is a federation of one. All state is in `state_dict()`. An argument that is outside its range
raises `UsageError`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedoptax.errors import UsageError, check_choice, check_decay, check_flag, check_number, check_positive

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
"""What an optimizer takes: parameters, groups of them, or named parameters."""

Upload = list[dict[str, Tensor]]
"""What a client sends: for each parameter the tensors that the server averages, by name."""

Phi = str | Callable[[Tensor], Any]
"""φ: `"clip"`, `"identity"`, or a function of a layer's norm, a tensor of one number, to a number."""


class _FederatedOptimizer(Optimizer):
    """An optimizer with rounds.

    Of a parameter, `_start` gives the first state, `_sent` what is sent, and `_receive` takes the mean of all clients.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, in the state before the first round."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        self.state |= {p: self._start(group, p.detach()) for p in group["params"]}

    def upload(self) -> Upload:
        """The client's upload at the end of a round, as copies."""
        sent = [self._sent(group, p) for group in self.param_groups for p in group["params"]]
        return [{name: tensor.detach().clone() for name, tensor in tensors.items()} for tensors in sent]

    @torch.no_grad()
    def synchronize(self, uploads: Sequence[Upload] | None = None) -> None:
        """End a round: replace the client's upload by the mean of all clients' uploads, and do the server's part."""
        all_uploads = [self.upload()] if uploads is None else uploads
        members = [(group, p) for group in self.param_groups for p in group["params"]]
        for (group, p), sent in zip(members, zip(*all_uploads, strict=True), strict=True):
            mean = {name: torch.stack([tensors[name] for tensors in sent]).mean(0) for name in sent[0]}
            self._receive(group, p, mean)


class LocalAMSGrad(_FederatedOptimizer):
    """Local AMSGrad (Chen, Li, Li 2020, *Toward Communication Efficient Adaptive Gradient Method*).

    Fed-LAMB's Algorithm 1 with θ ← θ − α p in place of line 12; lines and readings are those of `fedoptax.fedlamb`. A
    round sends θ and v up and takes v̂ ← max(v̂, mean v) (line 16); m stays with the client. Parameters without a
    gradient do not move.

    Args:
      params: parameters or groups, as of any optimizer.
      lr: α > 0.
      b1, b2: β₁ and β₂ in [0, 1).
      eps: ε > 0.
      v0: v̂₀ > 0, the starting value of v̂ and v (lines 2 and 6).
      bias_correction: divide a copy of m by 1 − β₁ˢ, s the steps taken since m was 0.
    """

    def __init__(
        self, params: Params, lr: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, v0: float = 1e-4,
        bias_correction: bool = False, _more: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        check_positive(lr=lr, eps=eps, v0=v0)
        check_decay(b1=b1, b2=b2)
        check_flag("bias_correction", bias_correction)
        options = {"lr": lr, "b1": b1, "b2": b2, "eps": eps, "v0": v0, "bias_correction": bias_correction}
        super().__init__(params, {**options, **(_more or {})})

    def _start(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        v = torch.full_like(p, group["v0"])
        return {"m": torch.zeros_like(p), "v": v, "v_max": v.clone(), "steps": 0}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one local step (lines 8 to 12); `closure` as of any optimizer."""
        loss = _evaluate(closure)
        for group in self.param_groups:
            moving = [p for p in group["params"] if p.grad is not None]
            for p, change in zip(moving, self._changes(group, moving)):
                p.sub_(change)
        return loss

    def _direction(self, group: dict[str, Any], p: Tensor) -> Tensor:
        """Lines 9 to 11: m ← β₁ m + (1−β₁) g; v ← β₂ v + (1−β₂) g²; p = m/(√v̂ + ε)."""
        state, g = self.state[p], p.grad
        assert g is not None
        state["steps"] += 1
        state["m"].mul_(group["b1"]).add_(g, alpha=1 - group["b1"])
        state["v"].mul_(group["b2"]).add_(g * g, alpha=1 - group["b2"])
        direction = state["m"] / (state["v_max"].sqrt() + group["eps"])
        return direction / (1 - group["b1"] ** state["steps"]) if group["bias_correction"] else direction

    def _changes(self, group: dict[str, Any], moving: Sequence[Tensor]) -> list[Tensor]:
        """The step of line 12 for each parameter."""
        return [group["lr"] * self._direction(group, p) for p in moving]

    def _sent(self, group: dict[str, Any], p: Tensor) -> dict[str, Tensor]:
        return {"params": p, "v": self.state[p]["v"]}

    def _receive(self, group: dict[str, Any], p: Tensor, mean: dict[str, Tensor]) -> None:
        p.copy_(mean["params"])
        self.state[p]["v_max"] = torch.maximum(self.state[p]["v_max"], mean["v"])
        self.state[p]["v"] = self.state[p]["v_max"].clone()


class FedLAMB(LocalAMSGrad):
    """Fed-LAMB (Karimi, Li, Li, *Layerwise and Dimensionwise Locally Adaptive Optimization Method*, Algorithm 1).

    Local AMSGrad whose step is normalised layer by layer. Line 12, for a layer ℓ with u = p^ℓ + λ θ^ℓ:
    θ^ℓ ← θ^ℓ − α φ(‖θ^ℓ‖) u/‖u‖; a layer with ‖u‖ = 0 does not move.

    Args:
      params, lr, and by name b1, b2, eps, v0, bias_correction: as in `LocalAMSGrad`.
      weight_decay: λ ≥ 0.
      phi: `"clip"`, φ(a) = min(max(a, 10⁻³), 10); `"identity"`; or a function of the layer's norm.
      layers: `"tensor"`: each parameter is a layer; `"module"`: the parameters of a group whose names agree up to the
        last part are one, for which `params` must be `module.named_parameters()`.
    """

    def __init__(
        self, params: Params, lr: float, *, weight_decay: float = 0.0, phi: Phi = "clip", layers: str = "tensor",
        **others: Any,
    ) -> None:  # fmt: skip
        check_number("weight_decay", weight_decay, 0)
        check_choice("layers", layers, ("tensor", "module"))
        if not callable(phi):
            check_choice("phi", phi, _PHI)
        super().__init__(params, lr, **others, _more={"weight_decay": weight_decay, "layers": layers})
        self.defaults["phi"] = phi  # copied with the optimizer; of groups, PyTorch would not load a function

    def _start(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        if group["layers"] == "module" and "param_names" not in group:
            raise UsageError("params must be module.named_parameters() with layers='module', got some without names")
        return super()._start(group, p)

    def _changes(self, group: dict[str, Any], moving: Sequence[Tensor]) -> list[Tensor]:
        u = [self._direction(group, p).add(p, alpha=group["weight_decay"]) for p in moving]
        phi = group.get("phi", self.defaults["phi"])
        layers: list[Any] = list(range(len(moving)))
        if group["layers"] == "module":
            names = {p: name.rpartition(".")[0] for p, name in zip(group["params"], group["param_names"])}
            layers = [names[p] for p in moving]
        norms_of_u, norms_of_theta = _norms(u, layers), _norms(moving, layers)
        changes = []
        for direction, layer in zip(u, layers):
            norm = norms_of_u[layer]
            length = group["lr"] * torch.as_tensor(_PHI.get(phi, phi)(norms_of_theta[layer])).to(norm)
            changes.append(torch.where(norm > 0, length / norm, 0.0).to(direction.dtype) * direction)
        return changes


class STEM(_FederatedOptimizer):
    """STEM (Khanduri et al. 2021), in the form of `fedoptax.stem`.

    In the first round `step` adds up the mean gradient at x₀, into m. Later, on one batch ξ: g = g(x; ξ) and
    g₋ = g(x_prev; ξ); m ← g + (1−α)(m − g₋); x ← x − η m. The last step of a round is the server's, with the mean m:
    a round sends up m and x from before that step.

    Args:
      params: parameters or groups, as of any optimizer.
      lr: η > 0; a scheduler takes one step at the end of the first round, and then one after each `step`.
      alpha: α in (0, 1].
    """

    def __init__(self, params: Params, lr: float, alpha: float = 0.1, _more: Mapping[str, Any] | None = None) -> None:
        check_positive(lr=lr)
        check_number("alpha", alpha, 0, 1, open_low=True, open_high=False)
        super().__init__(params, {"lr": lr, "alpha": alpha, "is_first_round": True, "steps": 0, **(_more or {})})

    def _start(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        return {"m": torch.zeros_like(p), "x_prev": p.clone()}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one local iteration on one batch and return the loss at x; a missing gradient counts as 0.

        `closure`, without which a `UsageError` is raised, clears the gradients, computes the batch's loss and gradient,
        and returns the loss. After the first round it is called twice, at x and at x_prev, with the same randomness.
        """
        if closure is None:
            raise UsageError("closure must be a function, as a step computes two gradients, got None")
        moving = [p for group in self.param_groups if not group["is_first_round"] for p in group["params"]]
        cuda = sorted({p.get_device() for p in self.state if p.is_cuda})
        with torch.random.fork_rng(cuda, enabled=bool(moving)):
            loss = _evaluate(closure)
        g = {p: _gradient(p) for p in self.state}
        for p in moving:
            x = p.clone()
            p.copy_(self.state[p]["x_prev"])
            self.state[p]["x_prev"] = x
        if moving:
            _evaluate(closure)
        for group in self.param_groups:
            group["steps"] += 1
            group["last_lr"] = group["lr"]
            for p in group["params"]:
                if group["is_first_round"]:
                    self.state[p]["m"].add_(g[p] - self.state[p]["m"], alpha=1 / group["steps"])
                else:
                    p.copy_(self.state[p]["x_prev"])
                    self._iterate(group, p, g[p], _gradient(p))
        return loss

    def synchronize(self, uploads: Sequence[Upload] | None = None) -> None:
        """End a round, as the other optimizers here do; later rounds are variance-reduced."""
        super().synchronize(uploads)
        for group in self.param_groups:
            group.update(is_first_round=False, steps=0)

    def _iterate(self, group: dict[str, Any], p: Tensor, g: Tensor, g_prev: Tensor) -> None:
        state = self.state[p]
        state["m"] = g + (1 - group["alpha"]) * (state["m"] - g_prev)
        p.sub_(state["m"], alpha=group["lr"])

    def _sent(self, group: dict[str, Any], p: Tensor) -> dict[str, Tensor]:
        has_iterated = group["steps"] and not group["is_first_round"]
        return {"params": self.state[p]["x_prev"] if has_iterated else p, "m": self.state[p]["m"]}

    def _receive(self, group: dict[str, Any], p: Tensor, mean: dict[str, Tensor]) -> None:
        if group["is_first_round"]:
            self.state[p]["x_prev"] = p.detach().clone()
        self.state[p]["m"] = mean["m"]
        p.copy_(mean["params"] - group.get("last_lr", group["lr"]) * mean["m"])


class FAFED(STEM):
    """FAFED at a client (Wu, Huang, Hu, Huang 2023, *Faster Adaptive Federated Learning*, Algorithm 2).

    In the first round `step` adds up the mean gradient at x₀, into m, and v = m² (line 2); the server's step has no A
    (line 3). Later, on one batch ξ: g = g(x; ξ) and g₋ = g(x_prev; ξ) (line 6); m ← g + (1−α)(m − g₋) (line 7);
    v ← β v + (1−β) g² (line 8); x ← x − η m/A (line 15), where A = √v + ρ with the v of the last synchronisation
    (line 14). The last step of a round is the server's, with the mean m and the new A (lines 10 to 12): a round sends
    up m, v, and x from before that step.

    Args:
      params, lr, alpha: as in `STEM`.
      beta: β in [0, 1).
      rho: ρ > 0.
      variant: `"paper"`, or `"released"`: the last step of a round is taken at the client, too, with the old A, and x
        from after it is sent up.
    """

    def __init__(
        self, params: Params, lr: float, alpha: float = 0.1, beta: float = 0.9, rho: float = 0.01,
        variant: str = "paper",
    ) -> None:  # fmt: skip
        check_decay(beta=beta)
        check_positive(rho=rho)
        check_choice("variant", variant, ("paper", "released"))
        super().__init__(params, lr, alpha, {"beta": beta, "rho": rho, "variant": variant})

    def _iterate(self, group: dict[str, Any], p: Tensor, g: Tensor, g_prev: Tensor) -> None:
        state, beta = self.state[p], group["beta"]
        state["m"] = g + (1 - group["alpha"]) * (state["m"] - g_prev)  # line 7
        state["v"] = beta * state["v"] + (1 - beta) * g.square()  # line 8
        p.sub_(state["m"] / state["A"], alpha=group["lr"])  # line 15

    def _sent(self, group: dict[str, Any], p: Tensor) -> dict[str, Tensor]:
        sent, state = super()._sent(group, p), self.state[p]
        if group["variant"] == "released":
            sent["params"] = p
        return sent | {"v": state["m"].square() if group["is_first_round"] else state["v"]}  # line 2

    def _receive(self, group: dict[str, Any], p: Tensor, mean: dict[str, Tensor]) -> None:
        A = mean["v"].sqrt() + group["rho"]
        direction = mean["m"]
        if not group["is_first_round"]:
            direction = direction / A if group["variant"] == "paper" else torch.zeros_like(direction)
        super()._receive(group, p, mean | {"m": direction})
        self.state[p] |= {"m": mean["m"], "v": mean["v"], "A": A}


_PHI: dict[str, Any] = {"clip": lambda norm: norm.clamp(1e-3, 10.0), "identity": lambda norm: norm}


def _norms(values: Sequence[Tensor], layers: Sequence[Any]) -> dict[Any, Tensor]:
    """The 2-norm of each layer, in at least float32."""
    squares: dict[Any, Any] = {}
    for value, layer in zip(values, layers):
        wide = torch.promote_types(value.dtype, torch.float32)
        squares[layer] = squares.get(layer, 0.0) + value.to(wide).square().sum()
    return {layer: square.sqrt() for layer, square in squares.items()}


def _evaluate(closure: Callable[[], Any] | None) -> Any:
    with torch.enable_grad():
        return closure and closure()


def _gradient(p: Tensor) -> Tensor:
    return torch.zeros_like(p) if p.grad is None else p.grad.to_dense().clone()
