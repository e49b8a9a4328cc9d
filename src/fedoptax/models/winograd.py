"""3 × 3 convolution by Winograd's minimal filtering: up to 4 times fewer multiplications, all of them matrix products.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), section 4. An output tile of m × m needs
(m + 2) × (m + 2) pixels. Along each axis, with d the m + 2 pixels, g the 3 weights and y the m outputs:

    y = Aᵀ [(G g) ⊙ (Bᵀ d)]

so pixels and weights are transformed, multiplied place by place, which is one matrix multiply over channels for each
of the (m + 2)² places, and transformed back. Transforms are matrix products too: XLA's loops over strided pixels are
slower on a CPU. Bᵀ stands on the diagonal of a matrix for a whole axis, which overlaps and adds up tiles at no cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Where the two polynomials are multiplied (Cook and Toom), by m. For m = 4 each has its inverse beside it: outputs and
# gradients err by half of what they do with 0, ±1, ±2.
POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2.0), -math.sqrt(2.0))}


class Transforms(NamedTuple):
    """The matrices of one m, float64: `weights` G (m + 2, 3), `pixels` Bᵀ (m + 2, m + 2), `outputs` Aᵀ (m, m + 2)."""

    weights: np.ndarray
    pixels: np.ndarray
    outputs: np.ndarray


@cache
def transforms(m: int) -> Transforms:
    """Those of `POINTS[m]` and of infinity, the last place. Correlating is the transpose of multiplying polynomials."""
    points = POINTS[m]
    others = [[q for q in points if q != p] for p in points]
    norms = [math.prod(p - q for q in rest) for p, rest in zip(points, others)]

    def powers(degree: int) -> np.ndarray:
        infinity = np.eye(degree)[-1:]
        return np.concatenate([np.vander(points, degree, increasing=True), infinity])

    lagrange = np.zeros((m + 2, m + 2))
    for row, roots in zip(lagrange, [*others, points]):
        row[: len(roots) + 1] = np.poly(roots)[::-1]
    return Transforms(powers(3) / np.array([*norms, 1.0])[:, None], lagrange, powers(m).T)


def conv3x3(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A `"VALID"` convolution with strides of 1.

    Args:
      x: (n, height, width, in), height and width at least 3.
      kernel: (3, 3, in, out), of x's dtype.

    Returns:
      (n, height − 2, width − 2, out), of x's dtype; in float32 some 6 · 10⁻⁷ of its size from the exact sum (root mean
      squares), where a direct sum is 3 · 10⁻⁷ from it.
    """
    _, height, width, _ = x.shape
    m = tile_size(height - 2, width - 2)
    whole = jnp.pad(x, ((0, 0), (0, -(height - 2) % m), (0, -(width - 2) % m), (0, 0)))
    return _conv_whole(whole, kernel, m)[:, : height - 2, : width - 2]


def tile_size(height: int, width: int) -> int:
    """The m of fewest products for outputs of `height` × `width`: small images would be padded to large tiles."""
    return min(POINTS, key=lambda m: (m + 2) ** 2 * -(-height // m) * -(-width // m))


def _conv_whole(x: jax.Array, kernel: jax.Array, m: int) -> jax.Array:
    """The convolution of images of whole tiles."""
    n, height, width, channels = x.shape
    places, down, across = m + 2, (height - 2) // m, (width - 2) // m
    matrices = transforms(m)
    rows = _times(_along(matrices.pixels, down, m), lax.optimization_barrier(x.reshape(n, height, -1)))
    both = _times(_along(matrices.pixels, across, m), rows.reshape(-1, width, channels))
    tiles = both.reshape(n, places, down, places, across, channels).transpose(1, 3, 0, 2, 4, 5)
    pixels = lax.optimization_barrier(tiles).reshape(places**2, -1, channels)
    weights = _times(_twice(matrices.weights), kernel.reshape(1, 9, -1)).reshape(places**2, channels, -1)
    products = (pixels @ weights).reshape(1, places**2, -1)
    outputs = _times(_twice(matrices.outputs), products)
    return _untiled(outputs, (n, height - 2, width - 2, kernel.shape[3]), m)


def _twice(matrix: np.ndarray) -> np.ndarray:
    """What transforms both axes at once: the Kronecker product."""
    return np.kron(matrix, matrix)


def _along(matrix: np.ndarray, tiles: int, step: int) -> np.ndarray:
    """`matrix` at every tile of an axis, each `step` after the last: (places · tiles, pixels), places first."""
    places, width = matrix.shape
    whole = np.zeros((places, tiles, (tiles - 1) * step + width))
    for tile in range(tiles):
        whole[:, tile, tile * step : tile * step + width] = matrix
    return whole.reshape(places * tiles, -1)


def _times(matrix: np.ndarray, x: jax.Array) -> jax.Array:
    """`matrix` (p, q) times each of x (batch, q, columns).

    Its gradient is written out because JAX's would multiply by `matrix` as a transposed operand, for which XLA's CPU
    backend has a path that takes twice as long.
    """

    def product(matrix: np.ndarray, x: jax.Array) -> jax.Array:
        constant = jnp.asarray(matrix, x.dtype)
        if len(x) == 1:
            return (constant @ x[0])[None]
        # behind a barrier a loop repeats it once, not at every step
        return lax.optimization_barrier(jnp.broadcast_to(constant, (len(x), *constant.shape))) @ x

    return _linear(lambda x: product(matrix, x), lambda y_bar: product(matrix.T, y_bar))(x)


def _untiled(outputs: jax.Array, shape: tuple[int, int, int, int], m: int) -> jax.Array:
    """Outputs (1, m², n · tiles · out), place by place, as images of `shape` (n, height, width, out)."""
    n, height, width, out = shape

    def images(outputs: jax.Array) -> jax.Array:
        tiles = outputs.reshape(m, m, n, height // m, width // m, out)
        return tiles.transpose(2, 3, 0, 4, 1, 5).reshape(shape)

    def places(y_bar: jax.Array) -> jax.Array:  # slices are copied faster than a transposed array is
        written = lax.optimization_barrier(y_bar)
        slices = [written[:, i::m, j::m] for i in range(m) for j in range(m)]
        return lax.optimization_barrier(jnp.stack(slices)).reshape(outputs.shape)

    return _linear(images, places)(outputs)


Map = Callable[[jax.Array], jax.Array]


def _linear(function: Map, transpose: Map) -> Map:
    """A linear `function` whose gradient is `transpose`, and the other way round."""
    mapped = jax.custom_vjp(function)
    mapped.defvjp(lambda x: (function(x), None), lambda _, y_bar: (_linear(transpose, function)(y_bar),))
    return mapped
