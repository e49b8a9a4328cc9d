"""Clients whose whole round is a PyTorch loop with an optimizer, for the algorithms that have one here.

They take the messages, keep the states and send the uploads of the JAX algorithm of the same name, and compute the
same: `with_module` does it for any algorithm, but parameters and gradients cross between the frameworks at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from torch import Tensor, nn

from fedoptax.algorithm import FedAlgorithm, Tree
from fedoptax.algorithms import ALGORITHMS
from fedoptax.algorithms.fafed import FAFEDUpload
from fedoptax.algorithms.fedlamb import AMSUpload, Momentum
from fedoptax.algorithms.fedopt import FedOptUpload
from fedoptax.algorithms.scaffold import ScaffoldUpload
from fedoptax.errors import UsageError, unknown
from fedoptax.hyper import received, sent
from fedoptax.torch.adaptive import FedLAMB, LocalAMSGrad
from fedoptax.torch.control import FedProx, Scaffold
from fedoptax.torch.gradients import Evaluation, ModuleLoss, as_list
from fedoptax.torch.loop import copies, gradients
from fedoptax.torch.params import buffers_from_module, load_buffers, load_params, tensors, trained, tree_of
from fedoptax.torch.recursive import FAFED, STEM
from fedoptax.torch.training import ModuleState


class Local(NamedTuple):
    """A client's module, ready with the parameters that came, its minibatches, and the loss with gradients on one."""

    module: nn.Module
    batches: Sequence[Any]
    evaluate: Evaluation

    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters."""
        return list(trained(self.module).values())

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """The trained parameters with PyTorch's names."""
        return [(name.replace("/", "."), p) for name, p in trained(self.module).items()]

    def tensors(self, tree: Tree) -> list[Tensor]:
        """A tree in the order of the parameters; none for `()`."""
        return tensors(self.module, tree) if jax.tree.leaves(tree) else []

    def tree(self, values: Sequence[Tensor]) -> Tree:
        """The inverse; `()` for none."""
        return tree_of(self.module, values) if values else ()

    def steps(self, optimizer: Any, before: Callable[[int], None] = lambda k: None) -> float:
        """A step on every minibatch, each after `before(k)`; the mean loss."""
        losses = []
        for k, batch in enumerate(self.batches):
            before(k)
            losses.append(optimizer.step(lambda batch=batch: self.evaluate(batch)).double())
        return float(torch.stack(losses).mean()) if losses else 0.0


Update = Callable[[Mapping[str, Any], Local, Any, Tree], tuple[Tree, Tree, float]]
"""`(hyper-parameters, local, message, client) -> (upload, client, mean loss)`."""


def native(name: str, module: nn.Module, loss: ModuleLoss, **hyperparameters: Any) -> FedAlgorithm:
    """An algorithm whose clients train a module in a PyTorch loop.

    Args:
      name: one of `NATIVE`.
      module: the module, as in `with_module`.
      loss: `(module, batch) -> scalar`; see `torch_grad_fn`.
      **hyperparameters: those of the algorithm's constructor; a function φ of `fedlamb` gets a tensor.

    Returns:
      The algorithm of that name, with `with_module`'s client states and the same results.

    Raises:
      UsageError: there is no such name, or a hyper-parameter is unknown, missing or out of range.
    """
    if name not in NATIVE:
        unknown("algorithm", name, NATIVE)
    constructor = ALGORITHMS[name]
    try:
        bound = signature(constructor).bind(**hyperparameters)
    except TypeError as error:
        raise UsageError(f"{name}: {error}; allowed are {', '.join(signature(constructor).parameters)}") from None
    bound.apply_defaults()
    algorithm, settings, update = constructor(**hyperparameters), bound.arguments, NATIVE[name]
    start, evaluate = buffers_from_module(module), Evaluation(module, loss)

    def client_update(given: Any, message: Any, client: ModuleState, batches: Any) -> tuple[Tree, Tree, jax.Array]:
        del given
        local = Local(module, as_list(batches), evaluate)
        load_buffers(module, client.buffers)
        load_params(module, message.params)
        upload, state, mean_loss = update(settings, local, message, client.algorithm)
        return upload, ModuleState(state, buffers_from_module(module)), jnp.asarray(mean_loss)

    return algorithm._replace(
        init_client=lambda params: ModuleState(algorithm.init_client(params), start), client_update=client_update
    )


