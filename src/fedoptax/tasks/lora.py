"""LoRA: clients train and send low-rank changes of a given model's kernels."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedoptax._files import read_params_file
from fedoptax.algorithm import Tree
from fedoptax.errors import UsageError, check_int, check_type
from fedoptax.tasks.task import Task, check_task


def with_lora(task: Task, base: str | Path | Tree, rank: int) -> Task:
    """Return `task` with its dense kernels frozen at `base` and trained by low-rank changes (Hu et al. 2022).

    A kernel W (m, n) becomes W + A B with A (m, rank), normal with deviation 1/√m at first, and B (rank, n), zero at
    first, so training starts from the base. What the base has not, or in another shape, such as the head of another
    number of classes, starts anew and is trained in full. All else stays as in the base. A, B and what is trained in
    full are all the parameters of the new task: nothing else is sent, counted or stored. The server averages A and B
    each, which is not the average of A B.

    The parameters of the task are nested dictionaries, as those of `fedoptax.models` are; `base` are such ones, or a
    run folder or `.npz` file that holds them. It is a `UsageError` if they cannot be read, or hold no dense kernel.

    Example:
      >>> import jax, fedoptax as fx
      >>> task = fx.load_task("digits")
      >>> small = fx.with_lora(task, task.init(jax.random.key(0)), rank=2)
      >>> sorted(small.init(jax.random.key(1))["dense1"]["kernel"])
      ['a', 'b']
    """
    check_task(task)
    check_int("lora", rank)
    if isinstance(base, str | Path):
        frozen = {tuple(name.split("/")): array for name, array in read_params_file("base", base).items()}
    else:
        check_type("base", base, Mapping)
        frozen = flatten_dict(jax.tree.map(np.asarray, base))
    shapes = {path: leaf.shape for path, leaf in flatten_dict(jax.eval_shape(task.init, jax.random.key(0))).items()}
    known = {path for path, shape in shapes.items() if path in frozen and frozen[path].shape == shape}
    kernels = sorted(path for path in known if path[-1] == "kernel" and len(shapes[path]) == 2)
    if not kernels:
        raise UsageError(f"base must hold dense kernels of the model of task '{task.name}', got none")

    def init(key: jax.Array) -> Tree:
        fresh = flatten_dict(task.init(key))
        params: dict[Any, Any] = {path: leaf for path, leaf in fresh.items() if path not in known}
        for path, kernel_key in zip(kernels, jax.random.split(jax.random.fold_in(key, 1), len(kernels)), strict=True):
            inputs, outputs = shapes[path]
            params[*path, "a"] = jax.random.normal(kernel_key, (inputs, rank), jnp.float32) / inputs**0.5
            params[*path, "b"] = jnp.zeros((rank, outputs), jnp.float32)
        return unflatten_dict(params)

    def merge(params: Tree) -> Tree:
        trained, whole = flatten_dict(params), {}
        dtype = jax.tree.leaves(params)[0].dtype
        for path in shapes:
            whole[path] = jnp.asarray(frozen[path], dtype) if path in known else trained[path]
            if path in kernels:
                whole[path] = whole[path] + trained[*path, "a"] @ trained[*path, "b"]
        return unflatten_dict(whole)

    predict = task.predict
    return replace(
        task,
        init=init,
        loss=lambda params, batch, key: task.loss(merge(params), batch, key),
        metrics=lambda params, batch: task.metrics(merge(params), batch),
        predict=None if predict is None else lambda params, batch: predict(merge(params), batch),
        spec={**task.spec, "lora": rank} | ({"base": str(base)} if isinstance(base, str | Path) else {}),
    )
