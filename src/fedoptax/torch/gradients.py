"""Any module under any algorithm: PyTorch computes the gradients, the one definition of the algorithm does the rest.

Where a round's time goes: nearly all of it into the module's forward and backward pass. The algorithm's arithmetic is
compiled as for a model in JAX; XLA calls PyTorch back for every gradient. Parameters and minibatches go there by DLPack
without a copy: for the call, the module's parameters are the algorithm's own memory. XLA copies the gradients into its
memory once, which costs as much as one read and one write of the parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.experimental import io_callback
from torch import Tensor, nn

from fedoptax.algorithm import Batches, FedAlgorithm, GradFn, Tree
from fedoptax.engine.batches import Minibatch
from fedoptax.errors import UsageError, is_traced
from fedoptax.torch.params import (
    buffers_from_module,
    check_params,
    flatten,
    load_buffers,
    to_array,
    to_tensor,
    trained,
)

ModuleLoss = Callable[[nn.Module, Any], Tensor]
"""`loss(module, batch)`: the mean loss over a batch, a scalar tensor; the batch's arrays come as tensors."""

_ONE_AT_A_TIME = threading.Lock()
"""XLA calls back from several threads, but a module is one, and so are PyTorch's random numbers."""


class ModuleState(NamedTuple):
    """A client: what the algorithm keeps, and the module's buffers, which never leave the client."""

    algorithm: Tree
    buffers: dict[str, Any]


def with_module(algorithm: FedAlgorithm, module: nn.Module, loss: ModuleLoss) -> FedAlgorithm:
    """`algorithm` with clients that train a module; server, messages and uploads stay as they are.

    A client's gradients are those of the module, whatever gradient function the round gives. Clients run one after
    another, on one device: in `fedoptax.eager.run_round`, with `engine="eager"`, or each in a process of its own on a
    network. They may share the module, as each round puts the client's parameters and buffers into it; its own
    parameters stay as they are.

    Buffers, the running statistics of batch normalisation, are the client's own and kept between rounds; no server
    optimizer and no mean ever sees them. They start as the module's are now.

    Args:
      algorithm: any algorithm.
      module: the module. `params_from_module(module)` are parameters for `algorithm.init`.
      loss: `(module, batch) -> scalar`; see `torch_grad_fn`.

    Returns:
      An algorithm whose client states are `ModuleState`s.
    """
    start, gradient = buffers_from_module(module), ModuleGradient(module, loss)

    def client_update(
        given: Any, message: Tree, client: ModuleState, batches: Any
    ) -> tuple[Tree, ModuleState, jax.Array]:
        del given
        if not isinstance(batches, Batches) and not _is_traced(message):
            gradient.queue = [(batch, seed_of_batch(batch)) for batch in batches]
            has_key = bool(batches) and isinstance(batches[0], Minibatch)
            key = batches[0].key if has_key else jax.random.key(int(torch.randint(2**31, ())))
            return gradient.run(update_from_queue, message, client, np.int32(len(batches)), key)
        io_callback(lambda buffers: load_buffers(module, buffers), None, client.buffers, ordered=True)
        upload, state, mean_loss = algorithm.client_update(gradient.grad_fn, message, client.algorithm, batches)
        buffers = io_callback(lambda: buffers_from_module(module), client.buffers, ordered=True)
        return upload, ModuleState(state, buffers), mean_loss

    @jax.jit
    def update_from_queue(message: Tree, client: ModuleState, length: jax.Array, key: jax.Array) -> Any:
        # The key is that of the client's first batch, which wrappers mix into their random numbers.
        return client_update(None, message, client, Batches(length, lambda place: Minibatch(place, key)))

    return algorithm._replace(
        init_client=lambda params: ModuleState(algorithm.init_client(params), start), client_update=client_update
    )


def torch_grad_fn(module: nn.Module, loss: ModuleLoss) -> GradFn:
    """`(params, batch) -> (loss, grads)` of a module, for any algorithm, in rounds as those of `with_module`.

    In an eager round arrays cross by DLPack without a copy. The module is put in training mode; its own parameters stay
    as they are.

    Args:
      module: any module.
      loss: `(module, batch) -> scalar`. An engine's batch comes as `{field: tensor}` of its real examples, without
        padding and mask; any other tree as it is, its arrays as tensors on the module's device.

    Returns:
      The gradient function. Two calls in a row on one batch share its randomness (dropout), and only the first updates
      running statistics: variance-reduced algorithms take two gradients of one function. An engine's batch brings its
      randomness along, so that all calls on it share it.
    """
    return ModuleGradient(module, loss).grad_fn


