"""3 × 3 convolution by Winograd's minimal filtering: up to 4 times fewer multiplications, all of them matrix products.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), section 4. An output tile of m × m needs
(m + 2) × (m + 2) pixels. Along each axis, with d the m + 2 pixels, g the 3 weights and y the m outputs:

    y = Aᵀ [(G g) ⊙ (Bᵀ d)]

so pixels and weights are transformed, multiplied place by place, which is one matrix multiply over channels for each
of the (m + 2)² places, and transformed back. Transforms are matrix products too: XLA's loops over strided pixels are
slower on a CPU. Bᵀ stands on the diagonal of a matrix for a whole axis, which overlaps and adds up tiles at no cost.
"""

import math
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Where the two polynomials are multiplied (Cook and Toom), by m. For m = 4 each has its inverse beside it: outputs and
# gradients err by half of what they do with 0, ±1, ±2.
POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2.0), -math.sqrt(2.0))}


def transforms(m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """G (m + 2, 3), Bᵀ (m + 2, m + 2) and Aᵀ (m, m + 2), float64, for the points `POINTS[m]` and infinity, the last.

    Correlation is the transpose of the multiplication of polynomials.
    """
    points = POINTS[m]
    others = [[q for q in points if q != p] for p in points]
    norms = [math.prod(p - q for q in rest) for p, rest in zip(points, others)]

    def powers(degree: int) -> np.ndarray:
        return np.concatenate([np.vander(points, degree, increasing=True), np.eye(degree)[-1:]])

    lagrange = np.zeros((m + 2, m + 2))
    for row, roots in zip(lagrange, [*others, points]):
        row[: len(roots) + 1] = np.poly(roots)[::-1]
    return powers(3) / np.array([*norms, 1.0])[:, None], lagrange, powers(m).T


def is_faster(n: int, height: int, width: int, fan_in: int, out: int) -> bool:
    """Whether a 3 × 3 convolution, n outputs of `height` × `width`, is faster by Winograd than by patches on a CPU.

    Measured: 0.57 of a round of `cnn` (`benchmarks/bench/layers.py`). The transforms cost by the channel, which the
    multiplications saved must outweigh; by the weight, which tiles must share; and by the image's size.
    """
    m = tile_size(height, width)
    tiles = n * -(-height // m) * -(-width // m)
    return fan_in >= 20 and out >= 16 and tiles >= 64 and max(height, width) <= 3 * fan_in


def has_few_cores() -> bool:
    """Whether at most two cores work on a device's program: XLA shares the product of patches out, but not these."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores <= 2 or jax.local_device_count() > 1


def conv3x3(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Compute a `"VALID"` convolution of x (n, height, width, in) with a kernel (3, 3, in, out) of its dtype.

    In float32 the result is some 6 · 10⁻⁷ of its size from the exact sum (root mean squares), a direct sum 3 · 10⁻⁷.
    """
    n, height, width, channels = x.shape
    m = tile_size(height - 2, width - 2)
    places, down, across = m + 2, -(-(height - 2) // m), -(-(width - 2) // m)
    x = jnp.pad(x, ((0, 0), (0, down * m + 2 - height), (0, across * m + 2 - width), (0, 0)))  # whole tiles
    of_weights, of_pixels, of_outputs = transforms(m)
    rows = _multiply(_repeat_along(of_pixels, down, m), lax.optimization_barrier(x.reshape(n, down * m + 2, -1)))
    both = _multiply(_repeat_along(of_pixels, across, m), rows.reshape(-1, across * m + 2, channels))
    tiles = both.reshape(n, places, down, places, across, channels).transpose(1, 3, 0, 2, 4, 5)
    pixels = lax.optimization_barrier(tiles).reshape(places**2, -1, channels)
    # Kronecker products transform both axes at once
    weights = _multiply(np.kron(of_weights, of_weights), kernel.reshape(1, 9, -1)).reshape(places**2, channels, -1)
    products = (pixels @ weights).reshape(1, places**2, -1)
    outputs = _multiply(np.kron(of_outputs, of_outputs), products).reshape(m, m, n, down, across, -1)
    return _join_tiles(outputs)[:, : height - 2, : width - 2]


@jax.custom_vjp
def _join_tiles(outputs: jax.Array) -> jax.Array:
    """The images (n, down · m, across · m, out) of outputs (m, m, n, down, across, out), place by place."""
    m, _, n, down, across, out = outputs.shape
    return outputs.transpose(2, 3, 0, 4, 1, 5).reshape(n, down * m, across * m, out)


def _split_tiles(outputs: jax.Array, images: jax.Array) -> tuple[jax.Array]:
    """Copy slices, which is faster than a transposed array: 0.94 of a round of `cnn`."""
    m, images = len(outputs), lax.optimization_barrier(images)
    slices = [images[:, i::m, j::m] for i in range(m) for j in range(m)]
    return (lax.optimization_barrier(jnp.stack(slices)).reshape(outputs.shape),)


_join_tiles.defvjp(lambda outputs: (_join_tiles(outputs), outputs), _split_tiles)


def tile_size(height: int, width: int) -> int:
    """The m of fewest products for outputs of `height` × `width`: small images would be padded to large tiles."""
    return min(POINTS, key=lambda m: (m + 2) ** 2 * -(-height // m) * -(-width // m))


def _repeat_along(matrix: np.ndarray, tiles: int, step: int) -> np.ndarray:
    """`matrix` at every tile of an axis, each `step` after the last: (places · tiles, pixels), places first."""
    places, width = matrix.shape
    repeated = np.zeros((places, tiles, (tiles - 1) * step + width))
    for tile in range(tiles):
        repeated[:, tile, tile * step : tile * step + width] = matrix
    return repeated.reshape(places * tiles, -1)


def _multiply(matrix: np.ndarray, x: jax.Array) -> jax.Array:
    """`matrix` (p, q) times each of x (batch, q, columns).

    Its gradient is written out because JAX's would multiply by `matrix` as a transposed operand, for which XLA's CPU
    backend has a path that takes twice as long (1.08 of the EMNIST CNN's round).
    """

    @jax.custom_vjp
    def product(x: jax.Array) -> jax.Array:
        constant = jnp.asarray(matrix, x.dtype)
        if len(x) == 1:
            return (constant @ x[0])[None]
        # behind a barrier it is repeated once for a compiled loop, not at every step: 0.97 of the EMNIST CNN's round
        return lax.optimization_barrier(jnp.broadcast_to(constant, (len(x), *constant.shape))) @ x

    product.defvjp(lambda x: (product(x), None), lambda _, y_bar: (_multiply(matrix.T, y_bar),))
    return product(x)
