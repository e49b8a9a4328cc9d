"""A round's cohort shared by a mesh of devices: each trains its part of the clients, one all-reduce makes the mean.

Every device runs the same program on the same arguments: server, client states and data that are not streamed are
whole on each, and each does the server's update. They differ in the test batches they evaluate and in the clients they
train. Clients go, largest first, each to the device with the least work so far.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedoptax import tree
from fedoptax.algorithm import Tree
from fedoptax.errors import RunError, UsageError

AXIS = "clients"
EVERYWHERE, BY_DEVICE = PartitionSpec(), PartitionSpec(AXIS)
"""How devices hold an array: each all of it, or each one row."""


def choose_mesh(mesh: int | None, cohort_size: int, engine: str = "compiled") -> int:
    """Return the number of devices that share a round's cohort, for `RunOptions.mesh`; the eager engine uses one."""
    try:
        devices, processes = jax.device_count(), jax.process_count()
    except (AssertionError, RuntimeError) as error:  # the first, without a text, for a GPU that is not there
        platforms, why = jax.config.values["jax_platforms"], str(error) or "there is none"
        raise RunError(f"JAX_PLATFORMS is {platforms!r}, and JAX cannot use such a device: {why}") from None
    if engine == "eager" and processes > 1:
        raise UsageError(f"engine must be compiled with {processes} processes, got 'eager'")
    if engine == "eager" and mesh not in (None, 1):
        raise UsageError(f"mesh must be 1 with the engine eager, got {mesh}")
    if processes > 1 and mesh not in (None, devices):
        raise UsageError(f"mesh must be {devices}, all devices of the {processes} processes, got {mesh}")
    if mesh is not None and mesh > devices:
        hint = "; JAX_NUM_CPU_DEVICES=N in the environment makes N of a CPU" if jax.default_backend() == "cpu" else ""
        raise UsageError(f"mesh must be <= {devices}, the number of devices, got {mesh}{hint}")
    default = 1 if engine == "eager" else devices if processes > 1 else min(devices, cohort_size)
    return default if mesh is None else mesh


@lru_cache
def make_mesh(devices: int) -> Mesh:
    """Make a mesh of the first `devices` devices."""
    return Mesh(np.array(jax.devices()[:devices]), (AXIS,))


def over_mesh(program: Callable[..., Tree], devices: int, in_specs: Any = EVERYWHERE) -> Callable[..., Tree]:
    """Run `program` on every device; in it the devices are `AXIS`."""
    # check_vma would have gradients by parameters, which are the same everywhere, summed over all devices
    return jax.shard_map(program, mesh=make_mesh(devices), in_specs=in_specs, out_specs=EVERYWHERE, check_vma=False)


def replicate(x: Tree, devices: int) -> Tree:
    """Put the arrays of `x`, the same in every process, on each of the devices, unless they are already there."""
    place = NamedSharding(make_mesh(devices), EVERYWHERE)

    def put(a: Any) -> Any:
        if isinstance(a, jax.Array) and isinstance(a.sharding, NamedSharding) and a.sharding.mesh == place.mesh:
            return a
        if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(a)), impl=jax.random.key_impl(a))
        host = np.asarray(a)
        host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
        return jax.make_array_from_callback(host.shape, place, lambda index: host[index])

    return jax.tree.map(put, x)


def put_by_device(make: Callable[[int], np.ndarray], devices: int) -> jax.Array:
    """Make an array (devices, …) with row i from `make(i)` on device i; each process makes the rows of its devices."""
    mesh = make_mesh(devices)
    local = [(i, device) for i, device in enumerate(mesh.devices) if device.process_index == jax.process_index()]
    rows = [jax.device_put(make(i)[None], device) for i, device in local]
    return jax.make_array_from_single_device_arrays((devices, *rows[0].shape[1:]), NamedSharding(mesh, BY_DEVICE), rows)


def to_first_device(x: Tree) -> Tree:
    """Put the arrays of `x`, which are on many devices, on this process's first device alone."""
    return jax.device_put(jax.tree.map(np.asarray, x))


def share_cohort(
    train_cohort: Callable[..., tuple[Tree, Tree]],
    assign: Callable[[jax.Array], jax.Array],
    is_mean: bool,
    is_uneven: bool,
) -> Callable[..., tuple[Tree, Tree]]:
    """Divide the training of a cohort, `train_cohort` on one device, among the devices.

    `assign` gives the members of each device by their steps, see `assign_clients`; `is_mean` is whether what members
    send is added up, `is_uneven` whether they take different numbers of steps.
    """

    def train_shares(train_member: Any, members: Any, clients: Tree, form: Tree) -> tuple[Tree, Tree]:
        size = members.weight.shape[0]
        order = assign(members.steps)
        chosen = order[jax.lax.axis_index(AXIS)]
        share, is_real = tree.take(members, jnp.minimum(chosen, size - 1)), chosen < size
        share = share._replace(weight=jnp.where(is_real, share.weight, 0))
        sent, results = train_cohort(train_member, share, clients, form, jnp.sum(is_real))
        # Of the members among the rows of all devices; a permutation of equal shares would copy the states once more.
        rows = jnp.argsort(order.reshape(-1))[:size] if is_uneven else slice(size)

        def gather(x: Tree) -> Tree:
            return tree.take(jax.lax.all_gather(x, AXIS, tiled=True), rows)

        return jax.lax.psum(sent, AXIS) if is_mean else gather(sent), gather(results)

    return train_shares


def assign_clients(size: int, devices: int, work: jax.Array | None, places: int) -> jax.Array:
    """Assign a cohort to devices: each client, largest first, goes to the device with the least work so far.

    `work` is that of each client, (size,), or None if all have the same: then they are dealt in blocks. A device gets
    at most `places` clients. Returned are the clients of each device, int32 (devices, places); behind them `size`,
    which stands for none.
    """
    if work is None:
        return jnp.minimum(jnp.arange(devices * places, dtype=jnp.int32).reshape(devices, places), size)
    largest_first = jnp.argsort(-work, stable=True).astype(jnp.int32)

    def assign(i: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        order, load, count = state
        client = largest_first[i]
        device = jnp.argmin(jnp.where(count < places, load, jnp.iinfo(load.dtype).max))
        order = order.at[device, count[device]].set(client)
        return order, load.at[device].add(work[client]), count.at[device].add(1)

    zeros = jnp.zeros(devices, jnp.int32)
    empty = jnp.full((devices, places), size, jnp.int32)
    return jax.lax.fori_loop(0, size, assign, (empty, zeros.astype(work.dtype), zeros))[0]
