"""PyTorch clients (extra `torch`): any `nn.Module` trained with any algorithm, and the local rules as optimizers.

`with_module` trains a module with any algorithm; `native` with a PyTorch loop, where there is one; `module_task` makes
of a module a task for everything else in this package. The optimizers work in a plain PyTorch loop, too. Messages,
states and uploads have the form of the JAX client's, so both kinds of clients can take part in one federation.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedoptax.errors import UsageError

_HOMES = {
    "fedoptax.torch.adaptive": ("FedLAMB", "LocalAMSGrad"),
    "fedoptax.torch.control": ("FedProx", "Scaffold"),
    "fedoptax.torch.gradients": ("torch_grad_fn",),
    "fedoptax.torch.rounds": ("NATIVE", "native"),
    "fedoptax.torch.params": ("buffers_from_module", "load_buffers", "load_params", "params_from_module"),
    "fedoptax.torch.recursive": ("FAFED", "STEM"),
    "fedoptax.torch.task": ("module_task",),
    "fedoptax.torch.training": ("ModuleState", "with_module"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from fedoptax.torch.adaptive import FedLAMB as FedLAMB
    from fedoptax.torch.adaptive import LocalAMSGrad as LocalAMSGrad
    from fedoptax.torch.control import FedProx as FedProx
    from fedoptax.torch.control import Scaffold as Scaffold
    from fedoptax.torch.gradients import torch_grad_fn as torch_grad_fn
    from fedoptax.torch.params import buffers_from_module as buffers_from_module
    from fedoptax.torch.params import load_buffers as load_buffers
    from fedoptax.torch.params import load_params as load_params
    from fedoptax.torch.params import params_from_module as params_from_module
    from fedoptax.torch.recursive import FAFED as FAFED
    from fedoptax.torch.recursive import STEM as STEM
    from fedoptax.torch.rounds import NATIVE as NATIVE
    from fedoptax.torch.rounds import native as native
    from fedoptax.torch.task import module_task as module_task
    from fedoptax.torch.training import ModuleState as ModuleState
    from fedoptax.torch.training import with_module as with_module

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedoptax.torch' has no attribute '{name}'")
    if find_spec("torch") is None:
        raise UsageError("torch: not installed; allowed is an environment with it (pip install 'fedoptax[torch]')")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
