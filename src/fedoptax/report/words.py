"""Numbers, settings and names as people write them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

DASH = "–"

#: Fields that only say something beside another one.
_FAULT_DETAILS = {"step_seconds": "deadline", "speed_spread": "deadline", "jitter": "deadline", "scale": "scaled"}


def format_number(value: float | None, digits: int = 4) -> str:
    """Write a measured value: four decimals below ten, four significant digits above, a dash for none.

    Examples:
      >>> format_number(0.91234), format_number(123.456), format_number(None), format_number(1.2e-7)
      ('0.9123', '123.5', '–', '1.2e-07')
    """
    if value is None or not math.isfinite(value):
        return DASH
    decimals = _decimals(value, digits)
    return f"{value:.{digits}g}" if decimals is None else f"{value:.{decimals}f}"


def _decimals(value: float, digits: int) -> int | None:
    """The number of decimals for a value; None for very large and very small ones."""
    size = abs(value)
    if size != 0 and (size < 0.5 * 10.0**-digits or size >= 1e6):
        return None
    return digits if size < 10 else max(0, digits - 1 - math.floor(math.log10(size)))


def format_spread(mean: float | None, std: float | None) -> str:
    """Write a mean and its standard deviation to the same decimal, or the mean alone without one.

    Examples:
      >>> format_spread(0.95, 0.004), format_spread(57.466, 9.26), format_spread(0.95, float("nan"))
      ('0.9500 ± 0.0040', '57.47 ± 9.26', '0.9500')
    """
    if mean is None or std is None or not math.isfinite(std):
        return format_number(mean)
    decimals = _decimals(mean, 4) if math.isfinite(mean) else None
    return f"{format_number(mean)} ± {format_number(std) if decimals is None else f'{std:.{decimals}f}'}"


def format_bytes(count: float | None) -> str:
    """Write a number of bytes in decimal units.

    Examples:
      >>> format_bytes(0), format_bytes(999), format_bytes(49380), format_bytes(1.5e9)
      ('0 B', '999 B', '49.4 kB', '1.50 GB')
    """
    if count is None or not math.isfinite(count):
        return DASH
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{_three_digits(value)} {units[0]}"


def format_duration(seconds: float | None) -> str:
    """Write seconds with three significant digits and a fitting unit.

    Examples:
      >>> format_duration(0.01234), format_duration(2.5), format_duration(75)
      ('12.3 ms', '2.50 s', '75.0 s')
    """
    if seconds is None or not math.isfinite(seconds):
        return DASH
    return f"{_three_digits(seconds * 1000)} ms" if seconds < 0.9995 else f"{_three_digits(seconds)} s"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def format_setting(value: Any) -> str:
    """Write a value from a config without trailing zeros or Python's marks.

    Examples:
      >>> format_setting(0.1), format_setting(True), format_setting(None), format_setting([1, 2])
      ('0.1', 'yes', 'none', '1, 2')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_setting, value))
    return str(value)


def describe_faults(faults: Any) -> str:
    """List the faults of a run, without those that never happen.

    Examples:
      >>> describe_faults({"dropout": 0.3, "deadline": None, "step_seconds": 1.0})
      'dropout 0.3'
      >>> describe_faults({"dropout": 0.0, "deadline": 20.0, "step_seconds": 1.0, "speed_spread": 0.5})
      'deadline 20, step seconds 1, speed spread 0.5'
    """
    given = {name: value for name, value in faults.items() if value} if isinstance(faults, dict) else {}
    parts = [
        f"{name.replace('_', ' ')} {format_setting(value)}"
        for name, value in given.items()
        if _FAULT_DETAILS.get(name, name) in given
    ]
    return ", ".join(parts) or "none"


def format_count(amount: int, noun: str) -> str:
    """Write an amount with its noun.

    Examples:
      >>> format_count(1, "seed"), format_count(3400, "client")
      ('1 seed', '3,400 clients')
    """
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def metric_title(column: str) -> str:
    """Write a history column as a title.

    Examples:
      >>> metric_title("test_accuracy")
      'Test accuracy'
    """
    text = metric_words(column)
    return text[:1].upper() + text[1:]


def metric_words(column: str) -> str:
    """Write a history column within a sentence.

    Examples:
      >>> metric_words("test_accuracy")
      'test accuracy'
    """
    return column.replace("_", " ").strip()


def join_words(parts: Sequence[str], last: str = "and") -> str:
    """Join words into a list.

    Examples:
      >>> join_words(["a"]), join_words(["a", "b"]), join_words(["a", "b", "c"])
      ('a', 'a and b', 'a, b and c')
    """
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}"


def join_values(values: Iterable[Any]) -> str:
    """List the different values of a setting.

    Examples:
      >>> join_values([10, 10]), join_values([10, 20])
      ('10', '10 or 20')
    """
    texts = dict.fromkeys(f"{value:,}" if type(value) is int else format_setting(value) for value in values)
    return join_words(list(texts), "or")
