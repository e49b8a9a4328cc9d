"""Between a module and this package's trees: parameters and buffers by name, arrays and tensors that share memory.

The parameter `hidden.weight` of a module is the leaf `{"hidden": {"weight": …}}`, on the wire `hidden/weight`. Only
trained parameters (`requires_grad`) travel. Buffers, such as the running statistics of batch normalisation, are not
parameters: a server optimizer would give them a momentum and could make a variance negative.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax.traverse_util import unflatten_dict
from torch import Tensor, nn

from fedoptax.algorithm import Tree
from fedoptax.errors import UsageError


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the module's trained parameters by name, `/` between the parts; raise a `UsageError` if it has none."""
    named = {name.replace(".", "/"): p for name, p in module.named_parameters() if p.requires_grad}
    if not named:
        raise UsageError(f"module must have trainable parameters, got a {type(module).__name__} without")
    return named


def params_from_module(module: nn.Module) -> Tree:
    """Copy the module's trained parameters into a tree, the form that algorithms work on.

    These are nested dictionaries of arrays in the parameters' shapes and dtypes; what the module shares is there once.
    No trained parameter, or one of float64 without `jax_enable_x64`, is a `UsageError`.
    """
    return unflatten_dict({name: to_array(p.clone(), name) for name, p in trained(module).items()}, sep="/")


def load_params(module: nn.Module, params: Tree) -> None:
    """Copy parameters into the module, in place; all of them, or none if one does not fit.

    `params` is a tree as `params_from_module` returns it, or arrays by name, such as `hidden/weight`, as in the
    `params.npz` of a run's folder. A name that is missing or unknown, another shape or dtype is a `UsageError`.
    """
    _copy("params", trained(module), params)


def buffers_from_module(module: nn.Module) -> dict[str, jax.Array]:
    """Copy the module's persistent buffers by name, 64-bit integers as JAX holds them."""
    return {name: to_array(b.clone(), name) for name, b in _buffers(module).items()}


def load_buffers(module: nn.Module, buffers: Mapping[str, Any]) -> None:
    """Copy buffers into the module, in place; raise a `UsageError` if a name or shape is not the module's."""
    _copy("buffers", _buffers(module), buffers, same_dtype=False)


def to_array(tensor: Tensor, name: str) -> jax.Array:
    """Give a tensor to JAX by DLPack; where both are on one device, nothing is copied and nobody may write to it.

    Float64 without `jax_enable_x64` is a `UsageError`, with the `name` in its message.
    """
    if tensor.dtype == torch.float64 and jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise UsageError(f"module must be of float32 unless jax_enable_x64 is set, got '{name}' of float64")
    tensor = tensor.detach().contiguous()
    return jnp.from_dlpack(tensor.cpu() if tensor.is_cuda and jax.default_backend() != "gpu" else tensor)


def to_tensor(array: Any) -> Tensor:
    """Give an array of JAX to PyTorch by DLPack, without a copy: nobody may write to it. NumPy's arrays are copied."""
    if isinstance(array, jax.Array) or array.dtype == jnp.bfloat16:
        return torch.from_dlpack(jnp.asarray(array))
    return torch.tensor(array)


def flatten(tree: Tree) -> dict[str, Any]:
    """Return the leaves of any tree by name, `hidden/weight`, in their order."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def check_params(module: nn.Module, params: Tree) -> None:
    """Check that parameters, arrays or their forms, are the module's; raise a `UsageError` if not."""
    _check("params", trained(module), flatten(params))


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    persistent = module.state_dict(keep_vars=True).keys()
    return {name.replace(".", "/"): b for name, b in module.named_buffers() if name in persistent}


def _copy(what: str, places: Mapping[str, Tensor], tree: Tree, same_dtype: bool = True) -> None:
    leaves = flatten(tree)
    _check(what, places, leaves, same_dtype)
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(to_tensor(leaves[name]))


def _check(what: str, places: Mapping[str, Tensor], leaves: Mapping[str, Any], same_dtype: bool = True) -> None:
    missing, extra = sorted(places.keys() - leaves.keys()), sorted(leaves.keys() - places.keys())
    if missing or extra:
        raise UsageError(f"{what} must have the module's names, got too many: {extra}, and too few: {missing}")
    for name, place in places.items():
        shape, dtype = list(np.shape(leaves[name])), getattr(leaves[name], "dtype", type(leaves[name]).__name__)
        wanted = str(place.dtype).removeprefix("torch.")
        if shape != list(place.shape) or (same_dtype and dtype != wanted):
            raise UsageError(f"{what} must hold '{name}' of {wanted}{list(place.shape)}, got {dtype}{shape}")
