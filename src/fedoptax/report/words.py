"""Numbers, settings and names as people write them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.ticker import EngFormatter

DASH = "–"


def format_number(value: float, digits: int = 4) -> str:
    """Write a measured value with `digits` significant digits, a dash for none.

    Examples:
      >>> format_number(0.95), format_number(1816.2), format_number(float("nan")), format_number(1.2e-7)
      ('0.9500', '1816', '–', '1.200e-07')
    """
    return f"{value:#.{digits}g}".rstrip(".") if math.isfinite(value) else DASH


def format_spread(mean: float, std: float) -> str:
    """Write a mean and its standard deviation to the same decimal, or the mean alone without one.

    Examples:
      >>> format_spread(0.95, 0.004), format_spread(57.466, 9.26), format_spread(0.95, float("nan"))
      ('0.9500 ± 0.0040', '57.47 ± 9.26', '0.9500')
    """
    text = format_number(mean)
    if not math.isfinite(std):
        return text
    decimals = len(text.partition(".")[2])
    return f"{text} ± {format_number(std) if 'e' in text else f'{std:.{decimals}f}'}"


def format_quantity(value: float, unit: str) -> str:
    """Write a number of bytes (B) or seconds (s) with a decimal prefix: `49.4 kB`, `12.3 ms`."""
    return EngFormatter(unit, places=1)(value) if math.isfinite(value) else DASH


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
    if isinstance(value, list | tuple):
        return ", ".join(map(format_setting, value))
    if isinstance(value, float):
        return DASH if math.isnan(value) else f"{value:.6g}"
    return str(value)


def describe_faults(faults: dict[str, Any]) -> str:
    """List the faults of a run, without those that never happen: `dropout 0.3`."""
    hidden = () if faults.get("deadline") else ("step_seconds", "speed_spread")  # which say nothing without one
    active = {name: value for name, value in faults.items() if value and name not in hidden}
    return ", ".join(f"{name.replace('_', ' ')} {format_setting(value)}" for name, value in active.items()) or "none"


def format_count(amount: int, noun: str) -> str:
    """Write an amount with its noun: `1 seed`, `3,400 clients`."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def metric_words(column: str) -> str:
    """Write a history column within a sentence: `test accuracy`."""
    return column.replace("_", " ").strip()


def metric_title(column: str) -> str:
    """Write a history column as a title: `Test accuracy`."""
    return (text := metric_words(column))[:1].upper() + text[1:]


def join_words(parts: Sequence[str], last: str = "and") -> str:
    """Join words into a list: `a, b and c`."""
    return " ".join([", ".join(parts[:-1]), last, parts[-1]]) if len(parts) > 1 else "".join(parts)


def join_values(values: Iterable[Any]) -> str:
    """List the different values of a setting: `10` if all are equal, else `10 or 20`."""
    texts = dict.fromkeys(f"{value:,}" if type(value) is int else format_setting(value) for value in values)
    return join_words(list(texts), "or")
