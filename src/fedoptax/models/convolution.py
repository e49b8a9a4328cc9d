"""Two-dimensional convolution: one primitive with every derivative, lowered by platform, shape and kind of kernel.

With x the input, k the kernel and y the output, ⟨conv(x, k), y⟩ is linear in each of the three. So each is, up to
transposition, a product of the other two: y of x and k, the gradient of x of k and y's, the gradient of k of x and y's,
and derivatives of these are the same three functions again. They are one primitive, `_bilinear`, because only a
primitive learns from `vmap` which of its operands differ between clients.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fedoptax.errors import UsageError, check_choice
from fedoptax.models import winograd

Padding = Literal["VALID", "SAME"]
Lowering = Literal["auto", "patches", "winograd", "lax"]
Role = Literal["x", "kernel", "y"]
Operands = dict[Role, jax.Array]  # two of the three roles, each (clients, ...)
MAX_PATCHES = 2**30
"""Bytes of all clients' patches up to which an accelerator multiplies patches: more might not fit."""
SAVED_PATCHES = 2**28
"""Bytes up to which the backward pass may reuse the forward pass's patches, which then stay in memory meanwhile."""


class _Geometry(NamedTuple):
    """The sizes along height and width: of x, of the kernel; strides, and zeros put around x (before, after)."""

    size: tuple[int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[tuple[int, int], tuple[int, int]]

    @property
    def output(self) -> tuple[int, int]:
        """The height and width of y."""
        height, width = ((size + sum(pad) - k) // stride + 1 for size, k, stride, pad in zip(*self))
        return height, width


def conv(
    x: jax.Array,
    kernel: jax.Array,
    strides: tuple[int, int] = (1, 1),
    padding: Padding = "VALID",
    lowering: Lowering = "auto",
) -> jax.Array:
    """Two-dimensional convolution (cross-correlation, as everywhere in deep learning).

    `"auto"` is decided when the program is lowered for a platform. A CPU takes Winograd's algorithm where it is faster,
    else patches; in float32 Winograd's rounding errors are one to four times those of a direct sum. An accelerator
    takes patches where `vmap` gives each client a kernel of its own, unless they would need more than `MAX_PATCHES`
    bytes; else, where a kernel is shared, `lax.conv_general_dilated`. There are derivatives of every order and mode,
    but for Winograd's algorithm no forward-mode ones.

    Takes x (n, height, width, in), a kernel (kernel height, kernel width, in, out) of its dtype, and strides along
    height and width, each ≥ 1; returns (n, output height, output width, out). Padding `"SAME"` is by zeros (output of
    size ceil(size / stride)); `"winograd"` takes 3 × 3 kernels with strides of 1. What does not fit is a `UsageError`.
    """
    check_choice("padding", padding, get_args(Padding))
    check_choice("lowering", lowering, get_args(Lowering))
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[3] != kernel.shape[2] or x.dtype != kernel.dtype:
        wanted = "(height, width, in, out) of x's dtype for x (n, height, width, in)"
        raise UsageError(f"kernel must be {wanted}, got {kernel.dtype} {kernel.shape} for {x.dtype} {x.shape}")
    size, window = x.shape[1:3], kernel.shape[:2]
    pads = tuple(lax.padtype_to_pads(size, window, strides, padding))
    geometry = _Geometry(size, window, strides, pads)  # type: ignore[arg-type]
    if min(geometry.output) < 1:
        raise UsageError(f"kernel must not be larger than x, got {kernel.shape} for {x.shape}")
    if lowering == "winograd" and (window, strides) != ((3, 3), (1, 1)):
        raise UsageError(
            f"lowering must be 'winograd' only for 3 x 3 kernels with strides (1, 1), got {kernel.shape} and {strides}"
        )
    if lowering != "winograd":
        kernel, geometry = _without_unused_weights(kernel, geometry)

    def by(lowering: Lowering, x: jax.Array, kernel: jax.Array) -> jax.Array:
        return _solve("y", {"x": x[None], "kernel": kernel[None]}, geometry, lowering)[0]

    def by_winograd(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return _FORWARD["winograd"](x, kernel, geometry)

    if lowering == "winograd":
        return by_winograd(x, kernel)
    is_exact = x.dtype in (jnp.float32, jnp.float64)  # narrower types lose digits in the transforms' sums
    is_3x3 = (geometry.window, strides) == ((3, 3), (1, 1))
    fits = is_exact and is_3x3 and winograd.is_faster(x.shape[0], *geometry.output, *kernel.shape[2:])
    if lowering == "auto" and fits and winograd.has_few_cores():
        # not in the primitive: its backward pass would transform the pixels once more
        return lax.platform_dependent(x, kernel, cpu=by_winograd, default=partial(by, "auto"))
    return by(lowering, x, kernel)


def _without_unused_weights(kernel: jax.Array, geometry: _Geometry) -> tuple[jax.Array, _Geometry]:
    """Leave out a kernel's rows and columns that only meet padding: 0.45 of the FLOPs of a round of ResNet-18."""
    spans, pads = [], []
    for size, k, stride, (low, high), places in zip(*geometry, geometry.output):
        first = max(0, low - (places - 1) * stride)  # the last output's first weight on x
        last = min(k, low + size)  # behind the first output's last weight on x
        spans.append(slice(first, last))
        pads.append((low - first, high - (k - last)))
    window = tuple(span.stop - span.start for span in spans)
    return kernel[spans[0], spans[1]], geometry._replace(window=window, pads=tuple(pads))  # type: ignore[arg-type]


# The primitive: operands in the order of the roles without `solve`, which is that of the result.

_bilinear = Primitive("fedoptax_conv")


def _solve(solve: Role, operands: Operands, geometry: _Geometry, lowering: Lowering) -> jax.Array:
    a, b = (operands[role] for role in get_args(Role) if role != solve)
    return _bilinear.bind(a, b, solve=solve, geometry=geometry, lowering=lowering)


def _by_role(solve: Role, a: Any, b: Any) -> dict[Role, Any]:
    first, second = (role for role in get_args(Role) if role != solve)
    return {first: a, second: b}


def _shapes(solve: Role, a: Any, b: Any, geometry: _Geometry) -> dict[Role, tuple[int, ...]]:
    """The shapes of all three for one client, of the two operands (clients, ...)."""
    known = {role: array.shape[1:] for role, array in _by_role(solve, a, b).items()}
    n = known["y" if solve == "x" else "x"][0]
    into = known["kernel"][2] if solve == "x" else known["x"][-1]
    out = known["kernel"][3] if solve == "y" else known["y"][-1]
    return {"x": (n, *geometry.size, into), "kernel": (*geometry.window, into, out), "y": (n, *geometry.output, out)}


def _abstract(a: Any, b: Any, *, solve: Role, geometry: _Geometry, lowering: Lowering) -> jax.core.ShapedArray:
    return jax.core.ShapedArray((a.shape[0], *_shapes(solve, a, b, geometry)[solve]), a.dtype)


def _transpose_rule(side: int) -> Callable[..., jax.Array]:
    def rule(cotangent: jax.Array, a: Any, b: Any, *, solve: Role, geometry: _Geometry, lowering: Lowering) -> Any:
        known = _by_role(solve, a, b)
        wanted = list(known)[side]
        del known[wanted]
        return _solve(wanted, known | {solve: cotangent}, geometry, lowering)

    return rule


def _batch_rule(
    operands: Sequence[jax.Array], axes: Sequence[Any], *, solve: Role, geometry: _Geometry, lowering: Lowering
) -> tuple[jax.Array, int]:
    """A kernel shared by the batch stays shared: the batch is then more examples, else more clients."""
    size = next(a.shape[axis] for a, axis in zip(operands, axes) if axis is not None)
    known = _by_role(solve, *operands)
    is_shared = dict(zip(known, axes)).get("kernel", 0) is None
    place = 1 if is_shared and solve != "kernel" else 0
    for (role, array), axis in zip(list(known.items()), axes):
        if role == "kernel" and is_shared:
            continue
        if axis is None:
            array, axis = jnp.broadcast_to(array, (size, *array.shape)), 0
        array = jnp.moveaxis(array, axis, place)
        known[role] = array.reshape(*array.shape[:place], size * array.shape[place + 1], *array.shape[place + 2 :])
    result = _solve(solve, known, geometry, lowering)
    return result.reshape(*result.shape[:place], size, result.shape[place] // size, *result.shape[place + 1 :]), place


# What is computed, by platform


def _on_cpu(a: jax.Array, b: jax.Array, *, solve: Role, geometry: _Geometry, lowering: Lowering) -> jax.Array:
    """Patches: XLA's own convolution, slow inside compiled loops, made a round of the EMNIST CNN 19 times as long."""
    if lowering == "auto":
        return _by_transposition(a, b, solve, geometry, "patches")
    return _compute(a, b, solve, geometry, lowering)


def _on_accelerator(a: jax.Array, b: jax.Array, *, solve: Role, geometry: _Geometry, lowering: Lowering) -> jax.Array:
    """Patches where clients have kernels of their own: a round of `cnn` took 6.5 ms, by grouped ones 17.8 (H100)."""
    if lowering == "auto":
        fits = _patch_bytes(a, _shapes(solve, a, b, geometry)) <= MAX_PATCHES
        lowering = "patches" if len(a) > 1 and fits else "lax"
    return _compute(a, b, solve, geometry, lowering)


def _patch_bytes(a: jax.Array, shapes: dict[Role, tuple[int, ...]]) -> int:
    return len(a) * math.prod(shapes["y"][:3]) * math.prod(shapes["kernel"][:3]) * a.dtype.itemsize


def _compute(a: jax.Array, b: jax.Array, solve: Role, geometry: _Geometry, lowering: Lowering) -> jax.Array:
    """All clients' by `lax`, or by products of patches, of which the gradients are products too."""
    if lowering == "lax":
        return _by_transposition(a, b, solve, geometry, lowering)
    known, shapes = _by_role(solve, a, b), _shapes(solve, a, b, geometry)
    if solve == "y":
        return _multiply_patches(known["x"], known["kernel"], geometry)
    y, x_channels, out = known["y"], shapes["x"][3], shapes["y"][3]
    if solve == "kernel":
        is_saved = _patch_bytes(a, shapes) <= SAVED_PATCHES
        patches = _patches(known["x"] if is_saved else lax.optimization_barrier(known["x"]), geometry)
        return jnp.einsum("cpk,cpo->cko", patches, y.reshape(len(y), -1, out)).reshape(len(y), *shapes["kernel"])
    # kernel times y and sums of shifted images, or patches of y and the kernel turned round: which writes fewer bytes
    pixels = math.prod(shapes["y"][:3])
    if geometry.strides != (1, 1) or pixels * x_channels <= pixels * out + x_channels * out:
        return _by_transposition(a, b, solve, geometry, "patches")
    rest = tuple((k - 1 - low, k - 1 - high) for k, (low, high) in zip(geometry.window, geometry.pads))
    back = _Geometry(geometry.output, geometry.window, (1, 1), rest)  # type: ignore[arg-type]
    return _multiply_patches(y, known["kernel"][:, ::-1, ::-1].swapaxes(3, 4), back)


def _by_transposition(a: jax.Array, b: jax.Array, solve: Role, geometry: _Geometry, lowering: Lowering) -> jax.Array:
    """Each client's convolution, or JAX's transpose of it."""
    shapes = _shapes(solve, a, b, geometry)

    def forward(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return _FORWARD[lowering](x, kernel, geometry)

    def of_client(a: jax.Array, b: jax.Array) -> jax.Array:
        if solve == "y":
            return forward(a, b)
        zero = jnp.zeros(shapes[solve], a.dtype)  # forward is linear: the gradient is the same everywhere
        along = partial(forward, kernel=a) if solve == "x" else partial(forward, a)
        return jax.vjp(along, zero)[1](b)[0]

    return of_client(a[0], b[0])[None] if len(a) == 1 else jax.vmap(of_client)(a, b)


def _pad(x: jax.Array, geometry: _Geometry) -> jax.Array:
    return jnp.pad(x, ((0, 0), *geometry.pads, (0, 0)))


def _multiply_patches(x: jax.Array, kernel: jax.Array, geometry: _Geometry) -> jax.Array:
    """y of x (clients, n, ...) and kernel (clients, ...): each output pixel's patch of x times the kernel's matrix."""
    clients, n, out = *x.shape[:2], kernel.shape[-1]
    y = _patches(x, geometry) @ kernel.reshape(clients, -1, out)
    return y.reshape(clients, n, *geometry.output, out)


def _patches(x: jax.Array, geometry: _Geometry) -> jax.Array:
    """Each output pixel's patch of x (clients, n, ...), side by side: (clients, pixels, kernel's rows · columns · in).

    Of few channels, patches of one row are made first, and of these the others: copies are fewer and longer. A step of
    20 × 28 × 28 × 1 to 32 takes 0.89 of the time on a CPU (3 channels 0.88, 32 channels 1.08), and the stem of
    ResNet-18 half as long to compile.
    """
    patches = _pad(x.reshape(-1, *x.shape[2:]), geometry)
    (rows, columns), (down, right) = geometry.window, geometry.strides
    for window, strides in [((1, columns), (1, right)), ((rows, 1), (down, 1))] if x.shape[-1] < 8 else [geometry[1:3]]:
        patches = jnp.concatenate(shifted(patches, window, strides), axis=-1)
    return patches.reshape(x.shape[0], -1, patches.shape[-1])


def shifted(x: jax.Array, size: tuple[int, int], strides: tuple[int, int]) -> list[jax.Array]:
    """The pixels of x at each place of a window of `size`: (n, output height, output width, channels) per place."""
    (rows, columns), (down, right) = size, strides
    end_h, end_w = ((x.shape[i + 1] - size[i]) // strides[i] * strides[i] + 1 for i in (0, 1))
    return [x[:, i : i + end_h : down, j : j + end_w : right] for i in range(rows) for j in range(columns)]


_FORWARD: dict[str, Callable[[jax.Array, jax.Array, _Geometry], jax.Array]] = {
    "patches": lambda x, kernel, geometry: _multiply_patches(x[None], kernel[None], geometry)[0],
    "winograd": lambda x, kernel, geometry: winograd.conv3x3(_pad(x, geometry), kernel),
    "lax": lambda x, kernel, geometry: lax.conv_general_dilated(
        x, kernel, geometry.strides, geometry.pads, dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
}

_cpu, _accelerator = (
    jax.jit(by, static_argnames=("solve", "geometry", "lowering")) for by in (_on_cpu, _on_accelerator)
)  # traced and lowered once for convolutions of the same shapes


@_bilinear.def_impl
def _run(a: jax.Array, b: jax.Array, **options: Any) -> jax.Array:
    return (_cpu if jax.default_backend() == "cpu" else _accelerator)(a, b, **options)


_bilinear.def_abstract_eval(_abstract)
ad.defbilinear(_bilinear, _transpose_rule(0), _transpose_rule(1))
batching.primitive_batchers[_bilinear] = _batch_rule
mlir.register_lowering(_bilinear, mlir.lower_fun(_accelerator, multiple_results=False))
mlir.register_lowering(_bilinear, mlir.lower_fun(_cpu, multiple_results=False), platform="cpu")
