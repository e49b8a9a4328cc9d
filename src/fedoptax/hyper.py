"""Hyper-parameters: what is allowed, and learning rates that are either constant or a schedule over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedoptax.errors import UsageError

LearningRate = float | jax.Array | Callable[[Any], Any]
"""A constant (possibly traced) or an `optax.Schedule`, a function of the round (0, 1, 2, …)."""


def check(name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    """Checks low ≤ value < high (low < value with `open_low`); traced values are the caller's to check.

    Raises:
      UsageError: the value is not a number, not finite, outside the range, or infinite or 0 in JAX's floating point.
    """
    if isinstance(value, jax.core.Tracer):
        return
    allowed = f"a number {'>' if open_low else '>='} {low:g}" + ("" if math.isinf(high) else f" and < {high:g}")
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):  # the last: a whole number beyond floating point
        number = math.nan
    if not (math.isfinite(number) and (number > low or (number == low and not open_low)) and number < high):
        raise UsageError(f"{name}: {value!r} given, allowed is {allowed}")
    real = np.finfo(jax.dtypes.canonicalize_dtype(float))
    if number and not float(real.tiny) <= abs(number) <= float(real.max):
        raise UsageError(f"{name}: {value!r} given, allowed is a number from {real.tiny:.3g} to {real.max:.3g}")


def check_positive(**values: Any) -> None:
    """Checks that each named value is a number > 0."""
    for name, value in values.items():
        check(name, value, 0.0, open_low=True)


def check_fraction(**values: Any) -> None:
    """Checks that each named value (a momentum or an averaging constant) lies in [0, 1)."""
    for name, value in values.items():
        check(name, value, 0.0, 1.0)


def check_lr(**values: LearningRate) -> None:
    """Checks that each learning rate is a number > 0 or a schedule."""
    for name, value in values.items():
        if not callable(value):
            check(name, value, 0.0, open_low=True)


def check_flag(**values: Any) -> None:
    """Checks that each named value is True or False.

    Raises:
      UsageError: it is anything else; text would count as true, whatever it says.
    """
    for name, value in values.items():
        if isinstance(value, jax.core.Tracer):
            raise UsageError(
                f"{name}: a value that varies within a sweep given, allowed is true or false for all of it"
            )
        if not isinstance(value, bool | np.bool_):
            raise UsageError(f"{name}: {value!r} given, allowed is true or false")


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Checks that a named option is one of `allowed`."""
    if value not in allowed:
        raise UsageError(f"{name}: {value!r} given, allowed is one of {', '.join(allowed)}")


def sent(lr: LearningRate, round: Any) -> Any:
    """What of a learning rate travels in the message of a round: its value, or `()` when it is a constant.

    The server evaluates schedules, so a client needs no round number of its own.
    """
    return jax.numpy.asarray(lr(round)) if callable(lr) else ()


def received(lr: LearningRate, message_lr: Any) -> Any:
    """The learning rate a client uses: the constant, or the value that came with the message."""
    return message_lr if callable(lr) else lr
