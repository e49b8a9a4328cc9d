"""Training in a shorter floating-point type: only what a minibatch's gradient takes is computed in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedoptax.algorithm import Tree
from fedoptax.errors import unknown
from fedoptax.tasks.task import Task, check_task

DTYPES = ("float32", "bfloat16")


def with_compute_dtype(task: Task, dtype: str) -> Task:
    """`task` whose training loss is computed in `dtype`.

    Parameters and floating-point inputs are cast at the beginning of every loss, so activations and both passes are in
    `dtype`; gradients come back in the parameters' own type. Everything an algorithm keeps, sends or averages, and the
    evaluation, is as before. (Mixed precision as in Micikevicius et al. 2018; bfloat16 has the range of float32, so the
    loss needs no scaling.)

    Args:
      task: any task.
      dtype: `"bfloat16"`, or `"float32"` for the task as it is.

    Raises:
      UsageError: another type, or no task.

    Example:
      >>> import fedoptax as fx
      >>> task = fx.with_compute_dtype(fx.load_task("quadratic"), "bfloat16")
      >>> task.spec["compute_dtype"]
      'bfloat16'
    """
    check_task(task)
    if dtype not in DTYPES:
        unknown("compute_dtype", str(dtype), DTYPES)
    if dtype == "float32":
        return task
    loss, short = task.loss, jnp.dtype(dtype)

    def in_short(params: Tree, batch: Any, key: jax.Array) -> jax.Array:
        return loss(_cast(params, short), _cast(batch, short), key).astype(jnp.float32)

    return replace(task, loss=in_short, spec={**task.spec, "compute_dtype": dtype})


def _cast(tree: Tree, dtype: jnp.dtype) -> Tree:
    return jax.tree.map(lambda a: a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)
