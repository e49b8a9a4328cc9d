"""The clients' states between rounds: on the device while they fit, else in host memory.

3,400 clients x 1.2 M float32 parameters are 16 GB. From the host, the cohort's states are copied to the device before a
round and back after it, so the results are the same and a call advances one round.
"""

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Tree
from fedoptax.distributed import gather_from_all, is_distributed

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
DEVICE_SHARE = 0.25  # of its memory, at most, for client states, and as much for training examples


class OnDevice:
    """All N states stacked on the device; a call may advance many rounds."""

    def __init__(self, initial: Tree, num_clients: int) -> None:
        self.tree = jax.tree.map(lambda a: jnp.repeat(jnp.asarray(a)[None], num_clients, axis=0), initial)

    def take(self, cohort: Callable[[], np.ndarray]) -> Tree:
        """Return the states that the program needs: all."""
        return self.tree

    def put(self, tree: Tree) -> None:
        """Store the changed states of `take`."""
        self.tree = tree


class OnHost:
    """All N states in host memory; a call advances one round.

    A row is written when its client first comes back from a round; until then it is the initial state. Of P processes,
    process p has the states of the clients p, p + P, p + 2P, …; `take`, `put` and `of` are calls of all.
    """

    def __init__(self, initial: Tree, num_clients: int) -> None:
        leaves, self._structure = jax.tree.flatten(initial)
        self._initial = [np.asarray(leaf) for leaf in leaves]
        self._process = jax.process_index() if is_distributed() else 0
        self._processes = jax.process_count() if is_distributed() else 1
        if self._processes > 1:  # glibc returns large buffers when they are freed: a cohort's took 100 MB per process
            with suppress(AttributeError, OSError, TypeError):  # another C library
                ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)
        owned = -(-num_clients // self._processes)
        self._seen = np.zeros(owned, bool)
        # pages of which no row is written take no memory; Linux's large ones are of 2 MB
        self._rows = [np.zeros((owned, *leaf.shape), leaf.dtype) for leaf in self._initial]
        self._ids = np.zeros(0, np.int64)

    def take(self, cohort: Callable[[], np.ndarray]) -> Tree:
        """Return the states of the next round's cohort, stacked."""
        self._ids = np.asarray(cohort(), np.int64)
        return jax.tree.map(jnp.asarray, self.of(self._ids))

    def put(self, tree: Tree) -> None:
        """Store the cohort's changed states."""
        is_owned = self._ids % self._processes == self._process
        places = self._ids[is_owned] // self._processes
        for rows, new in zip(self._rows, jax.tree.leaves(tree)):
            rows[places] = np.asarray(new)[is_owned]
        self._seen[places] = True

    def of(self, ids: np.ndarray) -> Tree:
        """Return the states of some clients, stacked, as NumPy arrays."""
        owners, places = np.asarray(ids, np.int64) % self._processes, np.asarray(ids, np.int64) // self._processes
        counts = np.bincount(owners, minlength=self._processes)
        ranks = np.empty(len(owners), np.int64)  # of each row among those of its owner
        ranks[np.argsort(owners, kind="stable")] = np.concatenate([np.arange(count) for count in counts])
        mine = np.resize(places[owners == self._process], counts.max())  # all send equally many
        leaves = []
        for rows, first in zip(self._rows, self._initial):
            seen = self._seen[mine].reshape(-1, *[1] * first.ndim)
            leaves.append(gather_from_all(np.where(seen, rows[mine], first))[owners, ranks])
        return jax.tree.unflatten(self._structure, leaves)

    def save(self, folder: Path) -> None:
        """Write the rows of this process's clients that were seen so far to a folder of its own in `folder`."""
        places = np.flatnonzero(self._seen)
        part = folder / str(self._process)
        part.mkdir()  # not its parents: all processes must see the same folder
        np.save(part / "ids.npy", places * self._processes + self._process)
        for i, rows in enumerate(self._rows):
            with (part / f"leaf-{i:05d}.bin").open("wb") as file:
                for place in places:  # row by row, as all may be half of the memory
                    file.write(rows[place].tobytes())

    def load(self, folder: Path) -> None:
        """Read this process's clients from what `save` wrote, in as many processes as then were."""
        self._seen[:] = False
        for part in folder.iterdir():
            ids = np.load(part / "ids.npy", allow_pickle=False)
            wanted = np.flatnonzero(ids % self._processes == self._process)
            for i, rows in enumerate(self._rows):
                with (part / f"leaf-{i:05d}.bin").open("rb") as file:
                    for row in wanted:
                        file.seek(row * rows[0].nbytes)
                        content = np.frombuffer(file.read(rows[0].nbytes), rows.dtype)
                        rows[ids[row] // self._processes] = content.reshape(rows.shape[1:])
            self._seen[ids[wanted] // self._processes] = True


ClientStates = OnDevice | OnHost


def choose_place(choice: str, elsewhere: str, nbytes: int, devices: int = 1) -> str:
    """Return `choice`; for `"auto"`, the device if the bytes fit on each of `devices`, else `elsewhere`."""
    if choice != "auto":
        return choice
    # a device without memory of its own has its share of the host's
    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", host_bytes() // devices)
    return "device" if nbytes <= DEVICE_SHARE * memory else elsewhere


def host_bytes() -> int:
    """Memory of this machine, or of the container that the process runs in, in bytes; 8 GiB where neither is known."""
    if not hasattr(os, "sysconf"):  # Windows
        return 2**33
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical
