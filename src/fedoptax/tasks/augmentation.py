"""What is done to images on their way to the model, inside the compiled round.

The CIFAR preprocessing in the experiments of "Adaptive Federated Optimization" (Reddi et al. 2021): a random crop of
24×24 and a random horizontal flip in training, the central crop in evaluation, every image standardised by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

Augmentation = Callable[[jax.Array, jax.Array | None], jax.Array]

CROP = 24


def cropped_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(height, width, channels) after the crop."""
    return (CROP, CROP, *shape[2:])


def crop(x: jax.Array, key: jax.Array | None) -> jax.Array:
    """Crops, flips (in training only: with a key) and standardises.

    Args:
      x: (n, height, width, channels), height and width at least 24.
      key: of the offsets and the flips of each image; None takes the centre.

    Returns:
      (n, 24, 24, channels).
    """
    rows, columns = x.shape[1] - CROP, x.shape[2] - CROP
    if key is None:
        x = x[:, rows // 2 : rows // 2 + CROP, columns // 2 : columns // 2 + CROP]
    else:
        x = _random_crop(x, key, rows, columns)
    return standardized(x)


def standardized(x: jax.Array) -> jax.Array:
    """Every image to mean 0 and deviation 1; the deviation is at least 1/√(numbers in an image), for a blank one."""
    axes = (1, 2, 3)
    least = jnp.asarray(1 / math.sqrt(math.prod(x.shape[1:])), x.dtype)
    mean, deviation = jnp.mean(x, axes, keepdims=True), jnp.std(x, axes, keepdims=True)
    return (x - mean) / jnp.maximum(deviation, least)


def _random_crop(x: jax.Array, key: jax.Array, rows: int, columns: int) -> jax.Array:
    keys, n = jax.random.split(key, 3), x.shape[0]
    top = jax.random.randint(keys[0], (n,), 0, rows + 1)
    left = jax.random.randint(keys[1], (n,), 0, columns + 1)
    flip = jax.random.bernoulli(keys[2], 0.5, (n, 1, 1, 1))

    def one(image: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (i, j, 0), (CROP, CROP, image.shape[2]))

    cropped = jax.vmap(one)(x, top, left)
    return jnp.where(flip, cropped[:, :, ::-1], cropped)


AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    "crop": crop,
    "standardize": lambda x, key: standardized(x),
}
"""`load_task(augment=...)`: nothing, the papers' crop and flip, or only each image standardised."""
