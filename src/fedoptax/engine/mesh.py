"""A round's cohort dealt out over a mesh of devices: each runs its share of the clients, one all-reduce makes the mean.

Every device runs the same program on the same arguments: data, server and all client states lie whole on each, and the
server's update is done by each. They differ in the test batches they evaluate and in the clients they train. Where
clients run one after another and differ in their steps, each goes, largest first, to the device that has least to do.
Else they are dealt like cards, back and forth, largest first if they differ; where the cohort is no multiple of the
devices some places are padding, which does no work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedoptax._tree import on_device
from fedoptax.algorithm import Tree
from fedoptax.errors import RunError, UsageError

AXIS = "clients"
WHOLE = PartitionSpec()
LARGE = 2**16  # bytes of an array that is worth a message of its own

Runner = Callable[..., tuple[Tree, Tree, jax.Array]]
"""`(one, cohort, weights, states) -> (Σ weights·uploads, after, whose)`: runs the clients of a round.

`states(j)` gives the state of the cohort's client j, or stacked those of several; row i of `after` is the new state of
client `whose[i]`, of no one if that is the cohort's size or more. One that runs them one after another takes `count`
too: only the first so many of the cohort run.
"""


def choose_mesh(mesh: int | None, cohort_size: int, engine: str = "compiled") -> int:
    """The number of devices over which a round's cohort is split.

    None is all devices, at most one a client. A CPU is one device, or with `cores.use_cores` one a core. A program of
    several processes always uses all their devices. The eager engine uses one.

    Raises:
      UsageError: more than there are, fewer than 1, or several with the eager engine.
      RunError: JAX has no device of the kind that it was told to use.
    """
    there, processes = _device_count(), jax.process_count()
    if engine == "eager":
        if processes > 1:
            raise UsageError(f"engine: 'eager' given with {processes} processes, allowed is compiled")
        if mesh not in (None, 1):
            raise UsageError(f"mesh: {mesh!r} given with the engine eager, allowed is 1")
        return 1
    if processes > 1:
        if mesh not in (None, there):
            raise UsageError(f"mesh: {mesh!r} given with {processes} processes, allowed is {there}, all their devices")
        return there
    if mesh is None:
        return min(there, cohort_size)
    if not isinstance(mesh, int | np.integer) or isinstance(mesh, bool) or not 1 <= mesh <= there:
        hint = ""
        if jax.default_backend() == "cpu":
            hint = "; JAX_NUM_CPU_DEVICES=N in the environment makes N of a CPU"
        raise UsageError(f"mesh: {mesh!r} given, allowed is a whole number from 1 to {there}, the devices there{hint}")
    return int(mesh)


def _device_count() -> int:
    try:
        return jax.device_count()
    except (AssertionError, RuntimeError) as error:  # the first, without a text, for a GPU that is not there
        given, why = jax.config.values["jax_platforms"], str(error) or "there is none"
        raise RunError(f"JAX_PLATFORMS: {given!r} given, and JAX cannot use such a device: {why}") from None


def mesh_again(mesh: int | None) -> int | None:
    """For a run that was begun on `mesh` devices: as many again where they are there, else as `choose_mesh` does."""
    return mesh if mesh is not None and mesh <= jax.device_count() and jax.process_count() == 1 else None


@lru_cache
def mesh_of(devices: int) -> Mesh:
    """The first so many devices in a row."""
    return Mesh(np.array(jax.devices()[:devices]), (AXIS,))


def whole(devices: int) -> NamedSharding:
    """What lies whole on each of so many devices."""
    return NamedSharding(mesh_of(devices), WHOLE)


def everywhere(tree: Tree, devices: int) -> Tree:
    """The arrays of `tree`, the same in every process, whole on each of the devices; what is there already stays.

    Of an array's form, a `ShapeDtypeStruct`, it makes the form of that.
    """
    place = whole(devices)

    def put(a: Any) -> Any:
        if isinstance(a, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place)
        if isinstance(a, jax.Array) and a.sharding == place:
            return a
        host = np.asarray(a)
        host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
        return jax.make_array_from_callback(host.shape, place, lambda index: host[index])

    return jax.tree.map(put, tree)


def here(tree: Tree) -> Tree:
    """The arrays of `tree`, which lie whole on many devices, on this process's first device alone."""
    return on_device(jax.tree.map(np.asarray, tree))


