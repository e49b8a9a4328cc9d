"""Layers that stay fast in compiled loops on a CPU, with the usual numbers: convolution, pooling, dense, group norm.

`benchmarks/bench/layers.py` measures what each special form saves of a round.
"""

from functools import partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.nn.initializers import Initializer, lecun_normal

from fedoptax.errors import UsageError, check_choice, check_int
from fedoptax.models.convolution import Padding, conv, shifted

Arrays = tuple[jax.Array, ...]
NARROW = 64
"""Columns of a dense kernel up to which its gradient is faster transposed (784 x 10: 0.34 of the time, x 62: 0.9)."""
FEW = 20
"""Channels of a convolution up to which it is faster pooled at once (10: 0.5 of the time, 20: 0.7, 32: 1.5)."""


def conv_and_pool(x: jax.Array, kernel: jax.Array, padding: Padding = "VALID") -> jax.Array:
    """`conv`, then `max_pool` of 2 × 2; on a CPU both at once for a kernel of few output channels.

    A patch of the windows' four pixels times four shifted kernels is a product with four times the columns and a
    quarter of the rows, which takes half the time: a step of FAFED's Fashion-MNIST CNN 0.54 (one core).

    Arguments and errors are those of `conv` and `max_pool`. Returns (n, output height // 2, output width // 2, out).
    """

    def separate(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return max_pool(conv(x, kernel, padding=padding), 2)

    def together(x: jax.Array, kernel: jax.Array) -> jax.Array:
        pads = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], (1, 1), padding)
        return _conv_and_pool_patches(jnp.pad(x, ((0, 0), *pads, (0, 0))), kernel)

    if kernel.shape[-1] > FEW:
        return separate(x, kernel)
    jax.eval_shape(separate, x, kernel)  # raises on wrong arguments
    return lax.platform_dependent(x, kernel, cpu=together, default=separate)


