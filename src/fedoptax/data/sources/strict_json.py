"""JSON that is what the standard says: no NaN, no key twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedoptax.errors import DataError


def parse_json(path: Path, data: bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """The JSON document `data`, which came from `path`.

    Args:
      path: for the message.
      data: UTF-8 text.
      parse_constant: what stands for `NaN` and `Infinity`, which are no JSON; `None` refuses them.

    Raises:
      DataError: it is no JSON, or an object has a key twice.
    """
    try:
        return json.loads(data, parse_constant=parse_constant or _refuse, object_pairs_hook=_each_key_once)
    except RecursionError:
        raise DataError(f"{path}: cannot be read: it is nested too deeply") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are kinds of it
        raise DataError(f"{path}: cannot be read: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {twice!r} is there twice")
    return members
