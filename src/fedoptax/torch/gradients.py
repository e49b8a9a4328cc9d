"""Any module under any algorithm: PyTorch computes the gradients, the one definition of the algorithm does the rest.

Nearly all of a round's time goes into the module's forward and backward pass. Parameters go to PyTorch by DLPack
without a copy, minibatches with one: during the call, the module's parameters are the algorithm's memory. In an eager
round gradients come back the same way; in a compiled one XLA calls PyTorch for every gradient and copies it once.

The parameter `hidden.weight` of a module is the leaf `{"hidden": {"weight": …}}`, on the wire `hidden/weight`. Only
trained parameters (`requires_grad`) travel. Buffers, such as the running statistics of batch normalisation, are not
parameters: a server optimizer would give them a momentum and could make a variance negative.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax.traverse_util import unflatten_dict
from torch import Tensor, nn

from fedoptax.algorithm import Batches, BatchList, FedAlgorithm, GradFn, Tree
from fedoptax.engine.batches import Minibatch
from fedoptax.engine.xla import call_host
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
    `params.npz` of a run's folder (bfloat16 is float32 there). Another name, shape or dtype is a `UsageError`.
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
    tensor = tensor.detach().to_dense().contiguous()
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
    leaves = flatten(dict(tree) if isinstance(tree, Mapping) else tree)
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


ModuleLoss = Callable[[nn.Module, Any], Tensor | Iterator[Tensor]]
"""`loss(module, batch)`: the mean loss over a batch, a scalar tensor; the batch's arrays come as tensors.

An iterator gives the loss in parts that add up to it, each of which goes backward before the next is computed.
"""

ONE_AT_A_TIME = threading.Lock()
"""XLA calls back from several threads, but a module is one, and so are PyTorch's random numbers."""


class ModuleState(NamedTuple):
    """A client: the algorithm's state, and the module's buffers, which never leave the client."""

    algorithm: Tree
    buffers: dict[str, Any]


class Place(NamedTuple):
    """A batch at its place in a list: one batch at two places is taken for two."""

    batch: Tree


def with_module(algorithm: FedAlgorithm, module: nn.Module, loss: ModuleLoss) -> FedAlgorithm:
    """`algorithm` with clients that train a module; server, messages and uploads stay the same.

    A client's gradients are those of the module, whatever gradient function the round has: `with_prox` and
    `with_clipping` go inside, as in `with_module(with_prox(a, mu), …)`, and a task's `clip_norm` has no effect. Clients
    run in turn on one device: in `fedoptax.eager.run_round`, in `fedoptax.run` with `client_loop="loop"` and `mesh=1`,
    or each in its process on a network. They may share the module: a round puts the client's buffers into it.

    Buffers, such as the running statistics of batch normalisation, stay with the client between rounds, in its
    `ModuleState`; no server optimizer and no mean ever sees them. They start as the module's are now.

    Args:
      algorithm: any algorithm.
      module: the module. `params_from_module(module)` are parameters for `algorithm.init`.
      loss: `(module, batch) -> scalar`; see `torch_grad_fn`.
    """
    start, grad_fn = buffers_from_module(module), torch_grad_fn(module, loss)

    def client_update(_: Any, message: Tree, client: ModuleState, batches: Any) -> tuple[Tree, Tree, jax.Array]:
        if not isinstance(batches, Batches):
            batches = BatchList(map(Place, batches), getattr(batches, "key", None))
        call_host(lambda buffers: load_buffers(module, buffers), None, client.buffers, is_ordered=True)
        upload, state, mean_loss = algorithm.client_update(grad_fn, message, client.algorithm, batches)
        buffers = call_host(lambda loss: buffers_from_module(module), client.buffers, mean_loss, is_ordered=True)
        return upload, ModuleState(state, buffers), mean_loss

    return algorithm._replace(
        init_client=lambda params: ModuleState(algorithm.init_client(params), start), client_update=client_update
    )


