"""Clients that fail in a simulation: they drop out, or their upload is late.

Who fails is a function of (seed, round, client) alone, so it is the same for every algorithm, in every engine and after
resuming. The rates are arguments of the compiled program: other rates compile nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.errors import UsageError, check_choice, check_number

COUNTS = ("participants", "dropped", "late", "rejected")
"""The history's columns of a run with faults or a robust aggregator; they add up to the cohort's size."""
Rates = dict[str, Any]  # `dropout`, `deadline`: float32 scalars; `speeds`, float32 (N,): seconds of a client's step


@dataclass(frozen=True)
class Faults:
    """How often clients fail.

    A client that drops out never answers. Time is virtual: each local step of client i takes
    `step_seconds` · exp(`speed_spread` · zᵢ) seconds, with zᵢ standard normal, and a client whose steps take longer
    than `deadline` is late: its upload does not count.

    Attributes:
      dropout: the probability in [0, 1) that a client of a round's cohort drops out.
      deadline: virtual seconds that a round waits for uploads; None waits for all, and no time is counted.
      step_seconds: virtual seconds of a local step of the median client.
      speed_spread: standard deviation over clients of the log of a client's speed.

    Raises:
      UsageError: a number is outside its range.
    """

    dropout: float = 0.0
    deadline: float | None = None
    step_seconds: float = 1.0
    speed_spread: float = 0.5

    def __post_init__(self) -> None:
        check_number("faults.dropout", self.dropout, 0, 1)
        check_number("faults.speed_spread", self.speed_spread, 0)
        check_number("faults.step_seconds", self.step_seconds, 0, open_low=True)
        if self.deadline is not None:
            check_number("faults.deadline", self.deadline, 0, open_low=True)

    def rates(self, speeds: np.ndarray) -> Rates:
        """The numbers for the compiled program, with the seconds of steps; no deadline is an infinite one."""
        numbers = {"dropout": self.dropout, "deadline": math.inf if self.deadline is None else self.deadline}
        return {name: np.float32(n) for name, n in numbers.items()} | {"speeds": speeds * np.float32(self.step_seconds)}


class Outcome(NamedTuple):
    """What happens to the clients of a cohort in one round: bool (S,), bool (S,), float32 (S,).

    A `late` client did not drop out; `seconds` is the time each client takes, whether it drops out or not.
    """

    dropped: jax.Array
    late: jax.Array
    seconds: jax.Array

    @property
    def answers(self) -> jax.Array:
        """Whether the client's upload reaches the server in time."""
        return ~(self.dropped | self.late)


@jax.jit
def sample_outcomes(rates: Rates, key: jax.Array, round: Any, cohort: jax.Array, steps: jax.Array) -> Outcome:
    """Sample what happens to a cohort, int32 (S,), whose clients take so many local steps, int32 (S,), in a round."""
    round_key = jax.random.fold_in(jax.random.fold_in(key, 4), round)

    def draw(i: jax.Array) -> jax.Array:
        uniform_key, _ = jax.random.split(jax.random.fold_in(round_key, i))
        return jax.random.uniform(uniform_key, (), jnp.float32)

    uniform = jax.vmap(draw)(cohort)
    seconds = steps.astype(jnp.float32) * jnp.asarray(rates["speeds"])[cohort]
    dropped = uniform < rates["dropout"]
    return Outcome(dropped, ~dropped & (seconds > rates["deadline"]), seconds)


@jax.jit
def sample_speeds(key: jax.Array, clients: jax.Array, spread: Any) -> jax.Array:
    """Return exp(spread · zᵢ), zᵢ standard normal, of clients, int (S,): float32 (S,), each client's own."""
    speed_key = jax.random.fold_in(key, 3)
    z = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(speed_key, i), (), jnp.float32))(clients)
    return jnp.exp(spread * z)


def virtual_seconds(rates: Rates, outcome: Outcome) -> jax.Array:
    """The duration of a round: until the deadline if a client is late, else until the slowest answer."""
    slowest = jnp.max(jnp.where(outcome.answers, outcome.seconds, 0))
    return jnp.where(jnp.any(outcome.late), rates["deadline"], slowest)


def as_faults(options: Faults | Mapping[str, Any] | None) -> Faults | None:
    """Return `options`, or the faults with these values by name, as a run's config holds them."""
    if options is None or isinstance(options, Faults):
        return options
    if not isinstance(options, Mapping):
        raise UsageError(f"faults must be a fedoptax.Faults or its values by name, got {options!r}")
    for name in options:
        check_choice("faults", name, [field.name for field in fields(Faults)])
    return Faults(**options)
