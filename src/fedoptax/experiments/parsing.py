"""`NAME=VALUE` texts and names of tasks, as users type them."""

import json
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedoptax.errors import UsageError, check_choice


def parse_value(text: str) -> Any:
    """Return what the text is as JSON, or a number such as .5, or else the text itself."""
    for read in (json.loads, float):  # JSON has no `.5`
        with suppress(ValueError):
            return read(text)
    return text


def format_value(value: Any) -> str:
    """Return the text that `parse_value` reads as `value`."""
    return value if isinstance(value, str) and parse_value(value) == value else json.dumps(value)


def parse_pairs(
    argument: str, texts: Iterable[str], names: Collection[str] | None = None, parse: Callable[[str], Any] = parse_value
) -> dict[str, Any]:
    """Return the `NAME=VALUE` texts of an argument as a dictionary; with `names` each must be one of them."""
    pairs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.strip().partition("=")
        if not name or not equals or not value:
            form = "NAME=VALUE" if names is None else f"NAME=VALUE with a name of {', '.join(names)}"
            raise UsageError(f"{argument} must be {'without arguments' if names == () else form}, got '{text}'")
        name = name.replace("-", "_")
        if names is not None:
            check_choice(f"{argument} argument", name, names)
        if name in pairs:
            raise UsageError(f"{argument}: {name} is given twice")
        pairs[name] = parse(value)
    return pairs


def check_task(name: str, value: str) -> None:
    """Check the name of a task, and that the file of `file:` exists; it is read, or MODULE:FUNCTION imported, later."""
    from fedoptax.tasks import recipe_of  # which imports NumPy, slow for `--help`
    from fedoptax.tasks.recipe import PREFIX

    if ":" not in value and Path(value).suffix:
        raise UsageError(f"task must be {PREFIX}{value} for a file, got '{value}'")
    if ":" not in value or value.startswith(PREFIX):
        recipe_of(value)
    if value.startswith(PREFIX) and not (path := Path(value.removeprefix(PREFIX)).expanduser()).exists():
        raise UsageError(f"task: '{path}' does not exist")