class ModuleGradient:
    """A module's loss and gradient at an algorithm's parameters.

    Args:
      module: any module.
      loss: as in `torch_grad_fn`.
    """

    def __init__(self, module: nn.Module, loss: ModuleLoss) -> None:
        self.module, self.loss = module, loss
        self.queue: list[tuple[Any, int]] = []  # batches and seeds; in a compiled round a place stands for them
        self._last_batch: Any = None
        self._last_seed = self._statistics_seed = -1
        self._error: Exception | None = None

    def grad_fn(self, params: Tree, batch: Any) -> tuple[jax.Array, Tree]:
        """Compute loss and gradient, by a callback where `params` are traced; see `torch_grad_fn`."""
        check_params(self.module, params)
        if not _is_traced(params):
            return self.at_batch(params, batch)
        # Ordered, as the first of two gradients on one batch is the one that updates running statistics.
        form = gradient_form(params)
        if isinstance(batch, Minibatch):
            key_data = jax.random.key_data(batch.key)
            return io_callback(self.at_minibatch, form, params, batch.examples, key_data, ordered=True)
        return io_callback(lambda params: self.at_batch(params, batch), form, params, ordered=True)

    def at_batch(self, params: Tree, batch: Any) -> tuple[jax.Array, Tree]:
        """Compute loss and gradient on any batch."""
        if batch is not self._last_batch:
            self._last_batch, self._last_seed = batch, seed_of_batch(batch)
        return self(params, batch, self._last_seed)

    def at_minibatch(self, params: Tree, examples: Any, key_data: Any) -> tuple[jax.Array, Tree]:
        """Compute loss and gradient on an engine's minibatch, given as arrays, or on a batch of the queue."""
        if isinstance(examples, Mapping):
            return self(params, real_examples(examples), seed_of_key(key_data))
        return self(params, *self.queue[int(examples)])

    def __call__(self, params: Tree, batch: Any, seed: int) -> tuple[jax.Array, Tree]:
        """Compute loss and gradient.

        Args:
          params: a tree of the module's parameters, arrays.
          batch: as in `torch_grad_fn`.
          seed: of the batch's randomness. Running statistics stay as they are if the call before had the same.

        Raises:
          UsageError: the loss is not a tensor of one number.
        """
        try:
            with self.holding(params) as parameters:
                return self._gradient(params, parameters, batch, seed)
        except Exception as error:
            self._error = error
            raise

    def run(self, compiled: Callable[..., Any], *args: Any) -> Any:
        """Call a compiled function to its end; an error in the user's loss is raised as itself, not as XLA's."""
        try:
            return jax.block_until_ready(compiled(*args))
        except jax.errors.JaxRuntimeError:
            if self._error is None:
                raise
            error, self._error = self._error, None
            raise error from None

    @contextmanager
    def holding(self, params: Tree) -> Iterator[list[nn.Parameter]]:
        """Make arrays the module's parameters for a while, without a copy; nobody else uses the module then."""
        named = trained(self.module)
        parameters = [named[name] for name in flatten(params)]
        own = [p.data for p in parameters]
        with _ONE_AT_A_TIME:
            try:
                for p, leaf in zip(parameters, jax.tree.leaves(params)):
                    p.data = to_tensor(leaf).to(p.device)
                    p.grad = None
                yield parameters
            finally:
                for p, data in zip(parameters, own):
                    p.grad = None
                    p.data = data

    def _gradient(
        self, params: Tree, parameters: Sequence[nn.Parameter], batch: Any, seed: int
    ) -> tuple[jax.Array, Tree]:
        is_repeated, self._statistics_seed = seed == self._statistics_seed, seed
        statistics = [b.clone() for b in self.module.buffers()] if is_repeated else []
        self.module.train()
        with torch.random.fork_rng(sorted({p.get_device() for p in parameters if p.is_cuda})), torch.enable_grad():
            torch.manual_seed(seed)
            value = self.loss(self.module, as_tensors(batch, parameters[0].device))
            if not isinstance(value, Tensor) or value.shape != ():
                given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise UsageError(f"loss must return a tensor of one number, got {given}")
            value.backward()
        with torch.no_grad():
            for b, before in zip(self.module.buffers(), statistics):
                b.copy_(before)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        tree = jax.tree.unflatten(jax.tree.structure(params), [to_array(g, "gradient") for g in grads])
        return to_array(value.to(getattr(torch, gradient_form(params)[0].dtype.name)), "loss"), tree


def gradient_form(params: Tree) -> tuple[jax.ShapeDtypeStruct, Tree]:
    """Shapes and dtypes of the loss, in at least float32, and of the gradient."""
    dtype = jnp.result_type(jnp.float32, *(leaf.dtype for leaf in jax.tree.leaves(params)))
    return jax.ShapeDtypeStruct((), dtype), jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)


def as_tensors(batch: Any, device: torch.device) -> Any:
    """Turn a batch's arrays into tensors on a device; of an engine's batch only its real examples."""
    if isinstance(batch, Minibatch):
        batch = real_examples(batch.examples)

    def leaf(value: Any) -> Any:
        is_array = isinstance(value, np.ndarray | np.generic | jax.Array)
        return to_tensor(value).to(device) if is_array else value.to(device) if isinstance(value, Tensor) else value

    return jax.tree.map(leaf, batch)


def real_examples(examples: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out a minibatch's padding and its mask; without padding nothing is copied."""
    mask = np.asarray(examples["mask"])
    fields = {name: a for name, a in examples.items() if name != "mask"}
    return fields if mask.all() else {name: np.asarray(a)[mask] for name, a in fields.items()}


def seed_of_batch(batch: Any) -> int:
    """The seed of a batch's randomness: an engine's batch brings it along, for any other PyTorch draws it."""
    if isinstance(batch, Minibatch):
        return seed_of_key(jax.random.key_data(batch.key))
    return int(torch.randint(2**62, ()))


def seed_of_key(key_data: Any) -> int:
    """A seed for PyTorch from the words of a JAX key."""
    return int.from_bytes(np.ascontiguousarray(key_data).tobytes()[-8:], "little") >> 1


def _is_traced(tree: Tree) -> bool:
    return any(map(is_traced, jax.tree.leaves(tree)))