def _conv_and_pool_patches(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A `"VALID"` convolution and 2 × 2 pool by patches that are taken in pairs of columns."""
    rows, columns, channels, out = kernel.shape
    n, height, width, _ = x.shape
    out_h, out_w, pairs = (height - rows + 1) // 2, (width - columns + 1) // 2, columns // 2 + 1
    shifts = [((i, 1 - i), (j, 2 * pairs - columns - j), (0, 0), (0, 0)) for i in (0, 1) for j in (0, 1)]
    kernels = jnp.stack([jnp.pad(kernel, shift) for shift in shifts], axis=3).reshape(-1, 4 * out)
    even = 2 * (out_w + pairs - 1)
    x = jnp.pad(x, ((0, 0), (0, 0), (0, max(0, even - width)), (0, 0)))[:, :, :even]
    x = x.reshape(n, height, even // 2, 2 * channels)
    places = [(i, j) for i in range(rows + 1) for j in range(pairs)]
    patches = jnp.concatenate([x[:, i : i + 2 * out_h - 1 : 2, j : j + out_w] for i, j in places], axis=-1)
    return (patches.reshape(-1, kernels.shape[0]) @ kernels).reshape(n, out_h, out_w, 4, out).max(axis=3)


def max_pool(x: jax.Array, size: int, stride: int | None = None, padding: Padding = "VALID") -> jax.Array:
    """The maximum of each `size` × `size` window of x (n, height, width, channels), in x's floating-point dtype.

    Windows that do not overlap are a reshape and a reduction, others the maximum of shifted slices: XLA's window
    reduction is slower on a CPU, and much slower backwards. Where several values of a window are the maximum, they
    share its gradient.

    `stride` is the step from window to window, None for `size`. `"VALID"` crops rows and columns left over at the
    border, and takes no window larger than x; `"SAME"` fills up with −∞ (output of size ceil(size / stride)). An
    argument out of range is a `UsageError`.
    """
    n, height, width, channels = x.shape
    check_choice("padding", padding, get_args(Padding))
    check_int("size", size, 1, min(height, width) if padding == "VALID" else 2**31 - 1)
    stride = size if stride is None else check_int("stride", stride)
    if padding == "VALID" and stride == size:
        h, w = height // size, width // size
        return _max_of_windows(x[:, : h * size, : w * size].reshape(n, h, size, w, size, channels))
    pads = lax.padtype_to_pads((height, width), (size, size), (stride, stride), padding)
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    return jnp.stack(shifted(padded, (size, size), (stride, stride))).max(axis=0)


@jax.custom_jvp
def _max_of_windows(windows: jax.Array) -> jax.Array:
    """The maximum over the places of (n, height, size, width, size, channels)."""
    return windows.max(axis=(2, 4))


@_max_of_windows.defjvp
def _max_of_windows_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """JAX's own rule, with ties counted place by place: 0.70 of a round of `cnn` against XLA's window reduction."""
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


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x (n, in) @ kernel (in, out); on a CPU the gradient of a kernel with few columns is computed transposed.

    That gradient, xᵀ g, has a transposed left side and few columns, which XLA multiplies slowly on a CPU: for 20
    examples and a kernel of 784 × 10 in three times the time of gᵀ x, transposed. A round of logistic regression takes
    0.65 of the time (2 cores). It can be differentiated in any way.
    """
    if kernel.shape[1] > NARROW:
        return x @ kernel
    return lax.platform_dependent(x, kernel, cpu=_narrow, default=lambda x, kernel: x @ kernel)


@jax.custom_jvp
def _narrow(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return x @ kernel


_narrow.defjvps(lambda dx, y, x, kernel: dx @ kernel, lambda dkernel, y, x, kernel: _product_transposed(x, dkernel))


def _product_transposed(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x @ kernel as (kernelᵀ xᵀ)ᵀ; the barriers keep XLA from transposing it back, also in its own derivatives."""
    columns = lax.optimization_barrier(kernel.T)
    return lax.optimization_barrier(lax.dot_general(columns, x, (((1,), (1,)), ((), ())))).T


class Conv(nnx.Module):
    """A layer of `conv` with a kernel (size, size, in, out), by default of variance 1 / fan-in at first.

    A bias (out,), 0 at first, is added unless `use_bias` is False. With `pool` the output is pooled, as in
    `conv_and_pool`, which takes strides of 1.
    """

    def __init__(
        self, in_features: int, out_features: int, size: int, *, strides: tuple[int, int] = (1, 1),
        padding: Padding = "VALID", kernel_init: Initializer | None = None, use_bias: bool = True, pool: bool = False,
        rngs: nnx.Rngs,
    ) -> None:  # fmt: skip
        if pool and strides != (1, 1):
            raise UsageError(f"strides must be (1, 1) with pool=True, got {strides}")
        init = kernel_init or lecun_normal()
        self.kernel = nnx.Param(init(rngs.params(), (size, size, in_features, out_features), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((out_features,), jnp.float32)) if use_bias else None
        self.strides, self.padding, self.pool = strides, padding, pool

    def __call__(self, x: jax.Array) -> jax.Array:
        """(n, height, width, in) to (n, output height, output width, out)."""
        kernel = self.kernel[...]
        y = conv_and_pool(x, kernel, self.padding) if self.pool else conv(x, kernel, self.strides, self.padding)
        return y if self.bias is None else y + self.bias[...]


class Linear(nnx.Linear):
    """`flax.nnx.Linear` with the same parameters and numbers, multiplied by `product`. Arguments as there."""

    def __init__(self, in_features: int, out_features: int, **options: Any) -> None:
        super().__init__(in_features, out_features, dot_general=_dot_general, **options)


def _dot_general(x: jax.Array, kernel: jax.Array, dimensions: Any, **options: Any) -> jax.Array:
    """`product` where Flax asks for a plain product of matrices, else `lax.dot_general`."""
    is_plain = x.ndim == 2 and all(value is None for value in options.values())
    return product(x, kernel) if is_plain else lax.dot_general(x, kernel, dimensions, **options)


class GroupNorm(nnx.Module):
    """Group normalization: zero mean, unit variance of each example's groups of channels; then a scale and a bias.

    Source: Wu and He, "Group Normalization" (2018). Not `nnx.GroupNorm`: means are taken over space first and channels
    then, which is faster on a CPU; the variance is that of the centred values, without cancellation; and parameters of
    any floating dtype are taken under strict promotion. Statistics have at least float32. There are gradients of every
    order, but no forward-mode derivatives.
    """

    def __init__(self, features: int, groups: int = 2, epsilon: float = 1e-5) -> None:
        if groups < 1 or features % groups:
            raise UsageError(f"groups must divide the {features} channels, got {groups}")
        self.scale = nnx.Param(jnp.ones((features,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((features,), jnp.float32))
        self.groups, self.epsilon = groups, epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """(n, height, width, features) to the same shape and dtype."""
        return _normalize(x, self.scale[...], self.bias[...], self.groups, self.epsilon)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _normalize(x: jax.Array, scale: jax.Array, bias: jax.Array, groups: int, epsilon: float) -> jax.Array:
    return _normalize_forward(x, scale, bias, groups, epsilon)[0]


def _normalize_forward(x: Any, scale: Any, bias: Any, groups: int, epsilon: float) -> tuple[jax.Array, Arrays]:
    wide = np.promote_types(x.dtype, np.float32)
    y, wide_scale, wide_bias = (a.astype(wide) for a in (x, scale, bias))
    mean = _group_means(y.mean(axis=(1, 2)), groups)
    y = y - mean
    inverse = lax.rsqrt(_group_means((y * y).mean(axis=(1, 2)), groups) + epsilon)
    return (y * (inverse * wide_scale) + wide_bias).astype(x.dtype), (x, scale, mean, inverse)


def _normalize_backward(groups: int, epsilon: float, residuals: Arrays, dy: jax.Array) -> Arrays:
    """Two sums over pixels serve all three gradients: 0.84 of the time of JAX's rule (20 × 24 × 24 × 64, one core)."""
    x, scale, mean, inverse = residuals
    dy, y, weight = dy.astype(mean.dtype), (x.astype(mean.dtype) - mean) * inverse, scale.astype(mean.dtype)
    dbias, dscale = dy.sum(axis=(1, 2)), (dy * y).sum(axis=(1, 2))  # of each example
    share = weight / (x.shape[1] * x.shape[2])
    dx = inverse * (dy * weight - _group_means(dbias * share, groups) - y * _group_means(dscale * share, groups))
    return dx.astype(x.dtype), dscale.sum(axis=0).astype(scale.dtype), dbias.sum(axis=0).astype(scale.dtype)


_normalize.defvjp(_normalize_forward, _normalize_backward)


def _group_means(x: jax.Array, groups: int) -> jax.Array:
    """Each group's mean of x (n, features) at each of its channels: (n, 1, 1, features)."""
    n, features = x.shape
    means = x.reshape(n, groups, features // groups).mean(axis=2)
    return jnp.repeat(means, features // groups, axis=1)[:, None, None, :]
