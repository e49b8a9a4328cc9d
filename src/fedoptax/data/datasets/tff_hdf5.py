"""TensorFlow Federated's HDF5 layout, `/examples/<client>/<field>`, read one client at a time.

Every field is an array with one row per example. Layout: TensorFlow Federated 0.17, `simulation/hdf5_client_data.py`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax.data.files import damaged
from fedoptax.data.readers import reading


class ClientFile:
    """The clients of an open file of that layout; see `open_clients`. Reading raises a `DataError` where it is damaged.

    Attributes:
      path: of the file.
      names: the clients, sorted.
    """

    def __init__(self, path: Path, examples: Any) -> None:
        self.path = path
        self.names: list[str] = sorted(examples)
        self._examples = examples

    def count(self, client: str, field: str) -> int:
        """Return how many examples the client has."""
        with self._reading(client, field):
            return len(self._examples[client][field])

    def numbers(self, client: str, field: str) -> np.ndarray:
        """Read a field of numbers, (n, …) in its stored type."""
        with self._reading(client, field):
            values = self._examples[client][field][:]
            if values.dtype.kind not in "fiu":
                raise ValueError(f"it must hold numbers, got {values.dtype}")
            return values

    def text(self, client: str, field: str, limit: int | None = None) -> list[bytes]:
        """Read a field of byte strings; the first `limit` of them."""
        with self._reading(client, field):
            strings = self._examples[client][field][:limit].tolist()
            if not all(isinstance(string, bytes) for string in strings):
                raise ValueError("it must hold one string per example")
            return strings

    def _reading(self, client: str, field: str) -> AbstractContextManager[None]:
        return reading(f"{self.path}: client {client!r}: field '{field}'", "examples")


@contextmanager
def open_clients(path: Path) -> Iterator[ClientFile]:
    """Open a file and list its clients; a `DataError` if it has another layout."""
    import h5py  # only here: it is slow to import, and cached data need no HDF5

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise damaged(path, error) from None
    with file:
        with reading(path, "clients in a group 'examples'"):
            clients = ClientFile(path, file["examples"])
        yield clients
