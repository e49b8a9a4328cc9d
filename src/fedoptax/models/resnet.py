"""Residual networks with group normalization: ResNet-18 of AFO, ResNet-9 of Fed-LAMB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
from flax import nnx

from fedoptax.errors import UsageError
from fedoptax.models.layers import Conv, GroupNorm, Linear, max_pool
from fedoptax.models.model import Model, check_input, functional

_STAGES = 4
_MakeConv = Callable[..., Conv]
_MakeNorm = Callable[..., GroupNorm]


def resnet18(input_shape: Sequence[int], num_classes: int, strides: bool = True, width: int = 64) -> Model:
    """ResNet-18 of "Adaptive Federated Optimization": pre-activation, GroupNorm of 2 groups instead of batch norm.

    Conv 7×7/2, norm, relu, max pool 3×3/2; four stages of two blocks (norm, relu, conv 3×3, norm, relu, conv 3×3)
    of 64, 128, 256 and 512 channels; norm, relu, global average pool, dense. No convolution has a bias. The first
    block has no norm and relu of its own, since the stem has just done that; where channels change, the shortcut is
    a 1×1 convolution of the block's raw input and a norm. This gives the paper's 11,181,642 parameters for 10
    classes and 11,227,812 for 100, for images of 3 channels.

    Padding is `"SAME"` as in TensorFlow, more of it at the lower right. ε = 0.001, convolutions start He normal,
    the dense layer normal with standard deviation 0.01: all as in the released code. What that code lacks are the
    stages' strides: each stage keeps the first one's resolution. `strides=False` is that network, 14 times the
    work on 24×24 images (2.4 GFLOP an example, forward and backward, against 169 MFLOP).

    Args:
      input_shape: (height, width, channels), height and width at least 8.
      num_classes: at least 2.
      strides: whether stages 2 to 4 halve the resolution, as ResNets do; has no parameters.
      width: channels of the first stage, even.

    Raises:
      UsageError: an argument is out of range.
    """
    shape = check_input(input_shape, num_classes, smallest=8)
    _check_width(width)
    return functional(lambda rngs: _ResNet18(shape[2], num_classes, strides, width, rngs))


def resnet9(input_shape: Sequence[int], num_classes: int, width: int = 64) -> Model:
    """ResNet-9 of "Fed-LAMB", with GroupNorm of 2 groups instead of batch norm.

    Conv 3×3, norm, relu; four stages of one block (conv 3×3, norm, relu, conv 3×3, norm; plus the shortcut; relu)
    of 64, 128, 256 and 512 channels, the last three halving the resolution, with a 1×1 convolution and a norm as
    shortcut; global average pool, dense. No convolution has a bias. A norm's scale and bias are as many as batch
    norm's: 4,903,242 parameters for 32×32×3 and 10 classes, as with batch norm. Padding is `"SAME"` as in
    TensorFlow; ε = 0.00001; convolutions start He normal.

    Args:
      input_shape: (height, width, channels), height and width at least 8.
      num_classes: at least 2.
      width: channels of the first stage, even.

    Raises:
      UsageError: an argument is out of range.
    """
    shape = check_input(input_shape, num_classes, smallest=8)
    _check_width(width)
    return functional(lambda rngs: _ResNet9(shape[2], num_classes, width, rngs))


class _ResNet18(nnx.Module):
    def __init__(self, channels: int, classes: int, strides: bool, width: int, rngs: nnx.Rngs) -> None:
        conv, norm = _layers(1e-3, rngs)
        self.conv = conv(channels, width, 7, strides=(2, 2))
        self.norm = norm(width)
        self.blocks: nnx.List[_PreActivationBlock] = nnx.List()
        inputs = width
        for stage in range(_STAGES):
            outputs = width * 2**stage
            for block in range(2):
                stride = 2 if strides and stage > 0 and block == 0 else 1
                first = stage == block == 0
                self.blocks.append(_PreActivationBlock(inputs, outputs, stride, first, conv, norm))
                inputs = outputs
        self.last_norm = norm(inputs)
        normal = jax.nn.initializers.normal(0.01)
        self.dense = Linear(inputs, classes, kernel_init=normal, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = max_pool(nnx.relu(self.norm(self.conv(x))), 3, 2, "SAME")
        for block in self.blocks:
            x = block(x)
        return self.dense(nnx.relu(self.last_norm(x)).mean(axis=(1, 2)))


class _PreActivationBlock(nnx.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, first: bool, conv: _MakeConv, norm: _MakeNorm) -> None:
        self.norm1 = None if first else norm(inputs)
        self.conv1 = conv(inputs, outputs, 3, strides=(stride, stride))
        self.norm2 = norm(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.shortcut = None if inputs == outputs else _Projection(inputs, outputs, stride, conv, norm)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x if self.norm1 is None else nnx.relu(self.norm1(x))
        y = self.conv2(nnx.relu(self.norm2(self.conv1(y))))
        return y + (x if self.shortcut is None else self.shortcut(x))


class _ResNet9(nnx.Module):
    def __init__(self, channels: int, classes: int, width: int, rngs: nnx.Rngs) -> None:
        conv, norm = _layers(1e-5, rngs)
        self.conv = conv(channels, width, 3)
        self.norm = norm(width)
        sizes = [width * 2**stage for stage in range(_STAGES)]
        self.blocks = nnx.List(
            _Block(inputs, outputs, 1 if inputs == outputs else 2, conv, norm)
            for inputs, outputs in zip([width, *sizes], sizes)
        )
        self.dense = Linear(sizes[-1], classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        return self.dense(x.mean(axis=(1, 2)))


class _Block(nnx.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, conv: _MakeConv, norm: _MakeNorm) -> None:
        self.conv1 = conv(inputs, outputs, 3, strides=(stride, stride))
        self.norm1 = norm(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.norm2 = norm(outputs)
        self.shortcut = None if inputs == outputs else _Projection(inputs, outputs, stride, conv, norm)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.norm2(self.conv2(nnx.relu(self.norm1(self.conv1(x)))))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class _Projection(nnx.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, conv: _MakeConv, norm: _MakeNorm) -> None:
        self.conv = conv(inputs, outputs, 1, strides=(stride, stride))
        self.norm = norm(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


def _check_width(width: int) -> None:
    if width < 2 or width % 2:
        raise UsageError(f"width must be even and >= 2, for 2 groups of channels, got {width}")


def _layers(epsilon: float, rngs: nnx.Rngs) -> tuple[_MakeConv, _MakeNorm]:
    conv = partial(Conv, padding="SAME", kernel_init=jax.nn.initializers.he_normal(), use_bias=False, rngs=rngs)
    return conv, partial(GroupNorm, groups=2, epsilon=epsilon)
