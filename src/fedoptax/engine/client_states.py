"""The clients' states between rounds: on the device while they fit, else in host memory.

3,400 clients x 1.2 M float32 parameters are 16 GB. From the host, the cohort's states are copied to the device before a
round and back after it, so the results are the same and a call advances one round.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Tree

PLACES = ("auto", "device", "host")
DEVICE_SHARE = 0.25  # of its memory, at most, for client states, and as much for training examples


class OnDevice:
    """All N states stacked on the device; a call may advance many rounds."""

    def __init__(self, initial: Tree, num_clients: int) -> None:
        self.tree = jax.tree.map(lambda a: jnp.repeat(jnp.asarray(a)[None], num_clients, axis=0), initial)

    def take(self, cohort: Callable[[], np.ndarray]) -> Tree:
        """Return the states that the program needs: all."""
        return self.tree

    def put(self, tree: Tree) -> None:
        """Take back what `take` gave, changed."""
        self.tree = tree


class OnHost:
    """All N states in host memory; a call advances one round.

    A row is written when its client first comes back from a round; until then it is the initial state.
    """

    def __init__(self, initial: Tree, num_clients: int) -> None:
        leaves, self._structure = jax.tree.flatten(initial)
        self._initial = [np.asarray(leaf) for leaf in leaves]
        self._seen = np.zeros(num_clients, bool)
        # pages that are never written take no memory
        self._rows = [np.zeros((num_clients, *leaf.shape), leaf.dtype) for leaf in self._initial]
        self._ids = np.zeros(0, np.int64)

    def take(self, cohort: Callable[[], np.ndarray]) -> Tree:
        """Return the states of the next round's cohort, stacked."""
        self._ids = np.asarray(cohort(), np.int64)
        return jax.tree.map(jnp.asarray, self.of(self._ids))

    def put(self, tree: Tree) -> None:
        """Take back the cohort's states, changed."""
        for rows, new in zip(self._rows, jax.tree.leaves(tree)):
            rows[self._ids] = np.asarray(new)
        self._seen[self._ids] = True

    def of(self, ids: np.ndarray) -> Tree:
        """Return the states of some clients, stacked, as NumPy arrays."""
        ids = np.asarray(ids, np.int64)
        leaves = []
        for rows, first in zip(self._rows, self._initial):
            seen = self._seen[ids].reshape(-1, *[1] * first.ndim)
            leaves.append(np.where(seen, rows[ids], first))
        return jax.tree.unflatten(self._structure, leaves)

    def save(self, folder: Path) -> None:
        """Write the rows of the clients seen so far to a new folder."""
        ids = np.flatnonzero(self._seen)
        folder.mkdir(parents=True)
        np.save(folder / "ids.npy", ids)
        for i, rows in enumerate(self._rows):
            with (folder / f"leaf-{i:05d}.bin").open("wb") as file:
                for client in ids:  # row by row, as all may be half of the memory
                    file.write(rows[client].tobytes())
        (folder / "form.json").write_text(json.dumps(self._form()))

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        if json.loads((folder / "form.json").read_text()) != self._form():
            raise ValueError("its client states are not those of this experiment")
        ids = np.load(folder / "ids.npy", allow_pickle=False)
        for i, rows in enumerate(self._rows):
            with (folder / f"leaf-{i:05d}.bin").open("rb") as file:
                for client in ids:
                    rows[client] = np.frombuffer(file.read(rows[0].nbytes), rows.dtype).reshape(rows.shape[1:])
        self._seen[:] = False
        self._seen[ids] = True

    def _form(self) -> list[list[Any]]:
        return [[len(self._seen)], *[[*leaf.shape, str(leaf.dtype)] for leaf in self._initial]]


ClientStates = OnDevice | OnHost


def choose_place(choice: str, elsewhere: str, nbytes: int, devices: int = 1) -> str:
    """Return `choice`, or for `"auto"` the device if so many bytes fit, else `elsewhere`.

    Each device of a mesh has all of them.
    """
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
