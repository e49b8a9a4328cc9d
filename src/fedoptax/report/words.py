"""Numbers and settings as people write them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

DASH = "–"


def number(value: float | None, digits: int = 4) -> str:
    """A measured value: four decimals below ten, four significant digits above, a dash for none.

    Examples:
      >>> number(0.91234), number(123.456), number(None), number(1.2e-7), number(3.0e9)
      ('0.9123', '123.5', '–', '1.2e-07', '3e+09')
    """
    if value is None or not math.isfinite(value):
        return DASH
    decimals = _decimals(value, digits)
    return f"{value:.{digits}g}" if decimals is None else f"{value:.{decimals}f}"


def _decimals(value: float, digits: int) -> int | None:
    """How many decimals a value is written with; None for very large and very small ones."""
    size = abs(value)
    if size != 0 and (size < 0.5 * 10.0**-digits or size >= 1e6):
        return None
    return digits if size < 10 else max(0, digits - 1 - math.floor(math.log10(size)))


def spread(mean: float | None, std: float | None) -> str:
    """A mean with its spread to the same decimal, or alone where no spread is known.

    Examples:
      >>> spread(0.95, 0.004), spread(57.466, 9.26), spread(0.95, float("nan"))
      ('0.9500 ± 0.0040', '57.47 ± 9.26', '0.9500')
    """
    if mean is None or std is None or not math.isfinite(std):
        return number(mean)
    decimals = _decimals(mean, 4) if math.isfinite(mean) else None
    return f"{number(mean)} ± {number(std) if decimals is None else f'{std:.{decimals}f}'}"


def data_size(count: float | None) -> str:
    """Bytes in decimal units.

    Examples:
      >>> data_size(0), data_size(999), data_size(49380), data_size(1.5e9)
      ('0 B', '999 B', '49.4 kB', '1.50 GB')
    """
    if count is None or not math.isfinite(count):
        return DASH
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    if units[0] == "B":
        return f"{value:.0f} B"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {units[0]}"


def duration(seconds: float | None) -> str:
    """Seconds with three significant digits and a fitting unit.

    Examples:
      >>> duration(0.01234), duration(2.5), duration(75)
      ('12.3 ms', '2.50 s', '75.0 s')
    """
    if seconds is None or not math.isfinite(seconds):
        return DASH
    value, unit = (seconds * 1000, "ms") if seconds < 0.9995 else (seconds, "s")
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f} {unit}"


def setting(value: Any) -> str:
    """A value from a config, shortly: no trailing zeros, no Python marks.

    Examples:
      >>> setting(0.1), setting(1e-05), setting(True), setting(None), setting([1, 2])
      ('0.1', '1e-05', 'yes', 'none', '1, 2')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value))
    return str(value).encode("utf-8", "replace").decode()  # a lone surrogate can be in JSON, but in no file


def faults_in_words(faults: Any) -> str:
    """A run's faults: all that happens in it, and nothing that does not.

    Examples:
      >>> faults_in_words({"dropout": 0.3, "nonfinite": 0.0, "scaled": 0.1, "scale": -10.0, "deadline": None})
      'dropout 0.3, scaled 0.1 (by -10)'
      >>> faults_in_words({"deadline": 20.0, "step_seconds": 1.0, "speed_spread": 0.5, "jitter": 0.1, "scaled": 0.0})
      'deadline 20 s (a step 1 s, spread 0.5, jitter 0.1)'
    """
    given = {name: setting(value) for name, value in faults.items() if value} if isinstance(faults, dict) else {}
    parts = [f"{name} {given[name]}" for name in ("dropout", "nonfinite") if name in given]
    if "scaled" in given:
        parts.append(f"scaled {given['scaled']} (by {given.get('scale', 0)})")
    if "deadline" in given:
        step, spread, jitter = (given.get(name, 0) for name in ("step_seconds", "speed_spread", "jitter"))
        parts.append(f"deadline {given['deadline']} s (a step {step} s, spread {spread}, jitter {jitter})")
    return ", ".join(parts) or "none"


def count(amount: int, noun: str) -> str:
    """An amount with its noun.

    Examples:
      >>> count(1, "seed"), count(3400, "client")
      ('1 seed', '3,400 clients')
    """
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def metric_name(column: str) -> str:
    """A history column in words.

    Examples:
      >>> metric_name("test_accuracy"), metric_name("train_loss")
      ('Test accuracy', 'Train loss')
    """
    text = column.replace("_", " ").strip()
    return text[:1].upper() + text[1:]


def in_sentence(column: str) -> str:
    """A history column within a sentence.

    Examples:
      >>> in_sentence("test_accuracy")
      'test accuracy'
    """
    return column.replace("_", " ").strip()


def listed(parts: Sequence[str], last: str = "and") -> str:
    """Words in a row.

    Examples:
      >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
      ('a', 'a and b', 'a, b and c')
    """
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}"


def one_of(values: Iterable[Any]) -> str:
    """What some runs share, or all the values they have.

    Examples:
      >>> one_of([10, 10]), one_of([10, 20])
      ('10', '10 or 20')
    """
    return listed(list(dict.fromkeys(f"{v:,}" if type(v) is int else setting(v) for v in values)), "or")
