"""Layers that need a special lowering: convolution and pooling that stay fast in compiled loops on CPU."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from fedoptax.engine.cores import cores_a_device
from fedoptax.errors import UsageError, unknown
from fedoptax.models.winograd import conv3x3, tile_size

Padding = Literal["VALID", "SAME"]
Lowering = Literal["auto", "patches", "winograd", "lax"]
LOWERINGS = ("auto", "patches", "winograd", "lax")
_PADDINGS = ("SAME", "VALID")


def conv(
    x: jax.Array,
    kernel: jax.Array,
    strides: tuple[int, int] = (1, 1),
    padding: Padding = "VALID",
    lowering: Lowering = "auto",
) -> jax.Array:
    """Two-dimensional convolution (cross-correlation, as everywhere in deep learning).

    XLA's CPU convolution is many times slower inside a `while`, `scan` or `fori_loop` body than outside, so on a
    CPU it is written as matrix multiplies: of patches, or of Winograd's transforms where these are faster. The
    choice is made when the program is lowered for a platform: one for a GPU keeps the GPU's own convolution.
    Winograd's has gradients, and gradients of gradients, but no forward-mode derivatives; in float32 its rounding
    errors are one to four times those of a direct sum.

    Args:
      x: (n, height, width, in).
      kernel: (kernel height, kernel width, in, out), of x's dtype.
      strides: along height and width, each ≥ 1.
      padding: `"VALID"`, or `"SAME"` (zeros, output of size ceil(size / stride)).
      lowering: `"patches"`, `"winograd"` (3 × 3 kernels with strides of 1), `"lax"`, or `"auto"`: on a CPU winograd
        where it is faster, else patches; `lax.conv_general_dilated` elsewhere.

    Returns:
      (n, output height, output width, out), of x's dtype.

    Raises:
      UsageError: an unknown padding or lowering, shapes that do not fit, or `"winograd"` for others than its own.
    """
    if padding not in _PADDINGS:
        unknown("padding", padding, _PADDINGS)
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[3] != kernel.shape[2]:
        raise UsageError(
            f"kernel: shape {kernel.shape} given for x of shape {x.shape}; "
            f"(height, width, in, out) for (n, height, width, in) is allowed"
        )
    pads = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    if any(size + sum(pad) < k for size, pad, k in zip(x.shape[1:3], pads, kernel.shape[:2])):
        raise UsageError(f"kernel: shape {kernel.shape} given is larger than x of shape {x.shape}")

    def by_patches(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return _conv_patches(jnp.pad(x, ((0, 0), *pads, (0, 0))), kernel, strides)

    def by_winograd(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return conv3x3(jnp.pad(x, ((0, 0), *pads, (0, 0))), kernel)

    def by_lax(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, strides, pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    if lowering == "patches":
        return by_patches(x, kernel)
    if lowering == "lax":
        return by_lax(x, kernel)
    tiled = kernel.shape[:2] == (3, 3) and strides == (1, 1)
    if lowering == "winograd":
        if not tiled:
            raise UsageError(
                f"lowering: 'winograd' given for a kernel of {kernel.shape[0]} x {kernel.shape[1]} with strides "
                f"{strides}; 3 x 3 with strides (1, 1) is allowed"
            )
        return by_winograd(x, kernel)
    if lowering == "auto":
        exact = x.dtype in (jnp.float32, jnp.float64)  # narrower types lose digits in the transforms' sums
        height, width = (size + sum(pad) - 2 for size, pad in zip(x.shape[1:3], pads))
        pays = tiled and exact and winograd_pays(x.shape[0], height, width, *kernel.shape[2:])
        by_cpu = by_winograd if pays else by_patches
        return lax.platform_dependent(x, kernel, cpu=by_cpu, default=by_lax)
    unknown("lowering", lowering, LOWERINGS)


def winograd_pays(n: int, height: int, width: int, fan_in: int, out: int) -> bool:
    """Whether a 3 × 3 convolution, n outputs of `height` × `width`, is faster by Winograd than by patches on a CPU.

    Measured by `make bench`, part `convolutions`. The transforms cost by the channel, which the multiplications saved
    must outweigh; by the weight, which tiles must share; and, as matrices of a whole axis, by the image's size. XLA
    does most of its products one after another on one core, but shares the one large product of patches out.
    """
    m = tile_size(height, width)
    tiles = n * -(-height // m) * -(-width // m)
    large = fan_in >= 20 and out >= 16 and tiles >= 64 and max(height, width) <= 3 * fan_in
    return large and cores_a_device() <= 2


def _conv_patches(x: jax.Array, kernel: jax.Array, strides: tuple[int, int]) -> jax.Array:
    """A `"VALID"` convolution: each output pixel's patch of x, side by side, times the kernel's matrix."""
    rows, columns, _, out = kernel.shape
    patches = jnp.concatenate(_shifted(x, (rows, columns), strides), axis=-1)
    n, out_h, out_w, size = patches.shape
    return (patches.reshape(-1, size) @ kernel.reshape(size, out)).reshape(n, out_h, out_w, out)


def _shifted(x: jax.Array, size: tuple[int, int], strides: tuple[int, int]) -> list[jax.Array]:
    """For each place in a window of `size`, the pixels of x that stand there: (n, output height, width, channels)."""
    (rows, columns), (down, right) = size, strides
    end_h, end_w = ((x.shape[i + 1] - size[i]) // strides[i] * strides[i] + 1 for i in (0, 1))
    return [x[:, i : i + end_h : down, j : j + end_w : right] for i in range(rows) for j in range(columns)]


def max_pool(x: jax.Array, size: int, stride: int | None = None, padding: Padding = "VALID") -> jax.Array:
    """The maximum of each `size` × `size` window.

    Windows that do not overlap are a reshape and a reduction, others the maximum of shifted slices: on CPU faster
    than a window reduction, and much faster backwards. Where several values of a window are the maximum, they
    share its gradient.

    Args:
      x: (n, height, width, channels), floating point.
      size: of the window, at least 1; for `"VALID"` at most the smaller of height and width.
      stride: from window to window, at least 1; None means `size`.
      padding: `"VALID"` crops rows and columns left over at the border; `"SAME"` fills up with −∞ (output of size
        ceil(size / stride)).

    Returns:
      (n, output height, output width, channels), of x's dtype.

    Raises:
      UsageError: an unknown padding, or `size` or `stride` is out of range.
    """
    n, height, width, channels = x.shape
    if padding not in _PADDINGS:
        unknown("padding", padding, _PADDINGS)
    if size < 1 or (padding == "VALID" and size > min(height, width)):
        raise UsageError(f"size: {size} given for x of shape {x.shape}; 1 to {min(height, width)} is allowed")
    stride = size if stride is None else stride
    if stride < 1:
        raise UsageError(f"stride: {stride} given; at least 1 is allowed")
    if padding == "VALID" and stride == size:
        h, w = height // size, width // size
        return _max_of_windows(x[:, : h * size, : w * size].reshape(n, h, size, w, size, channels))
    pads = lax.padtype_to_pads((height, width), (size, size), (stride, stride), padding)
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    return jnp.stack(_shifted(padded, (size, size), (stride, stride))).max(axis=0)


@jax.custom_jvp
def _max_of_windows(windows: jax.Array) -> jax.Array:
    """The maximum over places, of (n, height, size, width, size, channels)."""
    return windows.max(axis=(2, 4))


@_max_of_windows.defjvp
def _max_of_windows_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """As JAX's own, except that the maxima of a window are counted place by place, in one loop, and its gradient is
    divided by their number before it is spread: XLA would do both in passes over all of `windows`."""
    (windows,), (change,) = primals, tangents
    y = _max_of_windows(windows)
    size = windows.shape[2]
    ties = sum((windows[:, :, i, :, j] == y).astype(y.dtype) for i in range(size) for j in range(size))
    largest = windows == y[:, :, None, :, None]
    picked = jnp.where(largest, change, 0).sum(axis=(2, 4))
    return y, lax.optimization_barrier(picked) / ties


def flat(x: jax.Array) -> jax.Array:
    """(batch, ...) to (batch, features)."""
    return x.reshape(x.shape[0], -1)


class Conv(nnx.Module):
    """A convolution, with a bias unless `use_bias` is False.

    Args:
      in_features: channels of x.
      out_features: channels of the output.
      size: height and width of the kernel.
      strides: as in `conv`.
      padding: as in `conv`.
      lowering: as in `conv`.
      kernel_init: initializer of the kernel (size, size, in, out); by default variance 1 / fan-in.
      use_bias: whether a bias (out,) is added, 0 at first.
      rngs: where the kernel's key comes from.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        size: int,
        *,
        strides: tuple[int, int] = (1, 1),
        padding: Padding = "VALID",
        lowering: Lowering = "auto",
        kernel_init: jax.nn.initializers.Initializer | None = None,
        use_bias: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        init = jax.nn.initializers.lecun_normal() if kernel_init is None else kernel_init
        self.kernel = nnx.Param(init(rngs.params(), (size, size, in_features, out_features), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((out_features,), jnp.float32)) if use_bias else None
        self.strides, self.padding, self.lowering = strides, padding, lowering

    def __call__(self, x: jax.Array) -> jax.Array:
        """(n, height, width, in) to (n, output height, output width, out)."""
        y = conv(x, self.kernel[...], self.strides, self.padding, self.lowering)
        return y if self.bias is None else y + self.bias[...]
