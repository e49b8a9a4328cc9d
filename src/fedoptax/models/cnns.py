"""Convolutional networks of one form: convolutions, each with an activation and perhaps a pool, then dense layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fedoptax.models.checks import check_input
from fedoptax.models.functional import Model, functional
from fedoptax.models.layers import Conv, Lowering, Padding, flat, max_pool
from fedoptax.models.linear import Linear


def cifar_cnn(input_shape: Sequence[int], num_classes: int, lowering: Lowering = "auto") -> Model:
    """A CNN of three convolutions and two dense layers, as "Fed-LAMB" has on CIFAR-10; its sizes are not published.

    Chosen here, like the CNN of TensorFlow's CIFAR tutorial: conv 3×3×32, relu, pool, conv 3×3×64, relu, pool,
    conv 3×3×64, relu, dense 64, relu, dense; 122,570 parameters for 32×32×3 and 10 classes.

    Args:
      input_shape: (height, width, channels), height and width at least 18.
      num_classes: at least 2.
      lowering: of the convolutions, see `fedoptax.models.layers.conv`.

    Raises:
      UsageError: an argument is out of range.
    """
    convs = [_Layer(32, 3), _Layer(64, 3), _Layer(64, 3, pool=False)]
    return _cnn(input_shape, num_classes, 18, convs, (64,), nnx.relu, lowering)


def fafed_fmnist_cnn(input_shape: Sequence[int], num_classes: int, lowering: Lowering = "auto") -> Model:
    """The likely CNN of FAFED on MNIST and Fashion-MNIST, which the paper does not give.

    Conv 3×3×5, tanh, pool, conv 3×3×10, tanh, pool, dense 250 → 100, tanh, dense; 26,620 parameters for 28×28×1 and
    10 classes.

    Args:
      input_shape: (height, width, channels), height and width at least 10.
      num_classes: at least 2.
      lowering: of the convolutions, see `fedoptax.models.layers.conv`.

    Raises:
      UsageError: an argument is out of range.
    """
    return _cnn(input_shape, num_classes, 10, [_Layer(5, 3), _Layer(10, 3)], (100,), jnp.tanh, lowering)


def fafed_cifar_cnn(input_shape: Sequence[int], num_classes: int, lowering: Lowering = "auto") -> Model:
    """The likely CNN of FAFED on CIFAR-10, which the paper does not give.

    Three times conv 3×3 with padding, relu, pool, with 16, 32 and 64 channels; dense 1024 → 512, relu, dense 64,
    relu, dense; 581,866 parameters for 32×32×3 and 10 classes.

    Args:
      input_shape: (height, width, channels), height and width at least 8.
      num_classes: at least 2.
      lowering: of the convolutions, see `fedoptax.models.layers.conv`.

    Raises:
      UsageError: an argument is out of range.
    """
    convs = [_Layer(16, 3, "SAME"), _Layer(32, 3, "SAME"), _Layer(64, 3, "SAME")]
    return _cnn(input_shape, num_classes, 8, convs, (512, 64), nnx.relu, lowering)


def lenet(input_shape: Sequence[int], num_classes: int, lowering: Lowering = "auto") -> Model:
    """A LeNet with relu and max pools: conv 5×5×6, pool, conv 5×5×16, pool, dense 120, dense 84, dense.

    44,426 parameters for 28×28×1 and 10 classes, 62,006 for 32×32×3. The network of many independent comparisons of
    federated algorithms.

    Args:
      input_shape: (height, width, channels), height and width at least 16.
      num_classes: at least 2.
      lowering: of the convolutions, see `fedoptax.models.layers.conv`.

    Raises:
      UsageError: an argument is out of range.
    """
    return _cnn(input_shape, num_classes, 16, [_Layer(6, 5), _Layer(16, 5)], (120, 84), nnx.relu, lowering)


class _Layer(NamedTuple):
    features: int
    size: int
    padding: Padding = "VALID"
    pool: bool = True


def _cnn(
    input_shape: Sequence[int],
    num_classes: int,
    smallest: int,
    convs: Sequence[_Layer],
    hidden: Sequence[int],
    activation: Callable[[jax.Array], jax.Array],
    lowering: Lowering,
) -> Model:
    shape = check_input(input_shape, num_classes, smallest)
    return functional(lambda rngs: _CNN(shape, (*hidden, num_classes), convs, activation, lowering, rngs))


class _CNN(nnx.Module):
    def __init__(
        self,
        shape: tuple[int, int, int],
        dense: Sequence[int],
        convs: Sequence[_Layer],
        activation: Callable[[jax.Array], jax.Array],
        lowering: Lowering,
        rngs: nnx.Rngs,
    ) -> None:
        height, width, channels = shape
        self.convs: nnx.List[Conv] = nnx.List()
        self.dense: nnx.List[Linear] = nnx.List()
        for layer in convs:
            conv = Conv(channels, layer.features, layer.size, padding=layer.padding, lowering=lowering, rngs=rngs)
            self.convs.append(conv)
            cut, pool = (layer.size - 1 if layer.padding == "VALID" else 0), (2 if layer.pool else 1)
            height, width, channels = (height - cut) // pool, (width - cut) // pool, layer.features
        for inputs, outputs in zip((height * width * channels, *dense[:-1]), dense):
            self.dense.append(Linear(inputs, outputs, rngs=rngs))
        self.pools = tuple(layer.pool for layer in convs)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        for conv, pool in zip(self.convs, self.pools):
            x = conv(x)  # pooled first: the activations are monotone, so this is the same with a quarter of them
            x = self.activation(max_pool(x, 2) if pool else x)
        x = flat(x)
        for layer in self.dense[:-1]:
            x = self.activation(layer(x))
        return self.dense[-1](x)