def torch_grad_fn(module: nn.Module, loss: ModuleLoss) -> GradFn:
    """`(params, batch) -> (loss, grads)` of a module, for any algorithm, in rounds like those of `with_module`.

    The module is put in training mode; its parameters do not change.

    Args:
      module: any module.
      loss: `(module, batch) -> scalar`. An engine's batch comes as `{field: tensor}` of its real examples, without
        padding and mask; any other tree as it is, its arrays as tensors on the module's device.

    Returns:
      The gradient function. Two calls in a row on one batch share its randomness (dropout), and only the first updates
      running statistics: variance-reduced algorithms take two gradients of one function. An engine's batch brings its
      randomness along, so that all calls on it share it.
    """
    gradient = ModuleGradient(module, loss)

    def grad_fn(params: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        check_params(module, params)
        inner = batch.batch if isinstance(batch, Place) else batch
        is_minibatch = isinstance(inner, Minibatch)
        if is_minibatch:
            gradient.check_batch(inner.examples)
        arrays = (params, inner.examples, jax.random.key_data(inner.key)) if is_minibatch else (params,)
        compute = gradient.at_minibatch if is_minibatch else partial(gradient.at_batch, batch, inner)
        # Ordered, as the first of two gradients on one batch is the one that updates running statistics.
        return call_host(compute, gradient_form(params), *arrays, is_ordered=True)

    return grad_fn


class ModuleGradient:
    """A module's loss and gradient at an algorithm's parameters, for `torch_grad_fn` and `module_task`."""

    def __init__(self, module: nn.Module, loss: ModuleLoss, restores_buffers: bool = False) -> None:
        self.module, self.loss, self.restores_buffers = module, loss, restores_buffers
        self._last_place: Any = None
        self._last: Any = None, []  # the last seed, and the versions of the buffers after its gradient

    def at_batch(self, place: Any, batch: Tree, params: Tree) -> tuple[jax.Array, Tree]:
        """Compute loss and gradient on any batch; if its place is not that of the call before, PyTorch draws a seed."""
        seed = self._last[0] if place is self._last_place else None
        self._last_place = place
        return self._compute(params, batch, int(torch.randint(2**62, ())) if seed is None else seed)

    def at_minibatch(self, params: Tree, examples: Mapping[str, Any], key_data: Any) -> tuple[jax.Array, Tree]:
        """Compute loss and gradient on an engine's minibatch, without its padding; the key gives the seed."""
        return self._compute(params, real_examples(examples), seed_of(key_data))

    def check_batch(self, examples: Mapping[str, Any]) -> None:
        """Check that batch normalisation takes a minibatch of one example, where the examples are one."""
        norms = [name for name, m in self.module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        form = {name: a for name, a in examples.items() if name != "mask"}
        if not norms or len(jax.tree.leaves(form)[0]) > 1:
            return
        batch = real_examples({name: np.zeros(a.shape, a.dtype) for name, a in form.items()})
        try:
            with torch.no_grad(), torch.random.fork_rng():
                tensors = as_tensors(batch, next(self.module.parameters()).device)
                result = self.loss(deepcopy(self.module).train(), tensors)
                list(result if isinstance(result, Iterator) else ())
        except Exception as error:  # any other, perhaps of the zeros, comes again with the examples if it is not
            if "more than 1 value" in str(error):
                message = "batch_size must leave no client a minibatch of one example, which "
                raise UsageError(f"{message}'{norms[0]}' cannot normalise") from error

    @contextmanager
    def holding(self, params: Tree) -> Iterator[list[nn.Parameter]]:
        """Make arrays the module's parameters for a while, without a copy; nobody else uses the module then."""
        named = trained(self.module)
        parameters = [named[name] for name in flatten(params)]
        with ONE_AT_A_TIME:
            before = [p.data for p in parameters]
            try:
                for p, leaf in zip(parameters, jax.tree.leaves(params)):
                    p.grad, p.data = None, to_tensor(leaf).to(p.device)
                yield parameters
            finally:
                for p, data in zip(parameters, before):
                    p.grad, p.data = None, data

    def _compute(self, params: Tree, batch: Tree, seed: int) -> tuple[jax.Array, Tree]:
        """Compute loss and gradient; running statistics change once for calls with the same seed."""
        with self.holding(params) as parameters:
            is_restored = self.restores_buffers or self._last == (seed, [b._version for b in self.module.buffers()])
            statistics = [b.clone() for b in self.module.buffers()] if is_restored else []
            self.module.train()
            with torch.random.fork_rng(sorted({p.get_device() for p in parameters if p.is_cuda})), torch.enable_grad():
                torch.manual_seed(seed)
                versions = [(p._version, p.data_ptr()) for p in parameters]
                result = self.loss(self.module, as_tensors(batch, parameters[0].device))
                value: Any = 0.0
                for part in result if isinstance(result, Iterator) else [result]:
                    check_loss(part).backward()
                    value = value + part.detach()
                if versions != [(p._version, p.data_ptr()) for p in parameters]:
                    raise UsageError("loss must not write to the module's parameters, as Embedding(max_norm=...) does")
            with torch.no_grad():
                for b, before in zip(self.module.buffers(), statistics):
                    b.data = before
            self._last = seed, [b._version for b in self.module.buffers()]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        tree = jax.tree.unflatten(jax.tree.structure(params), [to_array(g, "gradient") for g in grads])
        return to_array(value.to(getattr(torch, gradient_form(params)[0].dtype.name)), "loss"), tree


def check_loss(value: Any) -> Tensor:
    """Return the value of a loss, if it is one number that depends on the parameters."""
    got = f"a value of type {type(value).__name__}{', whose .loss may be it' if hasattr(value, 'loss') else ''}"
    if isinstance(value, Tensor):
        if value.shape == () and value.is_floating_point() and value.requires_grad:
            return value
        got = f"{value.dtype}{list(value.shape)}{'' if value.requires_grad else ' without a gradient'}"
    raise UsageError(f"loss must return one floating-point number that depends on the module's parameters, got {got}")


def gradient_form(params: Tree) -> tuple[jax.ShapeDtypeStruct, Tree]:
    """Shapes and dtypes of the loss, in at least float32, and of the gradient."""
    dtype = jnp.result_type(jnp.float32, *(leaf.dtype for leaf in jax.tree.leaves(params)))
    return jax.ShapeDtypeStruct((), dtype), jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)


def real_examples(examples: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's batch, or arrays, without padding and mask, whole numbers as int64 like PyTorch's."""
    mask = np.asarray(examples.get("mask", True))
    fields = {name: np.asarray(a) for name, a in examples.items() if name != "mask"}
    fields = {name: a.astype(np.int64) if a.dtype.kind in "iu" else a for name, a in fields.items()}
    return fields if mask.all() else {name: a[mask] for name, a in fields.items()}


def seed_of(key_data: Any) -> int:
    """Return a seed for PyTorch of the data of a key."""
    return int.from_bytes(np.ascontiguousarray(key_data).tobytes()[-8:], "little") >> 1


def as_tensors(batch: Tree, device: torch.device) -> Any:
    """Turn a batch's arrays into tensors on a device, whole numbers as int64."""

    def leaf(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return to_tensor(value).to(device, torch.int64 if jnp.issubdtype(value.dtype, jnp.integer) else None)
        return value.to(device) if isinstance(value, Tensor) else value

    return jax.tree.map(leaf, batch)
