"""TensorFlow Federated's HDF5 layout, `/examples/<client>/<field>`, read one client at a time.

Every field is an array with one row an example. Layout: TensorFlow Federated 0.17,
`simulation/hdf5_client_data.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fedoptax.data.sources.hdf5_heaps import LENGTHS, check_heaps
from fedoptax.errors import DataError

MAX_BYTES = 2**30
"""The largest field of one client that is read: 1 GiB."""

_MAX_CHUNK = 2**28  # HDF5 unpacks a chunk whole
_MAX_NAME = 256
_DEFLATE_RATIO = 1032  # DEFLATE's largest possible ratio of output to input
_KINDS = {"f": "floating-point numbers", "i": "integers", "u": "unsigned integers"}
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32"}  # HDF5's own: others would load code from the machine's plugins
_REFERENCE = 16  # bytes of a file that each string of variable length takes, at least
_STRINGS = 256  # of variable length that are read together: nothing tells their lengths beforehand


class ClientFile:
    """An open file of that layout; use it in a `with`.

    Only what the layout needs is followed and read: hard links to groups and arrays that lie in the file itself,
    unpacked or packed by HDF5's own filters. All that is read together is held to what a file of that size can
    hold, so neither a declared shape nor links that share an array can fill memory or disk. The heaps that hold strings
    of variable length are checked before HDF5 walks them.

    Attributes:
      path: of the file.
      names: the clients, sorted.
    """

    path: Path
    names: list[str]

    def __init__(self, path: Path) -> None:
        """Opens the file and lists its clients.

        Raises:
          DataError: it is missing, no HDF5 file, damaged, or has no `/examples`; or h5py is not installed.
        """
        if not path.is_file():
            raise DataError(f"{path}: not a file")
        try:
            import h5py  # only here: it is slow to import, and cached data need no HDF5
        except ImportError:
            raise DataError(f"{path}: needs the package h5py to be read: pip install h5py") from None
        self._h5: Any = h5py
        self.path = path
        self._left = path.stat().st_size * _DEFLATE_RATIO
        self._heaps_checked = False
        with _one_line(path):
            self._file = h5py.File(path, "r")
        try:
            with _one_line(path):
                self._clients = self._group(self._file.id, b"examples")
                self.names = sorted(self._links())
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ClientFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def rows(self, client: str, field: str) -> int:
        """How many examples the client has.

        Raises:
          DataError: the field is missing or not of the layout.
        """
        with _one_line(self.path, client, field):
            rows = self._dataset(client, field).shape[0]
            self._take(rows)  # a byte each, at least
            return rows

    def numbers(self, client: str, field: str, kinds: str, shape: tuple[int, ...] = ()) -> np.ndarray:
        """A field of numbers, (n, *shape) in its stored type.

        Args:
          client: one of `names`.
          field: such as `"label"`.
          kinds: the allowed kinds of NumPy types, such as `"iu"` for integers.
          shape: of one example.

        Raises:
          DataError: the field is missing, of another type or shape, too large, or damaged.
        """
        with _one_line(self.path, client, field):
            dataset = self._dataset(client, field)
            dtype, stored = dataset.dtype, dataset.shape
            if dtype.kind not in kinds or dtype.itemsize > 8:
                raise ValueError(f"it holds {dtype}; {' or '.join(_KINDS[kind] for kind in kinds)} are expected")
            if stored[1:] != shape:
                wanted = " × ".join(["n", *map(str, shape)])
                raise ValueError(f"it is an array of {' × '.join(map(str, stored))}; {wanted} was expected")
            return self._read(dataset, stored, dtype)

    def text(self, client: str, field: str, limit: int | None = None) -> list[bytes]:
        """A field of byte strings, of one length or of any; the first `limit` of them.

        Raises:
          DataError: as in `numbers`.
        """
        with _one_line(self.path, client, field):
            dataset = self._dataset(client, field)
            if dataset.get_type().get_class() != self._h5.h5t.STRING or dataset.rank != 1:
                raise ValueError(f"it holds {dataset.dtype}{list(dataset.shape)}; one string an example was expected")
            rows = dataset.shape[0] if limit is None else min(limit, dataset.shape[0])
            if dataset.dtype.kind == "S":
                return self._read(dataset, (rows,), dataset.dtype).tolist()
            return self._read_strings(dataset, rows)

    def _group(self, parent: Any, name: bytes) -> Any:
        """Opens a group, by a hard link only: soft and external links may lead anywhere."""
        if name not in parent:
            raise ValueError(f"it has no group '{name.decode()}'")
        if parent.links.get_info(name).type != self._h5.h5l.TYPE_HARD:
            raise ValueError(f"'{name.decode()}' is a link to elsewhere")
        return self._h5.h5g.open(parent, name)

    def _links(self) -> list[str]:
        links: list[tuple[bytes, int]] = []
        # No exception may leave this function: HDF5 calls it.
        self._clients.links.iterate(lambda name, link: links.append((name, link.type)), info=True)
        for name, kind in links:
            if kind != self._h5.h5l.TYPE_HARD or len(name) > _MAX_NAME:
                raise ValueError(f"client {name[:_MAX_NAME]!r} is a link to elsewhere, or has a longer name")
        return [name.decode() for name, _ in links]

    def _dataset(self, client: str, field: str) -> Any:
        name = f"{client}/{field}".encode()
        if name not in self._clients:
            raise ValueError("it is missing")
        if self._clients.links.get_info(name).type != self._h5.h5l.TYPE_HARD:
            raise ValueError("it is a link to elsewhere")
        dataset = self._h5.h5d.open(self._clients, name)
        self._check_storage(dataset)
        return dataset

    def _check_storage(self, dataset: Any) -> None:
        h5d, form = self._h5.h5d, dataset.get_create_plist()
        layout = form.get_layout()
        if layout not in (h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED) or form.get_external_count():
            raise ValueError("its data lie outside the file")
        filters = [form.get_filter(i)[0] for i in range(form.get_nfilters())]
        if not set(filters) <= set(_FILTERS) or len(set(filters)) < len(filters):
            raise ValueError(f"it is packed by the filters {filters}; {_FILTERS}, each once, are allowed")
        if dataset.rank < 1:
            raise ValueError("it has no dimension")
        if layout == h5d.CHUNKED:
            chunk = math.prod(form.get_chunk()) * dataset.get_type().get_size()
            if chunk > _MAX_CHUNK:
                raise ValueError(f"it lies in chunks of {chunk} bytes; at most {_MAX_CHUNK} are allowed")

    def _take(self, size: int) -> None:
        """Accounts for `size` bytes before they are read."""
        self._left -= size
        if size > MAX_BYTES or self._left < 0:
            raise ValueError(f"it declares {size} bytes, more than is allowed or a file of this size can hold")

    def _read(self, dataset: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The first rows of a dataset, as many as `shape` has."""
        self._take(math.prod(shape) * dtype.itemsize)
        array = np.empty(shape, dtype)
        if array.size:
            dataset.read(*self._selection(dataset, 0, shape), array)
        return array

    def _read_strings(self, dataset: Any, rows: int) -> list[bytes]:
        self._take(rows * _REFERENCE)
        self._check_heaps()
        strings: list[bytes] = []
        kind, size = self._h5.h5t.py_create(dataset.dtype), 0
        for start in range(0, rows, _STRINGS):
            block = np.empty(min(_STRINGS, rows - start), object)
            dataset.read(*self._selection(dataset, start, block.shape), block, kind)
            strings += block.tolist()
            length = sum(map(len, strings[start:]))
            size += length
            self._take(length)
            if size > MAX_BYTES:
                raise ValueError(f"its strings are longer than {MAX_BYTES} bytes together")
        return strings

    def _check_heaps(self) -> None:
        """Once for the file."""
        if not self._heaps_checked:
            if (lengths := self._file.id.get_create_plist().get_sizes()[1]) != LENGTHS:
                raise ValueError(
                    f"its lengths have {lengths} bytes; {LENGTHS} are expected where strings vary in length"
                )
            check_heaps(self.path)
            self._heaps_checked = True

    def _selection(self, dataset: Any, start: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """The places in memory and in the file of the rows from `start` on."""
        h5s = self._h5.h5s
        if shape == dataset.shape:
            return h5s.ALL, h5s.ALL
        space = dataset.get_space()
        space.select_hyperslab((start, *(0 for _ in shape[1:])), shape)
        return h5s.create_simple(shape), space


@contextmanager
def _one_line(path: Path, client: str | None = None, field: str = "") -> Iterator[None]:
    """Makes one line of whatever h5py raises."""
    try:
        yield
    except DataError:
        raise
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, MemoryError) as error:
        where = "" if client is None else f"client {client!r}, field '{field}': "
        raise DataError(f"{path}: {where}{' '.join(str(error).split()) or type(error).__name__}") from None
