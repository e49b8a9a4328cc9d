"""3 × 3 convolution by Winograd's minimal filtering: 2.25 times fewer multiplications, and less memory than patches.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), F(2 × 2, 3 × 3), equations 8 to 12. An
output tile of 2 × 2 needs 4 × 4 pixels. Along each axis, with d the 4 pixels, g the 3 weights and y the 2 outputs:

    y = Aᵀ [(G g) ⊙ (Bᵀ d)]

so pixels and weights are transformed (by additions and halves only), multiplied place by place, which is one matrix
multiply over channels for each of the 16 places, and transformed back. All of it is linear, so the gradients are the
transposed steps in reverse, written out here: what automatic differentiation makes of strided slices is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
Grid = Sequence[Sequence[jax.Array]]  # places along height, then along width
Residuals = tuple[Grid, jax.Array]  # the transformed pixels, 4 x 4 of (tiles, in), and the kernel
T = TypeVar("T")


def conv3x3(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A `"VALID"` convolution with strides of 1.

    Args:
      x: (n, height, width, in), height and width at least 3.
      kernel: (3, 3, in, out), of x's dtype.

    Returns:
      (n, height − 2, width − 2, out), of x's dtype; in float32 within a few roundings of the direct sum.
    """
    _, height, width, _ = x.shape
    even = jnp.pad(x, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)))  # whole tiles
    return _conv_even(even, kernel)[:, : height - 2, : width - 2]


@jax.custom_vjp
def _conv_even(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return _forward(x, kernel)[0]


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Residuals]:
    n, height, width, _ = x.shape
    pixels = _written(_each(_rows, _over(_bt, _over(_bt, _windows(x)))))
    products = _written(_each(jnp.matmul, pixels, _weights(kernel)))
    tiles = _each(lambda one: one.reshape(n, height // 2 - 1, width // 2 - 1, -1), products)
    return _written(_side_by_side(_over(_at, _over(_at, tiles)))), (pixels, kernel)


def _backward(saved: Residuals, y_bar: jax.Array) -> tuple[jax.Array, jax.Array]:
    pixels, kernel = saved
    n, height, width, _ = y_bar.shape
    corners = [[y_bar[:, i::2, j::2] for j in (0, 1)] for i in (0, 1)]
    products_bar = _written(_each(_rows, _over(_a, _over(_a, corners))))
    weights_bar = _each(lambda one, bar: one.T @ bar, pixels, products_bar)
    pixels_bar = _written(_each(lambda bar, weight: bar @ weight.T, products_bar, _weights(kernel)))
    tiles_bar = _each(lambda one: one.reshape(n, height // 2, width // 2, -1), pixels_bar)
    across = _written([_overlapped(_b(*row), axis=2) for row in tiles_bar])
    g = _G.astype(kernel.dtype)
    kernel_bar = jnp.einsum("ai,bj,abcd->ijcd", g, g, jnp.stack([jnp.stack(row) for row in weights_bar]))
    return _overlapped(_b(*across), axis=1), kernel_bar


_conv_even.defvjp(_forward, _backward)


def _written(arrays: T) -> T:
    """`arrays`, in memory: else each that reads them would compute the sums that they are of again."""
    return lax.optimization_barrier(arrays)


def _each(function: Callable[..., jax.Array], *grids: Grid | jax.Array) -> list[list[jax.Array]]:
    """`function` of what stands at the same place of the grids. 16 matrix multiplies of 2 dimensions, not one of 3:
    their operands need not be put side by side."""
    return [[function(*places) for places in zip(*rows)] for rows in zip(*grids)]


def _rows(place: jax.Array) -> jax.Array:
    """(tiles, channels)."""
    return place.reshape(-1, place.shape[-1])


def _over(transform: Callable[..., Sequence[jax.Array]], grid: Grid | jax.Array) -> list[tuple[jax.Array, ...]]:
    """`transform` over the second index of a grid, which then comes first: twice transforms both, in their order."""
    return list(zip(*(transform(*row) for row in grid)))


def _bt(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> tuple[jax.Array, ...]:
    """Bᵀ, of four pixels."""
    return a - c, b + c, c - b, b - d


def _b(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> tuple[jax.Array, ...]:
    return a, b - c + d, b + c - a, -d


def _at(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> tuple[jax.Array, ...]:
    """Aᵀ, of four products."""
    return a + b + c, b - c - d


def _a(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
    return a, a + b, a - b, -b


def _weights(kernel: jax.Array) -> jax.Array:
    """G g Gᵀ, (4, 4, in, out)."""
    g = _G.astype(kernel.dtype)
    return jnp.einsum("ai,bj,ijcd->abcd", g, g, kernel)


def _windows(x: jax.Array) -> Grid:
    """For each of the 4 × 4 places of a tile, every tile's pixel there: (n, tiles down, tiles across, channels)."""
    height, width = x.shape[1:3]
    return [[x[:, i : height - 3 + i : 2, j : width - 3 + j : 2] for j in range(4)] for i in range(4)]


def _side_by_side(grid: Grid) -> jax.Array:
    """Tiles of 2 × 2 places as one image."""
    tiles = jnp.stack([jnp.stack(row, axis=3) for row in grid], axis=2)
    n, down, rows, across, columns, channels = tiles.shape
    return tiles.reshape(n, down * rows, across * columns, channels)


def _overlapped(places: Sequence[jax.Array], axis: int) -> jax.Array:
    """The sum of tiles of four places along `axis`, of which each overlaps the next by two."""

    def placed(one: jax.Array, later: bool) -> jax.Array:
        pads = [(0, 0)] * one.ndim
        pads[axis] = (1, 0) if later else (0, 1)
        return jnp.pad(one, pads)

    pairs = [placed(places[i], later=False) + placed(places[i + 2], later=True) for i in (0, 1)]
    both = jnp.stack(pairs, axis=axis + 1)
    return both.reshape(*both.shape[:axis], -1, *both.shape[axis + 2 :])