def largest_first(sizes: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Arrays over a cohort in the order of its clients' sizes, the largest first."""
    order = jnp.argsort(-sizes, stable=True)
    return tuple(a[order] for a in arrays)


def deal(size: int, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Who gets which place when 0…size−1 are dealt out back and forth, as if they were cards.

    Returns:
      For each device and each of its ⌈size/devices⌉ places the number that gets it, int (devices, places); it is ≥ size
      for padding. And for each of 0…size−1 its place, counted device after device, int (size,).
    """
    turns = np.arange(math.ceil(size / devices) * devices).reshape(-1, devices)
    turns[1::2] = turns[1::2, ::-1].copy()
    return turns.T, np.argsort(turns.T.reshape(-1))[:size]


def over_mesh(program: Callable[..., Tree], devices: int) -> Callable[..., Tree]:
    """`program` on every device, in which `summed_over` and `mapped_over` may be used."""
    # check_vma would have gradients by parameters, which are the same everywhere, summed over all devices
    return jax.shard_map(program, mesh=mesh_of(devices), in_specs=WHOLE, out_specs=WHOLE, check_vma=False)


def assign(work: jax.Array, devices: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Who does what when each piece of work, in turn, goes to the device that has least to do so far.

    Graham (1969): from the largest piece to the smallest, no device then has more than 4/3 of what the best division
    would give it.

    Args:
      work: of each piece, ≥ 0, (size,).
      devices: so many.

    Returns:
      For each piece its device and its place there, int32 (size,); the number of pieces of each device, (devices,).
    """
    size = work.shape[0]

    def give(i: jax.Array, given: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        owner, place, load, count = given
        device = jnp.argmin(load).astype(jnp.int32)
        owner, place = owner.at[i].set(device), place.at[i].set(count[device])
        return owner, place, load.at[device].add(work[i]), count.at[device].add(1)

    numbers, zeros = jnp.zeros(size, jnp.int32), jnp.zeros(devices, jnp.int32)
    owner, place, _, count = jax.lax.fori_loop(0, size, give, (numbers, numbers, zeros.astype(work.dtype), zeros))
    return owner, place, count


def balanced_over(devices: int, inner: Runner, work: jax.Array) -> Runner:
    """`inner`, one client after another, on every device for its clients; the sums are added up by one all-reduce.

    Args:
      devices: so many.
      inner: takes a `count`.
      work: of each client of the cohort, the largest first, (size,).
    """

    def run(
        one: Callable, cohort: Tree, weights: jax.Array, states: Callable[[jax.Array], Tree]
    ) -> tuple[Tree, Tree, jax.Array]:
        size = work.shape[0]
        owner, place, count = assign(work, devices)
        numbers = jnp.arange(size, dtype=jnp.int32)
        whose = jnp.full(devices * size, size, jnp.int32).at[owner * size + place].set(numbers)
        device = jax.lax.axis_index(AXIS)
        chosen = jnp.minimum(whose.reshape(devices, size)[device], size - 1)
        total, own, _ = inner(one, _rows(cohort, chosen), weights[chosen], lambda j: states(chosen[j]), count[device])
        return all_reduced(total), _all_gathered(own), whose

    return run


def summed_over(devices: int, inner: Runner, in_turn: bool) -> Runner:
    """`inner` on every device for the clients dealt to it; the sums are added up by one all-reduce.

    Args:
      devices: so many.
      inner: takes a `count` if `in_turn`.
      in_turn: it runs clients one after another, and so leaves out padding, which is last, instead of masking it.
    """

    def run(
        one: Callable, cohort: Tree, weights: jax.Array, states: Callable[[jax.Array], Tree]
    ) -> tuple[Tree, Tree, jax.Array]:
        size = weights.shape[0]
        chosen, real, _ = _share(size, devices)
        share = jnp.where(real, weights[chosen], 0)
        given = share, lambda j: states(chosen[j])
        if in_turn:
            total, own, _ = inner(one, _rows(cohort, chosen), *given, jnp.sum(real))
        else:
            total, own, _ = inner(_unless_padding(one, size % devices > 0), (_rows(cohort, chosen), real), *given)
        return all_reduced(total), _all_gathered(own), jnp.asarray(deal(size, devices)[0].reshape(-1))

    return run


def mapped_over(devices: int, one: Callable, in_turn: bool) -> Callable[[Tree, Tree], Tree]:
    """As `jax.vmap(one)` over clients and their states, each device doing its share; every device gets all results."""

    def run(cohort: Tree, states: Tree) -> Tree:
        size = jax.tree.leaves(cohort)[0].shape[0]
        chosen, real, places = _share(size, devices)
        mine, own = _unless_padding(one, size % devices > 0), ((_rows(cohort, chosen), real), _rows(states, chosen))
        done = jax.lax.map(lambda both: mine(*both), own) if in_turn else jax.vmap(mine)(*own)
        return _rows(_all_gathered(done), places)

    return run


def _share(size: int, devices: int) -> tuple[jax.Array, jax.Array, np.ndarray]:
    """Who of 0…size−1 is on this device, and whether the place is no padding; and everyone's place, see `deal`."""
    numbers, places = deal(size, devices)
    own = jnp.asarray(numbers)[jax.lax.axis_index(AXIS)]
    return jnp.minimum(own, size - 1), own < size, places


def _unless_padding(one: Callable, padded: bool) -> Callable:
    """`one` of `((client, real), state)`, which does nothing where `real` is False: its results are zeros then."""
    if not padded:
        return lambda both, state: one(both[0], state)

    def mine(both: tuple[Tree, jax.Array], state: Tree) -> Tree:
        client, real = both
        form = jax.eval_shape(one, client, state)
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), form)
        return jax.lax.cond(real, lambda: one(client, state), lambda: zeros)

    return mine


def all_reduced(tree: Tree) -> Tree:
    """The sum of `tree` over all devices."""
    return _in_one(lambda vector: jax.lax.psum(vector, AXIS), tree, 0)


def _all_gathered(tree: Tree) -> Tree:
    """The rows of all devices, device after device; large leaves each by itself, as joining would copy them."""

    def gathered(rows: jax.Array) -> jax.Array:
        return jax.lax.all_gather(rows, AXIS, tiled=True)

    leaves, structure = jax.tree.flatten(tree)
    small = iter(_in_one(gathered, [a for a in leaves if a.nbytes < LARGE], 1))
    return jax.tree.unflatten(structure, [next(small) if a.nbytes < LARGE else gathered(a) for a in leaves])


def _in_one(operation: Callable[[jax.Array], jax.Array], tree: Tree, kept: int) -> Tree:
    """An operation on all leaves of `tree`, joined to one array a dtype so that one message carries them all.

    The leaves have `kept` leading axes in common, which stay.
    """
    leaves, structure = jax.tree.flatten(tree)
    done: dict[int, jax.Array] = {}
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        own = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        flat = [leaves[i].reshape(*leaves[i].shape[:kept], -1) for i in own]
        joined = operation(jnp.concatenate(flat, axis=kept))
        parts = jnp.split(joined, np.cumsum([a.shape[kept] for a in flat])[:-1], axis=kept)
        done |= {i: a.reshape(*a.shape[:kept], *leaves[i].shape[kept:]) for i, a in zip(own, parts)}
    return jax.tree.unflatten(structure, [done[i] for i in range(len(leaves))])


def _rows(tree: Tree, rows: Any) -> Tree:
    return jax.tree.map(lambda a: a[rows], tree)
