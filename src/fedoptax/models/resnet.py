"""Residual networks with group normalization: ResNet-18 of AFO, ResNet-9 of Fed-LAMB.

Both have GroupNorm of 2 groups, ResNet-9 in place of batch norm, no biases in convolutions, which start He normal, and
padding `"SAME"` as in TensorFlow, more of it at the lower right. Builders take `input_shape` (height, width, channels)
with at least 8 × 8 pixels, `num_classes`, at least 2, and `width`, the channels of the first stage, even; they raise a
`UsageError` if an argument is out of range.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import jax
from flax import nnx
from jax.nn.initializers import he_normal, normal

from fedoptax.errors import UsageError
from fedoptax.models.layers import Conv, GroupNorm, Linear, max_pool
from fedoptax.models.model import Model, check_input, functional

_STAGES = (1, 2, 4, 8)  # their channels, by those of the first


def resnet18(input_shape: Sequence[int], num_classes: int, strides: bool = True, width: int = 64) -> Model:
    """ResNet-18 of "Adaptive Federated Optimization", with pre-activation.

    Conv 7×7/2, norm, relu, max pool 3×3/2; four stages of two blocks (norm, relu, conv 3×3, norm, relu, conv 3×3)
    of 64, 128, 256 and 512 channels; norm, relu, global average pool, dense. The first block has no norm and relu
    of its own, since the stem has just done that; where channels change, the shortcut is a 1×1 convolution of the
    block's raw input and a norm. This gives the paper's 11,181,642 parameters for 10 classes and 11,227,812 for
    100, for images of 3 channels.

    ε = 0.001, and the dense layer starts normal with standard deviation 0.01, as in the released code. Stages 2 to
    4 halve the resolution, as ResNets do. In the released code they do not: `strides=False` is that network, with
    the same parameters and 14 times the work on 24×24 images (2.4 GFLOP an example, forward and backward, against
    169 MFLOP).
    """
    channels = _check(input_shape, num_classes, width)
    return functional(lambda rngs: _ResNet18(channels, num_classes, strides, width, rngs))


def resnet9(input_shape: Sequence[int], num_classes: int, width: int = 64) -> Model:
    """ResNet-9 of "Fed-LAMB".

    Conv 3×3, norm, relu; four stages of one block (conv 3×3, norm, relu, conv 3×3, norm; plus the shortcut; relu)
    of 64, 128, 256 and 512 channels, the last three halving the resolution, with a 1×1 convolution and a norm as
    shortcut; global average pool, dense. ε = 0.00001. A norm's scale and bias are as many as batch norm's:
    4,903,242 parameters for 32×32×3 and 10 classes, as with batch norm.
    """
    channels = _check(input_shape, num_classes, width)
    return functional(lambda rngs: _ResNet9(channels, num_classes, width, rngs))


def _check(input_shape: Sequence[int], num_classes: int, width: int) -> int:
    """The channels of an image, if the arguments are in range."""
    if width < 2 or width % 2:
        raise UsageError(f"width must be even and >= 2, for 2 groups of channels, got {width}")
    return check_input(input_shape, num_classes, smallest=8)[2]


_conv = partial(Conv, padding="SAME", kernel_init=he_normal(), use_bias=False)


class _ResNet18(nnx.Module):
    def __init__(self, channels: int, classes: int, strides: bool, width: int, rngs: nnx.Rngs) -> None:
        self.conv = _conv(channels, width, 7, strides=(2, 2), rngs=rngs)
        self.norm = GroupNorm(width, epsilon=1e-3)
        sizes = [width * size for size in _STAGES for _ in range(2)]
        self.blocks = nnx.List(
            _PreActivationBlock(inputs, outputs, 2 if strides and inputs != outputs else 1, rngs)
            for inputs, outputs in pairwise([width, *sizes])
        )
        self.blocks[0].norm1 = None
        self.last_norm = GroupNorm(sizes[-1], epsilon=1e-3)
        self.dense = Linear(sizes[-1], classes, kernel_init=normal(0.01), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = max_pool(nnx.relu(self.norm(self.conv(x))), 3, 2, "SAME")
        for block in self.blocks:
            x = block(x)
        return self.dense(nnx.relu(self.last_norm(x)).mean(axis=(1, 2)))


class _PreActivationBlock(nnx.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, rngs: nnx.Rngs) -> None:
        self.norm1: GroupNorm | None = GroupNorm(inputs, epsilon=1e-3)
        self.conv1 = _conv(inputs, outputs, 3, strides=(stride, stride), rngs=rngs)
        self.norm2 = GroupNorm(outputs, epsilon=1e-3)
        self.conv2 = _conv(outputs, outputs, 3, rngs=rngs)
        self.shortcut = None if inputs == outputs else _Projection(inputs, outputs, stride, 1e-3, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x if self.norm1 is None else nnx.relu(self.norm1(x))
        y = self.conv2(nnx.relu(self.norm2(self.conv1(y))))
        return y + (x if self.shortcut is None else self.shortcut(x))


class _ResNet9(nnx.Module):
    def __init__(self, channels: int, classes: int, width: int, rngs: nnx.Rngs) -> None:
        self.conv = _conv(channels, width, 3, rngs=rngs)
        self.norm = GroupNorm(width)
        sizes = [width * size for size in _STAGES]
        self.blocks = nnx.List(_Block(inputs, outputs, rngs) for inputs, outputs in pairwise([width, *sizes]))
        self.dense = Linear(sizes[-1], classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        return self.dense(x.mean(axis=(1, 2)))


class _Block(nnx.Module):
    def __init__(self, inputs: int, outputs: int, rngs: nnx.Rngs) -> None:
        stride = 1 if inputs == outputs else 2
        self.conv1 = _conv(inputs, outputs, 3, strides=(stride, stride), rngs=rngs)
        self.norm1 = GroupNorm(outputs)
        self.conv2 = _conv(outputs, outputs, 3, rngs=rngs)
        self.norm2 = GroupNorm(outputs)
        self.shortcut = None if inputs == outputs else _Projection(inputs, outputs, stride, 1e-5, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.norm2(self.conv2(nnx.relu(self.norm1(self.conv1(x)))))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class _Projection(nnx.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, epsilon: float, rngs: nnx.Rngs) -> None:
        self.conv = _conv(inputs, outputs, 1, strides=(stride, stride), rngs=rngs)
        self.norm = GroupNorm(outputs, epsilon=epsilon)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))
