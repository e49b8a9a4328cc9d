"""A model: two pure functions over a plain dictionary of parameters, made of a Flax NNX module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fedoptax.errors import UsageError, check_int

Params = dict[str, Any]
"""Nested dictionaries with string keys and arrays at the leaves."""


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
    """Make a `Model` of an NNX module whose only state is parameters and dropout.

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
    def skeleton() -> _Skeleton:
        module = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
        graphdef, *states = nnx.split(module, nnx.Param, nnx.RngState, ...)
        params, rngs, other = states
        if kinds := sorted({type(variable).__name__ for _, variable in nnx.to_flat_state(other)}):
            raise UsageError(f"build must keep no state but parameters and dropout, got {', '.join(kinds)}")
        return _Skeleton(graphdef, [path for path, _ in nnx.to_flat_state(params)], dict(nnx.to_flat_state(rngs)))

    @partial(jax.jit, inline=True)  # traced once, also where only the parameters' shapes are asked for
    def init(key: jax.Array) -> Params:
        skeleton()
        return _nested(nnx.state(build(nnx.Rngs(_typed_key(key))), nnx.Param))

    def apply(params: Params, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        module = _assemble(skeleton(), params, key)
        return module(_cast_like(params, x))

    return Model(init, apply)


class _Skeleton(NamedTuple):
    """A module without its arrays: its structure, its parameters' paths, its random streams' variables."""

    graphdef: Any
    param_paths: list[tuple]
    rngs: dict[tuple, Any]


def _assemble(skeleton: _Skeleton, params: Params, key: jax.Array | None) -> Any:
    values = {path: _leaf(params, path) for path in skeleton.param_paths}
    for index, (path, variable) in enumerate(skeleton.rngs.items()):
        if key is None:
            values[path] = variable.get_value()  # a shape only: in evaluation no stream is read
        elif isinstance(variable, nnx.RngKey):
            values[path] = jax.random.fold_in(_typed_key(key), index)
        else:
            values[path] = jnp.zeros((), jnp.uint32)  # the count of draws from the stream
    module = nnx.merge(skeleton.graphdef, nnx.from_flat_state(values))
    if key is None:
        module.eval()
    else:
        module.train()
    return module


def _nested(state: Any) -> Params:
    nested: Params = {}
    for path, variable in nnx.to_flat_state(state):
        folder = nested
        for name in path[:-1]:
            folder = folder.setdefault(str(name), {})
        folder[str(path[-1])] = variable.get_value()
    return nested


def _leaf(params: Params, path: tuple) -> jax.Array:
    value: Any = params
    for name in path:
        if not isinstance(value, dict) or str(name) not in value:
            raise UsageError(f"params must be this model's, '{'/'.join(map(str, path))}' is missing")
        value = value[str(name)]
    return jnp.asarray(value)


def _cast_like(params: Params, x: Any) -> jax.Array:
    x = jnp.asarray(x)
    floating = [leaf for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if floating and jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(floating[0].dtype)
    return x


def _typed_key(key: jax.Array) -> jax.Array:
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def count_params(params: Any) -> int:
    """Count the scalars in a pytree of arrays (or of their shapes, from `jax.eval_shape`)."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(params))


def check_input(input_shape: Sequence[int], num_classes: int, smallest: int = 1) -> tuple[int, int, int]:
    """Check a classifier's arguments and return the shape of one example as (height, width, channels).

    Args:
      input_shape: of one example.
      num_classes: at least 2.
      smallest: height and width that an image must have at least; 1 allows any shape, returned flattened.

    Raises:
      UsageError: an argument is out of range.
    """
    check_int("num_classes", num_classes, 2)
    shape = tuple(input_shape)
    if not shape or min(shape) < 1:
        raise UsageError(f"input_shape must have at least one dimension, each >= 1, got {shape}")
    if smallest == 1:
        return (math.prod(shape), 1, 1)
    if len(shape) != 3 or min(shape[:2]) < smallest:
        raise UsageError(f"input_shape must be (height, width, channels) of at least {smallest} pixels, got {shape}")
    return shape[0], shape[1], shape[2]
