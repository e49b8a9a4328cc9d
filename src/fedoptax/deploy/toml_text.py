"""Texts as TOML's basic strings."""

from __future__ import annotations

import json

from fedoptax.deploy.wire import shown
from fedoptax.errors import UsageError


def toml_text(text: str) -> str:
    """A text in quotes; beyond ASCII it stays as it is, since JSON's escapes in pairs are no TOML.

    Raises:
      UsageError: it holds what is no character (half of a pair: a path with bytes that are not UTF-8).
    """
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise UsageError(f"text: '{shown(text)}' given, allowed are characters of Unicode (a path in UTF-8)")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
