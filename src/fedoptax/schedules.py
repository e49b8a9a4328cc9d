"""Learning rates: a number or a schedule, and the schedules that text can name, such as `"cosine(0.1, 1000)"`.

A schedule is a function of the round, evaluated at the server; the clients receive its value (for FAFED and STEM of the
iteration, and clients evaluate it). From Python any `optax.Schedule` will do; a command line, a preset or a config
names one of these.
"""

import ast
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedoptax.errors import (
    UsageError,
    check_choice,
    check_function,
    check_int,
    check_number,
    check_output,
    check_positive,
)

Number = float | jax.Array
"""A hyper-parameter: a Python number, or a traced value, as in a sweep."""

Schedule = Callable[[Any], Any]
LearningRate = Number | Schedule
"""A number, or a schedule over rounds 0, 1, 2, …"""


def check_lr(most: float = math.inf, **rates: LearningRate) -> None:
    """Check that each named learning rate is a schedule or a number > 0, at most `most`."""
    for name, lr in rates.items():
        if not callable(lr):
            check_number(name, lr, 0, most, open_low=True, open_high=False)
        else:
            check_function(f"{name}, a schedule,", lr, "round")


def value_at(rate: LearningRate, t: Any) -> Any:
    """The value of a number or schedule at round (or iteration) t, where t is known."""
    if not callable(rate):
        return rate
    value = rate(t)
    check_output("the schedule of a learning rate", value, kind="real")
    larger = max if isinstance(value, int | float) else jnp.maximum
    return larger(value, 2.0**-126)  # SCAFFOLD, FedCM and FedAdamW divide by it, and a cosine ends at 0


def value_to_send(lr: LearningRate, round: Any) -> Any:
    """The learning rate in the message of a round: a schedule's value, or `()` for a constant.

    The server evaluates schedules, so clients need no round number.
    """
    return jnp.asarray(value_at(lr, round)) if callable(lr) else ()


def resolve_lr(lr: LearningRate, sent: Any) -> Any:
    """The learning rate a client uses: the constant, or the value that came with the message."""
    return sent if callable(lr) else lr


def constant(lr: float) -> Schedule:
    """`lr` in every round."""
    check_positive(lr=lr)
    return optax.constant_schedule(lr)


def staircase(lr: float, every: float, factor: float = 0.1) -> Schedule:
    """`lr factor^⌊t / every⌋`: the staircase exponential decay of Reddi et al. 2021, Appendix E.6 (0.1 every 500)."""
    check_positive(lr=lr, factor=factor)
    return optax.exponential_decay(lr, _check_rounds("every", every), factor, staircase=True)


def inverse_sqrt(lr: float, offset: float = 1.0) -> Schedule:
    """`lr √offset / √(offset + t)`, so that it begins at `lr`."""
    check_positive(lr=lr, offset=offset)
    return lambda t: jnp.asarray(lr, float) * jnp.sqrt(jnp.asarray(offset, float) / (offset + jnp.asarray(t, float)))


def warmup(lr: float, rounds: float) -> Schedule:
    """`lr (t + 1)/rounds` in the first rounds, then `lr`."""
    check_positive(lr=lr, rounds=rounds)
    return lambda t: jnp.asarray(lr, float) * jnp.minimum((jnp.asarray(t, float) + 1) / rounds, 1)


def cosine(lr: float, rounds: float, floor: float = 0.0) -> Schedule:
    """From `lr` to `lr floor` along half a cosine in `rounds` rounds, then constant (Loshchilov and Hutter 2017)."""
    check_positive(lr=lr)
    check_number("floor", floor, 0)
    return optax.cosine_decay_schedule(lr, _check_rounds("rounds", rounds), floor)


def cube_root(numerator: Any, w: Any = 1.0, every: float = 1) -> Schedule:
    """`numerator/(w + ⌊t / every⌋)^{1/3}`: FAFED's equation (5) with numerator ρ h, and STEM's with κ and σ² = 1."""
    check_positive(numerator=numerator, w=w)
    every = _check_rounds("every", every)
    return lambda t: jnp.asarray(numerator, float) / jnp.cbrt(jnp.asarray(w, float) + jnp.asarray(t // every, float))


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    schedule.__name__: schedule for schedule in (constant, staircase, inverse_sqrt, warmup, cosine, cube_root)
}


def is_schedule(text: Any) -> bool:
    """Whether a hyper-parameter's value is the text of a schedule: `NAME(…)`."""
    return isinstance(text, str) and text.endswith(")") and "(" in text


def parse_schedule(text: str) -> Schedule:
    """Make the schedule that `NAME(number, name=number, …)` describes; nothing but numbers is evaluated.

    Raises:
      UsageError: it is no such call, of no known schedule, or with arguments that do not fit.
    """
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        numbers = [_literal(argument) for argument in call.args]
        named = {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}
    except (ValueError, TypeError, OverflowError, SyntaxError, RecursionError, MemoryError):
        raise UsageError(f"schedule must be NAME(number, name=number, …), got '{text}'") from None
    name = call.func.id
    check_choice("schedule", name, SCHEDULES)
    try:
        return SCHEDULES[name](*numbers, **named)
    except TypeError as error:
        arguments = ", ".join(inspect.signature(SCHEDULES[name]).parameters)
        raise UsageError(f"schedule must be {name}({arguments}), got '{text}': {error}") from None


def _literal(node: ast.expr) -> float:
    value = ast.literal_eval(node)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _check_rounds(name: str, value: float) -> int:
    """A number of rounds, which a schedule's text gives as a float."""
    return check_int(name, int(value) if float(value).is_integer() else value)
