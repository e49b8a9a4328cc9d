"""Settings of XLA: a device per core, and cached or quick compilation.

Each trick is justified by a measurement (docs/performance.md, "The engine's tricks"), which
`benchmarks/bench/tricks.py` repeats.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from fedoptax.algorithm import Tree
from fedoptax.engine.client_states import host_bytes
from fedoptax.errors import is_traced

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def use_cores() -> None:
    """Make JAX see every core as a device of the CPU, so that clients train side by side.

    The operations of one client are small: shared among cores, they wait for each other and for the other's cache.
    Measured on two cores: a round of `mlp` in 0.65 of the time, of `tiny` in 0.56.

    Nothing changes if JAX knows a number (`JAX_NUM_CPU_DEVICES`, `--xla_force_host_platform_device_count`), is in use
    already, or runs in one of several processes.
    """
    is_set = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if is_set or jax.config.values["jax_num_cpu_devices"] != -1 or jax.distributed.is_initialized():
        return
    with suppress(RuntimeError):  # a program that used JAX before us keeps its devices
        jax.config.update("jax_num_cpu_devices", count_cores())


def count_cores() -> int:
    """The cores that this process may use: those it is bound to, at most its container's share."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CPU_QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return bound
    return min(bound, math.ceil(int(quota) / int(period))) if quota.isdigit() else bound


def use_cache(least_seconds: float = 0.3) -> None:
    """Keep compiled programs for the next process: in the folder that JAX is set to, or the user's cache folder.

    Only those that took `least_seconds` to compile; 0 keeps every one, for processes that run for a few seconds.
    Measured: the first round of `mlp` after 0.8 s instead of 2.2.
    """
    import pooch  # here: heavy, and only commands keep a cache

    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(pooch.os_cache("fedoptax") / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)
    if least_seconds == 0:
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def quick_options() -> dict[str, int]:
    """Compiler options for a program that runs once: the same bits; the first round of `mlp` after 2.2 s, not 2.8."""
    return {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else {}


class Compiled:
    """A jitted function that is compiled at its first call, in `seconds`; then `observe` gets the compiled program."""

    def __init__(self, jitted: Any, observe: Callable[[Any], None] = lambda compiled: None) -> None:
        self.seconds = 0.0
        self._jitted, self._observe = jitted, observe
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        """Call the function, compiled for arguments of these shapes."""
        if jax.config.values["jax_disable_jit"]:
            return self._jitted(*args)
        if self._compiled is None:
            begun = time.perf_counter()
            self._compiled = self._jitted.lower(*args).compile()
            self.seconds = time.perf_counter() - begun
            self._observe(self._compiled)
        return self._compiled(*args)


def describe_memory(compiled: Any, clients: int) -> str:
    """Say what a program that trains so many clients at a time takes of a device's memory, and how many would fit."""
    sizes, stats = compiled.memory_analysis(), jax.local_devices()[0].memory_stats()
    work = sizes.temp_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    memory = stats["bytes_limit"] if stats else host_bytes()
    fitting = (memory - sizes.argument_size_in_bytes) * clients // max(work, 1)
    base, work, memory = (size / 1e9 for size in (sizes.argument_size_in_bytes, work, memory))
    return (
        f"memory: {base:.2f} GB for data, states and base model, {work:.2f} GB for the clients in training, {clients} "
        f"at a time; the device's {memory:.0f} GB have room for about {fitting:,}"
    )


_errors: list[BaseException] = []
_catching = 0  # uses of `host_errors` that go on


@contextmanager
def host_errors() -> Iterator[None]:
    """Raise the first error of a Python function that a program calls (`call_host`) as itself, with its line."""
    global _catching
    _catching += 1
    try:
        yield
    except BaseException:
        if not _errors:
            raise
    finally:
        _catching -= 1
        errors, _errors[:] = list(_errors), []
    if errors:
        raise errors[0]


def call_host(function: Callable[..., Tree], form: Tree, *arguments: Tree, is_ordered: bool = False) -> Any:
    """Call a Python function that returns arrays of a form: from a compiled program, or else at once.

    Where XLA met its error, it would print it, and devices that wait for each other would hang: within `host_errors`
    the function returns NaN instead, which ends the round, and the error is raised there.
    """

    def call(*arguments: Tree) -> Tree:
        try:
            if not _errors:
                return function(*arguments)
        except BaseException as error:
            if not _catching:
                raise
            _errors.append(error)
        nothing = {True: np.nan, False: 0}
        return jax.tree.map(lambda a: np.full(a.shape, nothing[jnp.issubdtype(a.dtype, jnp.inexact)], a.dtype), form)

    if not any(map(is_traced, jax.tree.leaves(arguments))):
        return function(*arguments)
    if is_ordered:
        return io_callback(call, form, *arguments, ordered=True)
    return jax.pure_callback(call, form, *arguments, vmap_method="sequential")


@jax.jit
def as_bits(value: Any, is_known: Any = True) -> jax.Array:
    """The bits of a number as float32, or of NaN for one that is not known, as int32.

    An output that is NaN would end a run under `jax_debug_nans`; the host reads the bits with `.view(np.float32)`.
    """
    return jax.lax.bitcast_convert_type(jnp.where(is_known, jnp.float32(value), jnp.float32(jnp.nan)), jnp.int32)
