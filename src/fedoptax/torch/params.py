"""Between a module and this package's trees: parameters and buffers, by name, with every mismatch refused in one line.

The parameter `hidden.weight` of a module is the leaf `{"hidden": {"weight": …}}`, on the wire `hidden/weight`. Only
parameters that are trained (`requires_grad`) travel. Buffers, such as the running statistics of batch normalisation,
are not parameters: a server optimizer would give them a momentum and could make a variance negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

from fedoptax.algorithm import Tree
from fedoptax.errors import UsageError


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The module's trained parameters by name, `/` between the parts; one that is shared has its first name only.

    Raises:
      UsageError: it has none.
    """
    named = {name.replace(".", "/"): p for name, p in module.named_parameters() if p.requires_grad}
    if not named:
        raise UsageError(f"module: {type(module).__name__} without trained parameters given; at least one is needed")
    return named


def params_from_module(module: nn.Module) -> Tree:
    """A copy of the module's trained parameters, the tree that algorithms work on.

    Args:
      module: any module; what it shares between places, it shares in the tree.

    Returns:
      Nested dictionaries of arrays in the parameters' shapes and dtypes.

    Raises:
      UsageError: no trained parameter, or one of a dtype that JAX does not hold (float64 without `jax_enable_x64`).
    """
    return jax.tree.map(jnp.asarray, tree_of(module, list(trained(module).values())))


def load_params(module: nn.Module, params: Tree) -> None:
    """Copies parameters into the module, in place; all of them, or none if one does not fit.

    Args:
      module: any module.
      params: a tree as `params_from_module` gives it, or arrays by name, `/` between the parts, as in the `params.npz`
        of a run's folder.

    Raises:
      UsageError: a name is missing or unknown, or a shape or dtype differs.
    """
    _copy("params", trained(module), params)


def buffers_from_module(module: nn.Module) -> dict[str, np.ndarray]:
    """A copy of the module's persistent buffers by name; 64-bit integers as JAX holds them."""
    return {name: to_array(f"buffer '{name}'", tensor) for name, tensor in _buffers(module).items()}


def load_buffers(module: nn.Module, buffers: Mapping[str, Any]) -> None:
    """Copies buffers into the module, in place.

    Raises:
      UsageError: a name is missing or unknown, or a shape differs.
    """
    _copy("buffers", _buffers(module), buffers, same_dtype=False)


def to_array(what: str, tensor: Tensor) -> np.ndarray:
    """A copy of a tensor as a NumPy array, of its dtype.

    Raises:
      UsageError: JAX does not hold the dtype; but integers of 64 bits become those of 32.
    """
    host = tensor.detach().cpu().contiguous()
    half = host.dtype == torch.bfloat16
    array = host.view(torch.int16).numpy().view(jnp.bfloat16) if half else host.numpy()
    held = jax.dtypes.canonicalize_dtype(array.dtype)
    if held != array.dtype and array.dtype.kind not in "iu":
        raise UsageError(f"module: {what} of {array.dtype} given, allowed is {held} unless jax_enable_x64 is set")
    return array.astype(held)


def to_tensor(array: Any) -> Tensor:
    """A copy of an array as a tensor of its dtype on the CPU.

    Raises:
      UsageError: it is traced: a module cannot be part of a compiled program.
    """
    if isinstance(array, jax.core.Tracer):
        raise UsageError("module: traced arrays given; allowed is fedoptax.eager.run_round, or a module_task")
    host = np.array(array, order="C")
    if host.dtype == jnp.bfloat16:
        return torch.from_numpy(host.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(host)


def nest(named: Mapping[str, Any]) -> dict[str, Any]:
    """{"hidden/weight": a} as {"hidden": {"weight": a}}."""
    tree: dict[str, Any] = {}
    for name, leaf in named.items():
        *outer, last = name.split("/")
        place = tree
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = leaf
    return tree


def flat(tree: Tree) -> dict[str, Any]:
    """The inverse of `nest`, for any tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def tensors(module: nn.Module, tree: Tree) -> list[Tensor]:
    """A tree's leaves as tensors beside the module's parameters, in their order.

    Raises:
      UsageError: a name is missing or unknown, or a shape or dtype differs.
    """
    named = trained(module)
    _check("params", named, flat(tree))
    leaves = flat(tree)
    return [to_tensor(leaves[name]).to(p.device) for name, p in named.items()]


def tree_of(module: nn.Module, values: Sequence[Tensor]) -> Tree:
    """Tensors in the order of the module's parameters as a tree of NumPy arrays."""
    return nest({name: to_array(f"parameter '{name}'", value) for name, value in zip(trained(module), values)})


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    persistent = module.state_dict(keep_vars=True).keys()
    return {name.replace(".", "/"): b for name, b in module.named_buffers() if name in persistent}


def _copy(what: str, places: Mapping[str, Tensor], given: Tree, same_dtype: bool = True) -> None:
    leaves = flat(given)
    _check(what, places, leaves, same_dtype)
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(to_tensor(leaves[name]))


def _check(what: str, places: Mapping[str, Tensor], leaves: Mapping[str, Any], same_dtype: bool = True) -> None:
    missing, extra = sorted(places.keys() - leaves.keys()), sorted(leaves.keys() - places.keys())
    if missing or extra:
        raise UsageError(f"{what}: missing {_some(missing)}, unknown {_some(extra)}; the module's names are allowed")
    for name, place in places.items():
        needed, leaf = str(place.dtype).removeprefix("torch."), leaves[name]
        shape, dtype = tuple(np.shape(leaf)), str(getattr(leaf, "dtype", type(leaf).__name__))
        if shape != tuple(place.shape) or (same_dtype and dtype != needed):
            allowed = f"{needed}{list(place.shape)}"
            raise UsageError(f"{what}: '{name}' of {dtype}{list(shape)} given, allowed is {allowed}")


def _some(names: Iterable[str]) -> str:
    shown = [f"'{name}'" for name in names]
    return ", ".join(shown[:3] + (["..."] if len(shown) > 3 else [])) or "none"
