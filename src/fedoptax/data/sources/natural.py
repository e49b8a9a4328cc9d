"""Data sets that come with their clients: written to a cache client after client, with one numbering of the clients.

The clients of the training part have the codes 0 … N−1 in the order in which they come; the same codes stand for
them in the test part, whose other clients have the codes from N on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from fedoptax.data.store import StoreWriter
from fedoptax.errors import DataError

Codes = dict[str, int]
"""The code of each client, by name, in the order of the codes."""

Client = tuple[str, Mapping[str, np.ndarray]]
"""A client's name and its examples, `{field: array (n, …)}`."""

_MAX_NAME = 256
_ROWS = 65_536  # written together: few writes, little memory


def write_clients(writer: StoreWriter, part: str, path: Path, clients: Iterable[Client], codes: Codes) -> None:
    """Appends the arrays `<part>_<field>` and `<part>_groups` (int32 codes); clients without examples are left out.

    Args:
      writer: of the store.
      part: `"train"` or `"test"`.
      path: where they come from, for the message.
      clients: one by one; all have the same fields.
      codes: of the clients that came before; new ones are added.

    Raises:
      DataError: no client has an example, a name is too long or cannot be printed; or whatever `clients` raises.
    """
    pending: list[Mapping[str, np.ndarray]] = []
    rows = total = 0
    for name, fields in clients:
        if not (0 < len(name) <= _MAX_NAME and name.isprintable()):
            raise DataError(f"{path}: client {name[:_MAX_NAME]!r}: 1 to {_MAX_NAME} printable characters are allowed")
        size = len(next(iter(fields.values())))
        if size == 0:
            continue
        code = codes.setdefault(name, len(codes))
        pending.append({**fields, "groups": np.full(size, code, np.int32)})
        rows, total = rows + size, total + size
        if rows >= _ROWS:
            _flush(writer, part, pending)
            rows = 0
    _flush(writer, part, pending)
    if total == 0:
        raise DataError(f"{path}: holds no examples")


def write_names(writer: StoreWriter, codes: Codes) -> None:
    """Appends the array `client_names`, the name of each code."""
    writer.append("client_names", np.array(list(codes)))


def _flush(writer: StoreWriter, part: str, pending: list[Mapping[str, np.ndarray]]) -> None:
    if pending:
        for field in pending[0]:
            writer.append(f"{part}_{field}", np.concatenate([fields[field] for fields in pending]))
        pending.clear()
