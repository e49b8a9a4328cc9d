"""The bottleneck autoencoder of AFO."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import jax
from flax import nnx

from fedoptax.models.checks import check_units
from fedoptax.models.functional import Model, functional
from fedoptax.models.layers import flat


def autoencoder(sizes: Sequence[int] = (784, 1000, 500, 250, 30)) -> Model:
    """The EMNIST autoencoder of "Adaptive Federated Optimization", 2,837,314 parameters.

    Dense layers down to the code and back through the same sizes, 784-1000-500-250-30-250-500-1000-784; a sigmoid
    after each but the code, which is linear. It starts as in Keras: Glorot uniform kernels, biases 0.

    Args:
      sizes: of the input, the encoder's layers and the code.

    Returns:
      A model of x (batch, ...), flattened to (batch, sizes[0]), in [0, 1], to its reconstruction (batch, sizes[0]),
      in [0, 1]: the last sigmoid is part of the model.

    Raises:
      UsageError: fewer than two sizes, or one of them less than 1.
    """
    check_units("sizes", sizes, layers=2)
    return functional(lambda rngs: _Autoencoder(tuple(sizes), rngs))


class _Autoencoder(nnx.Module):
    def __init__(self, sizes: tuple[int, ...], rngs: nnx.Rngs) -> None:
        glorot = jax.nn.initializers.glorot_uniform()
        self.layers = nnx.List(
            nnx.Linear(inputs, outputs, kernel_init=glorot, rngs=rngs)
            for inputs, outputs in pairwise(sizes + sizes[-2::-1])
        )
        self.code = len(sizes) - 2

    def __call__(self, x: jax.Array) -> jax.Array:
        x = flat(x)
        for number, layer in enumerate(self.layers):
            x = layer(x) if number == self.code else nnx.sigmoid(layer(x))
        return x
