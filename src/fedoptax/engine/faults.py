"""Clients that fail in a simulation: they drop out, come too late, or send what they should not.

Who fails, and how, is a function of (seed, round, client) alone, so it is the same for every algorithm, in every engine
and after resuming. The rates are arguments of the compiled program: other rates compile nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax._tree import on_device
from fedoptax.algorithm import Tree
from fedoptax.errors import UsageError, unknown

COUNTS = ("participants", "dropped", "late", "rejected")
"""The history's columns of a run with faults or a robust aggregator; they add up to the cohort's size."""


@dataclass(frozen=True)
class Faults:
    """How often clients fail; every rate is a probability for each client of a cohort in each round.

    A client that drops out fails before it answers. Time is virtual: a local step of client i in round r takes
    `step_seconds` · exp(`speed_spread` · zᵢ + `jitter` · zᵢᵣ) seconds, with zᵢ (the client's for good) and zᵢᵣ (of the
    round) standard normal, and a client whose steps take longer than `deadline` is late: its upload does not count.

    Attributes:
      dropout: rate of clients that fail before they answer.
      deadline: virtual seconds that a round waits for uploads; None waits for all, and no time is counted.
      step_seconds: virtual seconds of a local step of the median client.
      speed_spread: standard deviation of the log of a client's speed over clients.
      jitter: standard deviation of the log of a client's speed over rounds.
      nonfinite: rate of uploads, and their losses, that are NaN.
      scaled: rate of uploads that are multiplied by `scale`.
      scale: any number; a negative one turns an update against its direction.

    Raises:
      UsageError: a number is outside its range.
    """

    dropout: float = 0.0
    deadline: float | None = None
    step_seconds: float = 1.0
    speed_spread: float = 0.5
    jitter: float = 0.1
    nonfinite: float = 0.0
    scaled: float = 0.0
    scale: float = -10.0

    def __post_init__(self) -> None:
        for name in ("dropout", "nonfinite", "scaled"):
            self._check(name, 0.0, 1.0, "a number from 0 to 1")
        for name in ("speed_spread", "jitter"):
            self._check(name, 0.0, math.inf, "a number >= 0")
        self._check("scale", -math.inf, math.inf, "a number")
        smallest = math.ulp(0.0)
        self._check("step_seconds", smallest, math.inf, "a number > 0")
        if self.deadline is not None:
            self._check("deadline", smallest, math.inf, "a number > 0")

    def rates(self) -> Rates:
        """The numbers as the compiled program takes them."""
        values = asdict(self) | {"deadline": math.inf if self.deadline is None else self.deadline}
        return Rates(**on_device({name: np.float32(value) for name, value in values.items()}))

    def _check(self, name: str, low: float, high: float, allowed: str) -> None:
        value = getattr(self, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and low <= value <= high):
            raise UsageError(f"faults: {name}={value!r} given, allowed is {allowed}")


class Rates(NamedTuple):
    """`Faults` as scalars on the device; without a deadline it is infinite."""

    dropout: jax.Array
    deadline: jax.Array
    step_seconds: jax.Array
    speed_spread: jax.Array
    jitter: jax.Array
    nonfinite: jax.Array
    scaled: jax.Array
    scale: jax.Array


class Fate(NamedTuple):
    """What befalls the clients of a cohort in one round: bool (S,) each, `seconds` float32 (S,).

    Who is `late` did not drop out; `seconds` is how long each client takes, whatever befalls it.
    """

    dropped: jax.Array
    late: jax.Array
    nonfinite: jax.Array
    scaled: jax.Array
    seconds: jax.Array

    @property
    def answers(self) -> jax.Array:
        """Whose upload reaches the server in time."""
        return ~(self.dropped | self.late)


@jax.jit
def fate_of_round(rates: Rates, key: jax.Array, round: jax.Array | int, cohort: jax.Array, steps: jax.Array) -> Fate:
    """What befalls a cohort.

    Args:
      rates: how often.
      key: of the experiment.
      round: 0, 1, ….
      cohort: numbers of clients, int32 (S,).
      steps: local steps of each in this round, int32 (S,).
    """
    speed_key = jax.random.fold_in(key, 3)
    fate_key = jax.random.fold_in(jax.random.fold_in(key, 4), round)

    def draw(i: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Three uniform numbers, the client's zᵢ and the round's zᵢᵣ."""
        uniform_key, jitter_key = jax.random.split(jax.random.fold_in(fate_key, i))
        speed = jax.random.normal(jax.random.fold_in(speed_key, i), (), jnp.float32)
        return (
            jax.random.uniform(uniform_key, (3,), jnp.float32),
            speed,
            jax.random.normal(jitter_key, (), jnp.float32),
        )

    uniform, speed, jitter = jax.vmap(draw)(cohort)
    a_step = rates.step_seconds * jnp.exp(rates.speed_spread * speed + rates.jitter * jitter)
    seconds = steps.astype(jnp.float32) * a_step
    dropped = uniform[:, 0] < rates.dropout
    late = ~dropped & (seconds > rates.deadline)
    return Fate(dropped, late, uniform[:, 1] < rates.nonfinite, uniform[:, 2] < rates.scaled, seconds)


def virtual_seconds(rates: Rates, fate: Fate) -> jax.Array:
    """How long the round took: until the deadline if somebody is late, else until the slowest answer."""
    slowest = jnp.max(jnp.where(fate.answers, fate.seconds, 0))
    return jnp.where(jnp.any(fate.late), rates.deadline, slowest)


def spoil(
    upload: Tree, loss: jax.Array, nonfinite: jax.Array, scaled: jax.Array, scale: jax.Array
) -> tuple[Tree, jax.Array]:
    """What arrives of one client's upload, as sent, and loss; integer leaves (counters, codes) arrive as they are."""

    def leaf(u: jax.Array) -> jax.Array:
        if not jnp.issubdtype(u.dtype, jnp.floating):
            return u
        u = jnp.where(scaled, scale.astype(u.dtype) * u, u)
        return jnp.where(nonfinite, jnp.asarray(jnp.nan, u.dtype), u)

    return jax.tree.map(leaf, upload), jnp.where(nonfinite, jnp.nan, loss)


def as_faults(given: Faults | Mapping[str, Any] | None) -> Faults | None:
    """`given`, or the faults with these values by name, as a run's config holds them.

    Raises:
      UsageError: an unknown name, or a value outside its range.
    """
    if given is None or isinstance(given, Faults):
        return given
    if not isinstance(given, Mapping):
        raise UsageError(f"faults: {given!r} given, allowed is fedoptax.Faults(...)")
    known = [f.name for f in fields(Faults)]
    for name in given:
        if name not in known:
            unknown("faults", str(name), known)
    return Faults(**given)


def parse_faults(settings: Iterable[str]) -> dict[str, Any] | None:
    """`NAME=VALUE` settings of the command line as values by name, checked; None if there are none.

    Raises:
      UsageError: no `=`, an unknown name, or a value outside its range.
    """
    from fedoptax.experiments.build import parse_value

    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name or not text:
            raise UsageError(f"--fault: '{setting}' given, allowed is NAME=VALUE, such as dropout=0.3")
        values[name] = parse_value(text)
    as_faults(values)
    return values or None
