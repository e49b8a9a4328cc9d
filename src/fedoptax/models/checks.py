"""Arguments that the models share, checked before anything is built."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedoptax.errors import UsageError


def check_input(input_shape: Sequence[int], num_classes: int, smallest: int) -> tuple[int, int, int]:
    """The input's shape, when it and the number of classes are allowed.

    Args:
      input_shape: of one example.
      num_classes: at least 2.
      smallest: height and width that an image must have at least; 1 allows any shape, given back flattened.

    Raises:
      UsageError: an argument is out of range.
    """
    shape = tuple(input_shape)
    if num_classes < 2:
        raise UsageError(f"num_classes: {num_classes} given; at least 2 is allowed")
    if not shape or min(shape) < 1:
        raise UsageError(f"input_shape: {shape} given; at least one dimension, each at least 1, is allowed")
    if smallest == 1:
        return (math.prod(shape), 1, 1)
    if len(shape) != 3 or min(shape[:2]) < smallest:
        raise UsageError(
            f"input_shape: {shape} given; (height, width, channels) with height and width at least "
            f"{smallest} is allowed"
        )
    return shape[0], shape[1], shape[2]


def check_rate(dropout: float) -> None:
    """Raises a `UsageError` unless `dropout` is a probability less than 1."""
    if not 0.0 <= dropout < 1.0:
        raise UsageError(f"dropout: {dropout} given; from 0 to less than 1 is allowed")


def check_least(name: str, value: int, least: int) -> None:
    """Raises a `UsageError` if the argument `name` is less than `least`."""
    if value < least:
        raise UsageError(f"{name}: {value} given; at least {least} is allowed")


def check_units(name: str, sizes: Sequence[int], layers: int = 0) -> None:
    """Raises a `UsageError` unless `sizes` names at least `layers` layers, each of at least 1 unit."""
    if len(sizes) < layers or any(units < 1 for units in sizes):
        number = f"at least {layers} layers" if layers else "layers"
        raise UsageError(f"{name}: {tuple(sizes)} given; {number} of at least 1 unit are allowed")
