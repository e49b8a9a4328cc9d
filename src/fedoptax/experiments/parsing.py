"""What users type, as values: `NAME=VALUE` texts, and functions by MODULE:FUNCTION."""

import importlib
import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fedoptax.errors import UsageError, check_choice


def parse_value(text: str) -> Any:
    """Return a number, true, false, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def format_value(value: Any) -> str:
    """Return the text that `parse_value` reads as `value`."""
    return value if isinstance(value, str) and parse_value(value) == value else json.dumps(value)


def parse_pairs(argument: str, texts: Iterable[str], names: Collection[str] | None = None) -> dict[str, Any]:
    """Return the `NAME=VALUE` texts of an argument as a dictionary; NAME is one of `names`, if there are any."""
    pairs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.strip().partition("=")
        if not equals or not value:
            allowed = "given without arguments" if names is not None and not names else "NAME=VALUE"
            allowed += f" with a name of {', '.join(names)}" if names else ""
            raise UsageError(f"{argument} must be {allowed}, got '{text}'")
        name = name.replace("-", "_")
        if names is not None:
            check_choice(f"{argument} argument", name, names)
        if name in pairs:
            raise UsageError(f"{argument}: {name} is given twice")
        pairs[name] = parse_value(value)
    return pairs


def parse_scoped(
    argument: str, texts: Iterable[str], parameters: Mapping[str, Iterable[str]], form: str
) -> dict[str, dict[str, str]]:
    """Return the texts right of `=` by algorithm and name.

    `NAME=...` is for every algorithm that has it, `ALGORITHM.NAME=...` for one; `parameters` are the names by algorithm.
    Of several texts for a name the last counts.
    """
    chosen: dict[str, dict[str, str]] = {algorithm: {} for algorithm in parameters}
    for text in texts:
        left, equals, value = text.partition("=")
        if not left or not equals or not value:
            raise UsageError(f"{argument} must be {form}, got '{text}'")
        scope, dot, name = left.rpartition(".")
        if dot:
            check_choice(f"{argument}: algorithm", scope, list(parameters))
        scoped = [scope] if dot else list(parameters)
        check_choice(
            f"{argument}: hyper-parameter", name, sorted({known for one in scoped for known in parameters[one]})
        )
        for algorithm in scoped:
            if name in parameters[algorithm]:
                chosen[algorithm][name] = value
    return chosen


def import_function(argument: str, text: str) -> Any:
    """Return what MODULE:FUNCTION names, also of the current folder.

    Raises:
      UsageError: there is none; the message names `argument`.
    """
    module, _, attribute = text.rpartition(":")
    if "/" in module or module.endswith(".py"):
        likely = module.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise UsageError(
            f"{argument} must be a name or MODULE:FUNCTION, got '{text}' (did you mean '{likely}:{attribute}'?)"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{argument} must be a name or MODULE:FUNCTION, got '{text}' ({error})") from error
