"""Dense networks and small CNNs of Fed-LAMB and AFO: x (batch, *input_shape) to logits (batch, num_classes)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from flax import nnx

from fedoptax.models.checks import check_input, check_rate, check_units
from fedoptax.models.functional import Model, functional
from fedoptax.models.layers import Conv, Lowering, flat, max_pool
from fedoptax.models.linear import Linear


def logistic(input_shape: Sequence[int], num_classes: int) -> Model:
    """Multinomial logistic regression: one dense layer on the flattened input.

    Args:
      input_shape: of one example.
      num_classes: at least 2.

    Raises:
      UsageError: an argument is out of range.
    """
    return mlp(input_shape, num_classes, hidden=())


def mlp(input_shape: Sequence[int], num_classes: int, hidden: Sequence[int] = (200,), dropout: float = 0.0) -> Model:
    """Dense layers with ReLU on the flattened input; with 28×28 and 200 hidden units, Fed-LAMB's MNIST MLP.

    Args:
      input_shape: of one example.
      num_classes: at least 2.
      hidden: units of each hidden layer.
      dropout: probability to drop a hidden unit in training, from 0 to less than 1.

    Raises:
      UsageError: an argument is out of range.
    """
    check_input(input_shape, num_classes, smallest=1)
    check_rate(dropout)
    check_units("hidden", hidden)
    sizes = (math.prod(input_shape), *hidden, num_classes)
    return functional(lambda rngs: _MLP(sizes, dropout, rngs))


def mlp_dropout(input_shape: Sequence[int], num_classes: int) -> Model:
    """`mlp` with the dropout of Fed-LAMB's MNIST MLP: 200 hidden units, half of them dropped in training."""
    return mlp(input_shape, num_classes, dropout=0.5)


def cnn(input_shape: Sequence[int], num_classes: int, dropout: float = 0.5, lowering: Lowering = "auto") -> Model:
    """The small convolutional network that suits the input's size.

    For 28×28, Fed-LAMB's MNIST CNN: conv 5×5×10, pool, relu, conv 5×5×20, dropout of whole channels, pool,
    relu, dense 320 → 50, relu, dropout, dense. For any other size, such as the 8×8 digits: conv 3×3×16, relu,
    pool, conv 3×3×32, relu, pool, dense 64, relu, dense, with no dropout.

    Args:
      input_shape: (height, width, channels), height and width at least 4.
      num_classes: at least 2.
      dropout: probability of both dropouts of the 28×28 network, from 0 to less than 1.
      lowering: of the convolutions, see `fedoptax.models.layers.conv`.

    Raises:
      UsageError: an argument is out of range.
    """
    height, width, channels = check_input(input_shape, num_classes, smallest=4)
    check_rate(dropout)
    if (height, width) == (28, 28):
        return functional(lambda rngs: _MnistCNN(channels, num_classes, dropout, lowering, rngs))
    return functional(lambda rngs: _SmallCNN((height, width, channels), num_classes, lowering, rngs))


def emnist_cnn(input_shape: Sequence[int], num_classes: int, lowering: Lowering = "auto") -> Model:
    """The EMNIST CNN of "Adaptive Federated Optimization", with its Glorot-uniform initialisation.

    Conv 3×3×32, relu, conv 3×3×64, relu, pool, dropout 0.25, dense 128, relu, dropout 0.5, dense; 1,206,590
    parameters for 28×28×1 and 62 classes.

    Args:
      input_shape: (height, width, channels), height and width at least 6.
      num_classes: at least 2.
      lowering: of the convolutions, see `fedoptax.models.layers.conv`.

    Raises:
      UsageError: an argument is out of range.
    """
    shape = check_input(input_shape, num_classes, smallest=6)
    return functional(lambda rngs: _EmnistCNN(shape, num_classes, lowering, rngs))


class _MLP(nnx.Module):
    def __init__(self, sizes: Sequence[int], rate: float, rngs: nnx.Rngs) -> None:
        self.names = [f"dense{i + 1}" for i in range(len(sizes) - 1)]
        for name, inputs, outputs in zip(self.names, sizes[:-1], sizes[1:]):
            setattr(self, name, Linear(inputs, outputs, rngs=rngs))
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = flat(x)
        for name in self.names[:-1]:
            x = self.dropout(nnx.relu(getattr(self, name)(x)))
        return getattr(self, self.names[-1])(x)


class _MnistCNN(nnx.Module):
    def __init__(self, channels: int, classes: int, rate: float, lowering: Lowering, rngs: nnx.Rngs) -> None:
        self.conv1 = Conv(channels, 10, 5, lowering=lowering, rngs=rngs)
        self.conv2 = Conv(10, 20, 5, lowering=lowering, rngs=rngs)
        self.dense1 = Linear(320, 50, rngs=rngs)
        self.dense2 = Linear(50, classes, rngs=rngs)
        self.dropout_channels = nnx.Dropout(rate, broadcast_dims=(1, 2), rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(max_pool(self.conv1(x), 2))
        x = nnx.relu(max_pool(self.dropout_channels(self.conv2(x)), 2))
        x = self.dropout(nnx.relu(self.dense1(flat(x))))
        return self.dense2(x)


class _SmallCNN(nnx.Module):
    def __init__(self, shape: tuple[int, int, int], classes: int, lowering: Lowering, rngs: nnx.Rngs) -> None:
        height, width, channels = shape
        self.conv1 = Conv(channels, 16, 3, padding="SAME", lowering=lowering, rngs=rngs)
        self.conv2 = Conv(16, 32, 3, padding="SAME", lowering=lowering, rngs=rngs)
        self.dense1 = Linear((height // 4) * (width // 4) * 32, 64, rngs=rngs)
        self.dense2 = Linear(64, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = max_pool(nnx.relu(self.conv1(x)), 2)
        x = max_pool(nnx.relu(self.conv2(x)), 2)
        return self.dense2(nnx.relu(self.dense1(flat(x))))


class _EmnistCNN(nnx.Module):
    def __init__(self, shape: tuple[int, int, int], classes: int, lowering: Lowering, rngs: nnx.Rngs) -> None:
        height, width, channels = shape
        glorot = jax.nn.initializers.glorot_uniform()
        pixels = ((height - 4) // 2) * ((width - 4) // 2)
        self.conv1 = Conv(channels, 32, 3, lowering=lowering, kernel_init=glorot, rngs=rngs)
        self.conv2 = Conv(32, 64, 3, lowering=lowering, kernel_init=glorot, rngs=rngs)
        self.dense1 = Linear(pixels * 64, 128, kernel_init=glorot, rngs=rngs)
        self.dense2 = Linear(128, classes, kernel_init=glorot, rngs=rngs)
        self.dropout1 = nnx.Dropout(0.25, rngs=rngs)
        self.dropout2 = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.conv2(nnx.relu(self.conv1(x))))
        x = self.dropout1(max_pool(x, 2))
        x = self.dropout2(nnx.relu(self.dense1(flat(x))))
        return self.dense2(x)