def _sgd(settings: Mapping[str, Any], local: Local, message: Any, client: Tree) -> tuple[Tree, Tree, float]:
    lr = float(received(settings["client_lr"], message.lr))
    if "mu" in settings:
        optimizer: Any = FedProx(local.parameters(), lr, settings["mu"])
    else:
        optimizer = torch.optim.SGD(local.parameters(), lr)
    start = copies(local.parameters())
    loss = local.steps(optimizer)
    return FedOptUpload(local.tree(_change(start, local)), ()), client, loss


def _scaffold(settings: Mapping[str, Any], local: Local, message: Any, client: Tree) -> tuple[Tree, Tree, float]:
    optimizer = Scaffold(local.parameters(), float(received(settings["client_lr"], message.lr)))
    optimizer.start_round(local.tensors(message.control), local.tensors(client))
    start = copies(local.parameters())
    loss = local.steps(optimizer)
    delta = _change(start, local)
    gradient = _mean_gradient(local, start) if settings["option"] == "I" else None
    control_delta = optimizer.end_round(gradient)
    control = [optimizer.state[p]["control"] for p in local.parameters()]
    return ScaffoldUpload(local.tree(delta), local.tree(control_delta)), local.tree(control), loss


def _adaptive(settings: Mapping[str, Any], local: Local, message: Any, client: Any) -> tuple[Tree, Tree, float]:
    own = {name: value for name, value in settings.items() if name not in ("lr", "momentum")}
    lr, persist = float(received(settings["lr"], message.lr)), settings["momentum"] == "persist"
    rule = FedLAMB if "phi" in own else LocalAMSGrad
    optimizer = rule(local.named(), lr, **own)
    states = [optimizer.state[p] for p in local.parameters()]
    for state, v in zip(states, local.tensors(message.v_max)):
        state["v_max"], state["v"] = v, v.clone()
    if persist:
        for state, m in zip(states, local.tensors(client.m)):
            state.update(m=m, steps=int(client.steps) if settings["bias_correction"] else 0)
    loss = local.steps(optimizer)
    upload = AMSUpload(local.tree(local.parameters()), local.tree([state["v"] for state in states]))
    if not persist:
        return upload, (), loss
    steps = jnp.int32(states[0]["steps"]) if settings["bias_correction"] else ()
    return upload, Momentum(local.tree([state["m"] for state in states]), steps), loss


def _recursive(settings: Mapping[str, Any], local: Local, message: Any, client: Tree) -> tuple[Tree, Tree, float]:
    t, scheduled = int(message.t), callable(settings["lr"]) or callable(settings["alpha"])
    own = {name: value for name, value in settings.items() if name not in ("lr", "alpha")}

    def at(k: int) -> dict[str, Any]:
        return {name: float(received(settings[name], sent(settings[name], t + k))) for name in ("lr", "alpha")}

    optimizer = (FAFED if own else STEM)(local.parameters(), **at(0), **own)
    optimizer.start_round(local.tensors(message.m), local.tensors(message.v), local.tensors(client), first=t == 0)
    loss = local.steps(optimizer, lambda k: optimizer.param_groups[0].update(at(k)))
    ended = optimizer.end_round()
    steps = jnp.int32(len(local.batches)) if scheduled else ()
    upload = FAFEDUpload(local.tree(ended.params), local.tree(ended.m), local.tree(ended.v), steps)
    return upload, local.tree(ended.previous), loss


def _change(start: Sequence[Tensor], local: Local) -> list[Tensor]:
    """y − x."""
    return [p.detach() - x for p, x in zip(local.parameters(), start)]


def _mean_gradient(local: Local, x: Sequence[Tensor]) -> list[Tensor]:
    """The mean of the round's minibatch gradients at x; the parameters are left there."""
    with torch.no_grad():
        for p, value in zip(local.parameters(), x):
            p.copy_(value)
    total = [torch.zeros_like(value) for value in x]
    for batch in local.batches:
        local.evaluate(batch)
        for part, g in zip(total, gradients(local.parameters())):
            part.add_(g, alpha=1 / len(local.batches))
    return total


NATIVE: dict[str, Update] = {
    **dict.fromkeys(("fedavg", "fedavgm", "fedadagrad", "fedyogi", "fedadam", "fedams", "fedamsgrad", "fedprox"), _sgd),
    "scaffold": _scaffold,
    "local_amsgrad": _adaptive,
    "fedlamb": _adaptive,
    "stem": _recursive,
    "fafed": _recursive,
}
"""The algorithms that have a PyTorch loop."""
