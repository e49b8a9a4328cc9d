"""Transformers: a vision transformer for images, and a causal language model.

Blocks normalise first ("pre-norm"), as in GPT-2 and ViT: x + attention(norm(x)), then x + mlp(norm(x)) with 4 · width
GELU units. Builders raise a `UsageError` if an argument is out of range.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import glorot_uniform, normal

from fedoptax.errors import UsageError, check_int
from fedoptax.models.layers import GroupNorm
from fedoptax.models.model import Model, check_input, functional


def vit(
    input_shape: Sequence[int], num_classes: int, patch: int = 4, width: int = 192, depth: int = 6, heads: int = 3
) -> Model:
    """A vision transformer (Dosovitskiy et al. 2021) in a size for small images: 2,693,194 parameters for CIFAR-10.

    Patches, learned positions, `depth` blocks with so many `heads` of attention, the mean over patches, dense. The
    height and width of images are multiples of `patch`, the side of a patch; `width`, the numbers per patch, is one of
    `heads`.
    """
    rows, columns, channels = check_input(input_shape, num_classes, smallest=check_int("patch", patch))
    if rows % patch or columns % patch:
        raise UsageError(f"patch must divide the image's height and width, {rows} and {columns}, got {patch}")
    _check_sizes(width, depth, heads)
    return functional(lambda rngs: _ViT((rows, columns, channels), num_classes, patch, width, depth, heads, rngs))


def gpt(vocabulary: int, context: int = 80, width: int = 128, depth: int = 4, heads: int = 4) -> Model:
    """A causal language model laid out as GPT-2 (Radford et al. 2019): 826,714 parameters for Shakespeare's characters.

    Embedding and learned positions, `depth` blocks with so many `heads` of attention, norm, dense, which is not tied to
    the embedding. `vocabulary` is the number of tokens, at least 2, `context` the longest sequence; `width`, the
    numbers per token, is a multiple of `heads`.
    """
    check_int("vocabulary", vocabulary, 2)
    check_int("context", context)
    _check_sizes(width, depth, heads)
    return functional(lambda rngs: _GPT(vocabulary, context, width, depth, heads, rngs))


def _check_sizes(width: int, depth: int, heads: int) -> None:
    for name, value in (("width", width), ("depth", depth), ("heads", heads)):
        check_int(name, value)
    if width % heads:
        raise UsageError(f"width must be a multiple of heads, got {width} and {heads}")


_Linear = partial(nnx.Linear, kernel_init=glorot_uniform())
_normal = normal(0.02)


class _LayerNorm(GroupNorm):
    """Layer normalisation of tokens (n, time, width): each token is an image of one pixel, in one group."""

    def __init__(self, width: int) -> None:
        super().__init__(width, groups=1)

    def __call__(self, x: jax.Array) -> jax.Array:
        return super().__call__(x.reshape(-1, 1, 1, x.shape[-1])).reshape(x.shape)


class _Block(nnx.Module):
    def __init__(self, width: int, heads: int, is_causal: bool, rngs: nnx.Rngs) -> None:
        self.heads, self.is_causal = heads, is_causal
        self.norm1, self.norm2 = _LayerNorm(width), _LayerNorm(width)
        self.attend, self.project = _Linear(width, 3 * width, rngs=rngs), _Linear(width, width, rngs=rngs)
        self.expand, self.contract = _Linear(width, 4 * width, rngs=rngs), _Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        n, time, width = x.shape
        parts = self.attend(self.norm1(x)).reshape(n, time, 3, self.heads, width // self.heads)
        queries, keys, values = (parts[:, :, i] for i in range(3))
        with jax.numpy_dtype_promotion("standard"):  # jax's own function needs it
            seen = jax.nn.dot_product_attention(queries, keys, values, is_causal=self.is_causal)
        x = x + self.project(seen.reshape(n, time, width))
        return x + self.contract(jax.nn.gelu(self.expand(self.norm2(x))))


class _ViT(nnx.Module):
    def __init__(
        self, shape: tuple[int, ...], classes: int, patch: int, width: int, depth: int, heads: int, rngs: nnx.Rngs
    ) -> None:
        self.patch = patch
        tokens = shape[0] // patch * (shape[1] // patch)
        self.embed = _Linear(patch * patch * shape[2], width, rngs=rngs)
        self.positions = nnx.Param(_normal(rngs.params(), (tokens, width), jnp.float32))
        self.blocks = nnx.List(_Block(width, heads, False, rngs) for _ in range(depth))
        self.norm, self.head = _LayerNorm(width), _Linear(width, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        n, rows, columns, channels = x.shape
        x = x.reshape(n, rows // self.patch, self.patch, columns // self.patch, self.patch, channels).swapaxes(2, 3)
        x = self.embed(x.reshape(n, -1, self.patch * self.patch * channels)) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(axis=1))


class _GPT(nnx.Module):
    def __init__(self, vocabulary: int, context: int, width: int, depth: int, heads: int, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Param(_normal(rngs.params(), (vocabulary, width), jnp.float32))
        self.positions = nnx.Param(_normal(rngs.params(), (context, width), jnp.float32))
        self.blocks = nnx.List(_Block(width, heads, True, rngs) for _ in range(depth))
        self.norm, self.head = _LayerNorm(width), _Linear(width, vocabulary, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        context = self.positions[...].shape[0]
        if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer) or ids.shape[1] > context:
            raise UsageError(f"x must be integer ids (batch, time <= {context}), got {ids.dtype} of shape {ids.shape}")
        x = jnp.take(self.embedding[...], ids, axis=0) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
