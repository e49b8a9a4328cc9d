"""Learning-rate schedules by name, so that a command line, a preset or a config can hold one: `"cosine(0.1, 1000)"`.

A schedule is a function of the round (of the iteration, for FAFED and STEM), evaluated at the server; the clients
receive its value. Any `optax.Schedule` does as well where code, not text, makes the algorithm.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedoptax.errors import UsageError, unknown
from fedoptax.hyper import check, check_positive

Schedule = Callable[[Any], Any]


def constant(lr: float) -> Schedule:
    """`lr` in every round."""
    check_positive(lr=lr)
    return optax.constant_schedule(lr)


def staircase(lr: float, every: float, factor: float = 0.1) -> Schedule:
    """`lr factor^⌊t / every⌋`: the staircase exponential decay of Reddi et al. 2021, Appendix E.6 (0.1 every 500)."""
    check_positive(lr=lr, factor=factor)
    _check_rounds(every=every)
    return optax.exponential_decay(lr, int(every), factor, staircase=True)


def inverse_sqrt(lr: float, offset: float = 1.0) -> Schedule:
    """`lr √offset / √(offset + t)`, so that it begins at `lr`."""
    check_positive(lr=lr, offset=offset)
    return lambda t: jnp.asarray(lr, _real()) * jnp.sqrt(jnp.asarray(offset, _real()) / (offset + _number(t)))


def warmup(lr: float, rounds: float) -> Schedule:
    """`lr (t + 1)/rounds` in the first rounds, then `lr`."""
    check_positive(lr=lr, rounds=rounds)
    return lambda t: jnp.asarray(lr, _real()) * jnp.minimum((_number(t) + 1) / rounds, 1)


def cosine(lr: float, rounds: float, floor: float = 0.0) -> Schedule:
    """From `lr` to `lr floor` along half a cosine in `rounds` rounds, then constant (Loshchilov and Hutter 2017)."""
    check_positive(lr=lr)
    _check_rounds(rounds=rounds)
    check("floor", floor, 0.0)
    return optax.cosine_decay_schedule(lr, int(rounds), floor)


def cube_root(numerator: float, w: float = 1.0) -> Schedule:
    """`numerator/(w + t)^{1/3}`: FAFED's equation (5) with numerator ρ h, and STEM's with κ and σ² = 1."""
    check_positive(numerator=numerator, w=w)
    return lambda t: jnp.asarray(numerator, _real()) / jnp.cbrt(jnp.asarray(w, _real()) + _number(t))


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "staircase": staircase,
    "inverse_sqrt": inverse_sqrt,
    "warmup": warmup,
    "cosine": cosine,
    "cube_root": cube_root,
}
"""The schedules by name."""


def is_schedule(text: Any) -> bool:
    """Whether a hyper-parameter's value is the text of a schedule: `NAME(…)`."""
    return isinstance(text, str) and text.endswith(")") and "(" in text


def parse_schedule(text: str) -> Schedule:
    """The schedule that `NAME(number, name=number, …)` describes; nothing but numbers is evaluated.

    Raises:
      UsageError: it is no such call, of no known schedule, or with arguments that do not fit.
    """
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        given = [_literal(argument) for argument in call.args]
        named = {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise UsageError(f"schedule: '{text}' given, allowed is NAME(number, name=number, …)") from None
    name = call.func.id
    if name not in SCHEDULES:
        unknown("schedule", name, SCHEDULES)
    signature = inspect.signature(SCHEDULES[name])
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        allowed = ", ".join(
            parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default:g}"
            for parameter in signature.parameters.values()
        )
        raise UsageError(f"schedule: '{text}' given, allowed is {name}({allowed}): {error}") from None
    return SCHEDULES[name](*given, **named)


def _literal(node: ast.expr) -> float:
    value = ast.literal_eval(node)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _check_rounds(**values: float) -> None:
    """Checks that each named value is a whole number of rounds, from 1."""
    for name, value in values.items():
        check_positive(**{name: value})
        if value != int(value):
            raise UsageError(f"{name}: {value:g} given, allowed is a whole number of rounds >= 1")


def _real() -> Any:
    return jnp.result_type(float)


def _number(t: Any) -> jax.Array:
    return jnp.asarray(t).astype(_real())
