"""Dense networks, small CNNs and the autoencoder of the papers.

The builder of a classifier takes `input_shape`, of one example ((height, width, channels) if it has convolutions), and
`num_classes`, at least 2; the model maps x (batch, *input_shape) to logits (batch, num_classes). Builders raise a
`UsageError` if an argument is out of range, such as an image smaller than said.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import glorot_uniform

from fedoptax.errors import UsageError, check_int, check_number
from fedoptax.models.layers import Conv, Linear, Padding, flat, max_pool
from fedoptax.models.model import Model, check_input, functional


def logistic(input_shape: Sequence[int], num_classes: int) -> Model:
    """Multinomial logistic regression, or linear regression with one output: a dense layer on the flattened input."""
    return mlp(input_shape, num_classes, hidden=())


def mlp(input_shape: Sequence[int], num_classes: int, hidden: Sequence[int] = (200,), dropout: float = 0.0) -> Model:
    """Dense layers with ReLU on the flattened input; with 28×28 and 200 hidden units, Fed-LAMB's MNIST MLP.

    `hidden` has the units of each hidden layer; `dropout`, in [0, 1), is the probability to drop one in training. With
    `num_classes` 1 the output is a number.
    """
    check_input(input_shape, num_classes, fewest=1)
    check_number("dropout", dropout, 0.0, 1.0)
    for units in hidden:
        check_int("hidden", units)
    sizes = (math.prod(input_shape), *hidden, num_classes)
    return functional(lambda rngs: _MLP(sizes, dropout, rngs))


def cnn(input_shape: Sequence[int], num_classes: int, dropout: float = 0.5) -> Model:
    """The small convolutional network that suits the input's size.

    For 28×28, Fed-LAMB's MNIST CNN: conv 5×5×10, pool, relu, conv 5×5×20, dropout of whole channels, pool,
    relu, dense 320 → 50, relu, dropout, dense. For any other size, such as the 8×8 digits: conv 3×3×16, relu,
    pool, conv 3×3×32, relu, pool, dense 64, relu, dense, with no dropout.

    Images have at least 4 × 4 pixels; `dropout`, in [0, 1), is the probability of both dropouts for 28×28.
    """
    shape = check_input(input_shape, num_classes, smallest=4)
    check_number("dropout", dropout, 0.0, 1.0)
    if shape[:2] == (28, 28):
        return functional(lambda rngs: _MnistCNN(shape[2], num_classes, dropout, rngs))
    return functional(lambda rngs: _SmallCNN(shape, num_classes, rngs))


def emnist_cnn(input_shape: Sequence[int], num_classes: int) -> Model:
    """The EMNIST CNN of "Adaptive Federated Optimization", with its Glorot-uniform initialisation.

    Conv 3×3×32, relu, conv 3×3×64, relu, pool, dropout 0.25, dense 128, relu, dropout 0.5, dense; 1,206,590
    parameters for 28×28×1 and 62 classes. Images have at least 6 × 6 pixels.
    """
    shape = check_input(input_shape, num_classes, smallest=6)
    return functional(lambda rngs: _EmnistCNN(shape, num_classes, rngs))


def cifar_cnn(input_shape: Sequence[int], num_classes: int) -> Model:
    """A CNN of three convolutions and two dense layers, as Fed-LAMB has on CIFAR-10; its sizes are not published.

    Chosen here, like the CNN of TensorFlow's CIFAR tutorial: conv 3×3×32, relu, pool, conv 3×3×64, relu, pool,
    conv 3×3×64, relu, dense 64, relu, dense; 122,570 parameters for 32×32×3 and 10 classes. Images have at least
    18 × 18 pixels.
    """
    convs = [_ConvSpec(32, 3), _ConvSpec(64, 3), _ConvSpec(64, 3, pool=False)]
    return _cnn(input_shape, num_classes, 18, convs, hidden=(64,))


def fafed_fmnist_cnn(input_shape: Sequence[int], num_classes: int) -> Model:
    """A likely CNN for FAFED on MNIST and Fashion-MNIST; the paper does not describe it.

    Conv 3×3×5, tanh, pool, conv 3×3×10, tanh, pool, dense 250 → 100, tanh, dense; 26,620 parameters for 28×28×1 and
    10 classes. Images have at least 10 × 10 pixels.
    """
    return _cnn(input_shape, num_classes, 10, [_ConvSpec(5, 3), _ConvSpec(10, 3)], (100,), jnp.tanh)


def fafed_cifar_cnn(input_shape: Sequence[int], num_classes: int) -> Model:
    """A likely CNN for FAFED on CIFAR-10; the paper does not describe it.

    Three times conv 3×3 with padding, relu, pool, with 16, 32 and 64 channels; dense 1024 → 512, relu, dense 64,
    relu, dense; 581,866 parameters for 32×32×3 and 10 classes. Images have at least 8 × 8 pixels.
    """
    convs = [_ConvSpec(channels, 3, "SAME") for channels in (16, 32, 64)]
    return _cnn(input_shape, num_classes, 8, convs, hidden=(512, 64))


def lenet(input_shape: Sequence[int], num_classes: int) -> Model:
    """A LeNet with relu and max pools: conv 5×5×6, pool, conv 5×5×16, pool, dense 120, dense 84, dense.

    44,426 parameters for 28×28×1 and 10 classes, 62,006 for 32×32×3. The network of many independent comparisons of
    federated algorithms. Images have at least 16 × 16 pixels.
    """
    return _cnn(input_shape, num_classes, 16, [_ConvSpec(6, 5), _ConvSpec(16, 5)], hidden=(120, 84))


def autoencoder(sizes: Sequence[int] = (784, 1000, 500, 250, 30)) -> Model:
    """The EMNIST autoencoder of "Adaptive Federated Optimization", 2,837,314 parameters.

    Dense layers down to the code and back through the same sizes, 784-1000-500-250-30-250-500-1000-784; a sigmoid
    after each but the code, which is linear. It starts as in Keras: Glorot uniform kernels, biases 0.

    `sizes` are those of the input, the encoder's layers and the code: at least two, each at least 1. The model maps
    x (batch, ...), in [0, 1] and flattened to (batch, sizes[0]), to its reconstruction: the last sigmoid is part of it.
    """
    if len(sizes) < 2:
        raise UsageError(f"sizes must be at least two, of the input and the code, got {tuple(sizes)}")
    for size in sizes:
        check_int("sizes", size)
    return functional(lambda rngs: _Autoencoder(tuple(sizes), rngs))


class _MLP(nnx.Module):
    def __init__(self, sizes: Sequence[int], rate: float, rngs: nnx.Rngs) -> None:
        self.names = [f"dense{i + 1}" for i in range(len(sizes) - 1)]
        for name, (inputs, outputs) in zip(self.names, pairwise(sizes)):
            setattr(self, name, Linear(inputs, outputs, rngs=rngs))
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = flat(x)
        for name in self.names[:-1]:
            x = self.dropout(nnx.relu(getattr(self, name)(x)))
        return getattr(self, self.names[-1])(x)


class _MnistCNN(nnx.Module):
    def __init__(self, channels: int, classes: int, rate: float, rngs: nnx.Rngs) -> None:
        self.conv1 = Conv(channels, 10, 5, pool=True, rngs=rngs)
        self.conv2 = Conv(10, 20, 5, pool=True, rngs=rngs)
        self.dense1 = Linear(320, 50, rngs=rngs)
        self.dense2 = Linear(50, classes, rngs=rngs)
        self.dropout_channels = nnx.Dropout(rate, broadcast_dims=(1, 2), rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.conv1(x))
        x = nnx.relu(self.dropout_channels(self.conv2(x)))  # a channel dropped after its pool is the same
        x = self.dropout(nnx.relu(self.dense1(flat(x))))
        return self.dense2(x)


class _SmallCNN(nnx.Module):
    def __init__(self, shape: Sequence[int], classes: int, rngs: nnx.Rngs) -> None:
        height, width, channels = shape
        self.conv1 = Conv(channels, 16, 3, padding="SAME", pool=True, rngs=rngs)
        self.conv2 = Conv(16, 32, 3, padding="SAME", pool=True, rngs=rngs)
        self.dense1 = Linear((height // 4) * (width // 4) * 32, 64, rngs=rngs)
        self.dense2 = Linear(64, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.conv2(nnx.relu(self.conv1(x))))
        return self.dense2(nnx.relu(self.dense1(flat(x))))


class _EmnistCNN(nnx.Module):
    def __init__(self, shape: Sequence[int], classes: int, rngs: nnx.Rngs) -> None:
        height, width, channels = shape
        pixels = ((height - 4) // 2) * ((width - 4) // 2)
        self.conv1 = Conv(channels, 32, 3, kernel_init=glorot_uniform(), rngs=rngs)
        self.conv2 = Conv(32, 64, 3, kernel_init=glorot_uniform(), rngs=rngs)
        self.dense1 = Linear(pixels * 64, 128, kernel_init=glorot_uniform(), rngs=rngs)
        self.dense2 = Linear(128, classes, kernel_init=glorot_uniform(), rngs=rngs)
        self.dropout1 = nnx.Dropout(0.25, rngs=rngs)
        self.dropout2 = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.dropout1(max_pool(nnx.relu(self.conv2(nnx.relu(self.conv1(x)))), 2))
        return self.dense2(self.dropout2(nnx.relu(self.dense1(flat(x)))))


class _ConvSpec(NamedTuple):
    """A convolution of `size` × `size`, with a 2 × 2 pool after it or without."""

    features: int
    size: int
    padding: Padding = "VALID"
    pool: bool = True


Activation = Callable[[jax.Array], jax.Array]


def _cnn(
    input_shape: Sequence[int],
    num_classes: int,
    smallest: int,
    convs: Sequence[_ConvSpec],
    hidden: Sequence[int],
    activation: Activation = nnx.relu,
) -> Model:
    shape = check_input(input_shape, num_classes, smallest)

    def build(rngs: nnx.Rngs) -> _CNN:
        height, width, channels = shape
        conv_layers = []
        for spec in convs:
            layer = Conv(channels, spec.features, spec.size, padding=spec.padding, pool=spec.pool, rngs=rngs)
            conv_layers.append(layer)
            border, pool = (spec.size - 1 if spec.padding == "VALID" else 0), (2 if spec.pool else 1)
            height, width, channels = (height - border) // pool, (width - border) // pool, spec.features
        sizes = (height * width * channels, *hidden, num_classes)
        dense = nnx.List(Linear(inputs, outputs, rngs=rngs) for inputs, outputs in pairwise(sizes))
        return _CNN(nnx.List(conv_layers), dense, activation)

    return functional(build)


@dataclass(eq=False)
class _CNN(nnx.Module):
    """Convolutions, each with perhaps a pool and an activation, then dense layers."""

    convs: nnx.List[Conv]
    dense: nnx.List[Linear]
    activation: Activation

    def __call__(self, x: jax.Array) -> jax.Array:
        for conv in self.convs:
            x = self.activation(conv(x))  # pooled first: activations are monotone, so this is the same with fewer
        x = flat(x)
        for layer in self.dense[:-1]:
            x = self.activation(layer(x))
        return self.dense[-1](x)


class _Autoencoder(nnx.Module):
    def __init__(self, sizes: tuple[int, ...], rngs: nnx.Rngs) -> None:
        self.layers = nnx.List(
            nnx.Linear(inputs, outputs, kernel_init=glorot_uniform(), rngs=rngs)
            for inputs, outputs in pairwise(sizes + sizes[-2::-1])
        )
        self.code = len(sizes) - 2

    def __call__(self, x: jax.Array) -> jax.Array:
        x = flat(x)
        for number, layer in enumerate(self.layers):
            x = layer(x) if number == self.code else nnx.sigmoid(layer(x))
        return x
