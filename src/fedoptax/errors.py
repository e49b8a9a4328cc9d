"""The errors that a user meets, the exit status each gets at the command line, and the checks of arguments.

Everywhere in the package an argument that is wrong raises `UsageError`, and work that fails `RunError`; the docstrings
of the public functions say when. Each `check_…` raises `UsageError` for a wrong value.
"""

import inspect
import math
import operator
import sys
from collections.abc import Collection
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any

LONGEST = 1000
"""Characters that an error's message may have: people read it, and what it quotes may come from anywhere."""


class _OneLine(Exception):
    def __init__(self, message: object = "") -> None:
        super().__init__(shorten(message, LONGEST))


class UsageError(_OneLine, ValueError):
    """An argument is wrong: the message names it, its value and what is allowed. Exit status 2."""

    status = 2


class RunError(_OneLine, RuntimeError):
    """The work itself failed (a broken file, a diverged run, a full disk). Exit status 1."""

    status = 1


class Stopped(RunError):
    """A signal stopped the work: the message says how to continue. Exit status 128 + the signal's number."""

    def __init__(self, message: str, signal: int = 2) -> None:
        super().__init__(message)
        self.status = 128 + signal


class DataError(RunError):
    """A data file or data set cannot be used: the message names it and the reason. Exit status 1."""


def shorten(text: object, most: int = 300) -> str:
    """Make a text fit into a message: one line of at most `most` printable characters, without its middle if longer."""
    line = str(text)
    if len(line) > most:
        line = f"{line[: most - most // 3 - 1]}…{line[len(line) - most // 3 :]}"
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in line)


def check_int(name: str, value: Any, low: int = 1, high: int = 2**31 - 1) -> int:
    """Return `value` as an int if it is a whole number (of Python or NumPy) from `low` to `high`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < low:
        raise UsageError(f"{name} must be a whole number >= {low}, got {value!r}")
    if number > high:
        raise UsageError(f"{name} must be <= {high}, got {number}")
    return number


def check_number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False,
    open_high: bool = True,
) -> None:  # fmt: skip
    """Check that `value` is a number from `low` to `high`, finite in float32 too; a traced value is not checked.

    `open_low` and `open_high` say that the bound itself is not allowed.
    """
    if is_traced(value):
        return
    bounds = [f"{'>' if open_low else '>='} {low:g}"] if low > -math.inf else []
    bounds += [f"{'<' if open_high else '<='} {high:g}"] if high < math.inf else []
    allowed = " and ".join(bounds) or "a finite number"
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    is_inside = math.isfinite(number) and low <= number <= high
    if not is_inside or (open_low and number == low) or (open_high and number == high):
        kind = "a number " if isinstance(value, str) and bounds else ""
        raise UsageError(f"{name} must be {kind}{allowed}, got {value!r}")
    if number and not 2.0**-126 <= abs(number) < 2.0**128:
        raise UsageError(f"{name} must be a number of float32's range, got {value!r}")


def parse_number(name: str, text: str, low: float, **bounds: Any) -> float:
    """Return the number that a text is, see `check_number`."""
    value: Any = text
    with suppress(ValueError):
        value = float(text)
    check_number(name, value, low, **bounds)
    return value


def check_positive(**values: Any) -> None:
    """Check that each named value is a number > 0; see `check_number`."""
    for name, value in values.items():
        check_number(name, value, 0, open_low=True)


def check_decay(**values: Any) -> None:
    """Check that each named value is a number in [0, 1), as the decay rates β are; see `check_number`."""
    for name, value in values.items():
        check_number(name, value, 0, 1)


def check_flag(name: str, value: Any) -> None:
    """Check that `value` is True or False, and not traced: text would count as true, whatever it says."""
    if is_traced(value) or type(value).__name__ not in ("bool", "bool_"):
        raise UsageError(f"{name} must be true or false, got {value!r}")


def check_choice(name: str, value: Any, allowed: Collection[str]) -> None:
    """Check that `value` is one of `allowed`; the message names the nearest, for `lr` all with that word."""
    if not (isinstance(value, str) and value in allowed):
        near = [name for name in allowed if value in name.split("_")] or get_close_matches(str(value), allowed, n=1)
        hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
        raise UsageError(f"{name} must be one of {', '.join(allowed)}, got {value!r}{hint}")


def check_type(name: str, value: Any, kinds: Any) -> None:
    """Check that `value` is of a type, or of one of a union."""
    if not isinstance(value, kinds):
        wanted = kinds.__name__ if isinstance(kinds, type) else str(kinds).replace("collections.abc.", "")
        raise UsageError(f"{name} must be of type {wanted}, got {shorten(repr(value))}")


def check_function(name: str, value: Any, arguments: str) -> None:
    """Check that `value` can be called with so many arguments, which the message lists: `"params, batch"`."""
    try:
        inspect.signature(value).bind(*arguments.split(", "))
    except ValueError:  # a function written in C may have no signature
        return
    except TypeError as error:
        raise UsageError(f"{name} must be a function of ({arguments}), got {shorten(repr(value))}: {error}") from None


def check_output(name: str, value: Any, shape: tuple = (), kind: str = "floating", verb: str = "return") -> Any:
    """Return the value of a user's function, a JAX or NumPy array or a number, as an array, if its form is right.

    Args:
      name: of the function, or of a value with `verb="be"`.
      value: what it returned.
      shape: the shape it must have; None stands for any size.
      kind: of the numbers: `"floating"`, or `"real"`, whole numbers and booleans too.
    """
    import jax  # here, so that this module stays quick to import
    import numpy as np

    got = "None" if value is None else f"a value of type {type(value).__name__}"
    if isinstance(value, jax.Array | np.ndarray | np.generic | float | int | complex):
        dtype, sizes = jax.dtypes.result_type(value), np.shape(value)
        is_fitting = len(sizes) == len(shape) and all(w is None or w == size for w, size in zip(shape, sizes))
        if is_fitting and (jax.numpy.issubdtype(dtype, jax.numpy.floating) or (kind == "real" and dtype.kind in "biu")):
            return jax.numpy.asarray(value, dtype)
        got = f"{dtype.name}[{', '.join(map(str, sizes))}]"
    number = "number" if kind == "real" else "floating-point number"
    needed = f"{number}s of shape {str(shape).replace('None', 'any')}" if shape else f"one {number}"
    raise UsageError(f"{name} must {verb} {needed}, got {got}")


def import_extra(module: str, use: str, extra: str) -> Any:
    """Import a module for a use (`"workers dask need"`); a `UsageError` names the extra that has what it lacks."""
    try:
        return import_module(module)
    except ImportError:
        raise UsageError(f"{use} a package: pip install 'fedoptax[{extra}]'") from None


def is_traced(value: Any) -> bool:
    """Whether `value` is one that JAX traces, such as a hyper-parameter of a sweep."""
    jax = sys.modules.get("jax")  # without it nothing is traced
    return jax is not None and isinstance(value, jax.core.Tracer)
