"""A model: two pure functions over a plain dictionary of parameters, made of a Flax NNX module."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from fedoptax.errors import UsageError, check_int

Params = dict[str, Any]
"""Nested dictionaries with string keys and arrays at the leaves."""

Path = tuple[Any, ...]  # to a variable in a module: of names, and of numbers in lists
Names = tuple[str, ...]  # the same in parameters


class Model(NamedTuple):
    """A model as pure functions, fit for `jit`, `vmap`, `grad` and loops.

    Attributes:
      init: `key -> params`, nested dictionaries of float32 arrays: `{"dense1": {"kernel": …, "bias": …}, …}`.
      apply: `(params, x, key=None) -> logits`. A key means training: dropout is on and draws from it; `None`
        means evaluation. A floating x is cast to the parameters' dtype, and logits have that dtype.
    """

    init: Callable[[jax.Array], Params]
    apply: Callable[..., jax.Array]


def functional(build: Callable[[nnx.Rngs], nnx.Module]) -> Model:
    """Make a `Model` of an NNX module with no state except parameters and dropout.

    Args:
      build: makes the module; passes `rngs` to its layers in NNX's own way, `nnx.Dropout(0.5, rngs=rngs)`.

    Returns:
      The model. Nothing is computed before its first use, which builds the module once, abstractly.

    Raises:
      UsageError: on first use, when the module keeps other state than parameters, such as batch statistics.

    Example:
      >>> model = functional(lambda rngs: nnx.Linear(4, 3, rngs=rngs))
      >>> params = model.init(jax.random.key(0))
      >>> sorted(params), model.apply(params, jnp.ones((2, 4))).shape
      (['bias', 'kernel'], (2, 3))
    """

    @cache
    def skeleton() -> tuple[Any, dict[Names, Path], dict[Path, Any]]:
        """The module without its arrays: its structure, its parameters' paths, its random streams' variables."""
        module = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
        graphdef, *states = nnx.split(module, nnx.Param, nnx.RngState, ...)
        params, streams, other = (dict(nnx.to_flat_state(state)) for state in states)
        if kinds := sorted({type(variable).__name__ for variable in other.values()}):
            raise UsageError(f"build must have no state except parameters and dropout, got {', '.join(kinds)}")
        return graphdef, {_names(path): path for path in params}, streams

    @partial(jax.jit, inline=True)  # traced once, also where only the parameters' shapes are asked for
    def init(key: jax.Array) -> Params:
        skeleton()
        params = nnx.to_flat_state(nnx.state(build(nnx.Rngs(key)), nnx.Param))
        return unflatten_dict({_names(path): variable.get_value() for path, variable in params})

    def apply(params: Params, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        graphdef, paths, streams = skeleton()
        leaves = flatten_dict(params) if isinstance(params, dict) else {}
        if missing := [names for names in paths if names not in leaves]:
            raise UsageError(f"params must be this model's, '{'/'.join(missing[0])}' is missing")
        values = {path: jnp.asarray(leaves[names]) for names, path in paths.items()}
        for index, (path, variable) in enumerate(streams.items()):
            if key is None:
                values[path] = variable.get_value()  # a shape only: in evaluation no stream is read
            elif isinstance(variable, nnx.RngKey):
                values[path] = jax.random.fold_in(key, index)
            else:
                values[path] = jnp.zeros((), jnp.uint32)  # the count of draws from the stream
        module = nnx.merge(graphdef, nnx.from_flat_state(values))
        if key is None:
            module.eval()
        else:
            module.train()
        x = jnp.asarray(x)
        floating = [leaf for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        is_cast = floating and jnp.issubdtype(x.dtype, jnp.floating)
        return module(x.astype(floating[0].dtype) if is_cast else x)

    return Model(init, apply)


def _names(path: Path) -> Names:
    return tuple(map(str, path))


def count_params(params: Any) -> int:
    """Count the scalars in a pytree of arrays (or of their shapes, from `jax.eval_shape`)."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(params))


def check_input(input_shape: Sequence[int], num_classes: int, smallest: int = 0, fewest: int = 2) -> tuple[int, ...]:
    """Check a classifier's arguments and return an example's shape; only with `smallest` must it be an image."""
    check_int("num_classes", num_classes, fewest)
    shape = tuple(input_shape)
    if not shape or min(shape) < 1:
        raise UsageError(f"input_shape must have at least one dimension, each >= 1, got {shape}")
    if smallest and (len(shape) != 3 or min(shape[:2]) < smallest):
        raise UsageError(f"input_shape must be (height, width, channels) with sides >= {smallest}, got {shape}")
    return shape
