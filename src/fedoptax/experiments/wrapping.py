"""From what a user types to wrappers of uploads: `clip=1,noise_multiplier=0.5,delta=1e-5`, `topk:fraction=0.01`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedoptax.algorithm import FedAlgorithm
from fedoptax.errors import UsageError, unknown
from fedoptax.experiments.build import parse_value
from fedoptax.wrappers import with_compression, with_privacy
from fedoptax.wrappers.codecs import CODECS, Codec

WRAPPERS = ("privacy", "compress")
PRIVACY = ("clip", "noise_multiplier", "delta", "target_quantile", "clip_lr", "bit_noise", "seed")
"""The arguments of `with_privacy` that can be typed."""


def wrap_as(algorithm: FedAlgorithm, wrappers: Mapping[str, str]) -> FedAlgorithm:
    """`algorithm` with what a run's config says was wrapped around it: texts by the names of `wrap`'s arguments.

    Raises:
      UsageError: as `wrap`, or it is something else.
    """
    if not isinstance(wrappers, Mapping) or not all(isinstance(text, str) for text in wrappers.values()):
        raise UsageError(f"wrappers: {wrappers!r} given, allowed are texts by name")
    for name in wrappers:
        if name not in WRAPPERS:
            unknown("wrappers", str(name), WRAPPERS)
    return wrap(algorithm, **wrappers)


def wrap(algorithm: FedAlgorithm, privacy: str | None = None, compress: str | None = None) -> FedAlgorithm:
    """`algorithm` with privacy and compression as they were typed; None leaves it as it is.

    Args:
      algorithm: the algorithm.
      privacy: `NAME=VALUE,...`, arguments of `with_privacy`: `clip`, `noise_multiplier` and `delta` are needed;
        `seed=none` draws the noise's seed from the operating system.
      compress: the name of a codec, alone or with arguments: `sign`, `qsgd:bits=4,bucket=512`.

    Raises:
      UsageError: a text cannot be read, names what is not there, or a value is out of its range.
    """
    if privacy is not None:
        algorithm = with_privacy(algorithm, **parse_privacy(privacy))
    if compress is not None:
        algorithm = with_compression(algorithm, parse_codec(compress))
    return algorithm


def parse_privacy(text: str) -> dict[str, Any]:
    """The arguments of `with_privacy` in a text such as `clip=1.0,noise_multiplier=0.5,delta=1e-5`.

    Raises:
      UsageError: it has another form, a name is unknown, given twice, or one that is needed is missing.
    """
    given = _pairs("--privacy", text, PRIVACY)
    missing = [name for name in PRIVACY[:3] if name not in given]
    if missing:
        raise UsageError(f"--privacy: '{text}' given, {', '.join(missing)} missing; allowed is {','.join(_EXAMPLES)}")
    if given.get("seed") == "none":
        given["seed"] = None
    return given


def with_secret_seed(text: str) -> str:
    """A privacy text for a deployment, whose text goes to every node: the noise's seed is drawn where the server runs.

    Raises:
      UsageError: as `parse_privacy`, or it names a seed: whoever knows that can subtract the noise.
    """
    given = parse_privacy(text)
    if given.get("seed") is not None:
        raise UsageError(
            f"--privacy: '{text}' given, allowed is no seed (or seed=none) in a deployment: its settings go to every "
            "node, and whoever knows the seed can subtract the noise"
        )
    return text if "seed" in given else f"{text},seed=none"


def parse_codec(text: str) -> Codec:
    """The codec of a text such as `topk:fraction=0.01`.

    Raises:
      UsageError: there is no such codec, or an argument is unknown or out of its range.
    """
    name, colon, rest = text.partition(":")
    if name not in CODECS:
        unknown("--compress", name, CODECS)
    make: Callable[..., Codec] = CODECS[name]
    return make(**_pairs(f"--compress {name}", rest, tuple(inspect.signature(make).parameters)) if colon else {})


_EXAMPLES = ("clip=1.0", "noise_multiplier=0.5", "delta=1e-5")


def _pairs(option: str, text: str, names: tuple[str, ...]) -> dict[str, Any]:
    """`NAME=VALUE,NAME=VALUE` as a dictionary."""
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or not value:
            allowed = f"NAME=VALUE,... of {', '.join(names)}" if names else "no argument"
            raise UsageError(f"{option}: '{text}' given, allowed is {allowed}")
        if name not in names:
            unknown(f"{option}: argument", name, names)
        if name in given:
            raise UsageError(f"{option}: {name} given twice, allowed is once")
        given[name] = parse_value(value)
    return given
