"""Models of text: the language models of AFO and FAFED, and AFO's tag prediction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import Initializer, glorot_uniform, he_normal, orthogonal

from fedoptax.errors import UsageError, check_int, check_number
from fedoptax.models.model import Model, functional
from fedoptax.models.recurrent import LSTM


def shakespeare_rnn(vocabulary: int = 90, embedding: int = 8, units: Sequence[int] = (256, 256)) -> Model:
    """The next-character model of "Adaptive Federated Optimization", 820,522 parameters.

    Embedding, two LSTM layers, dense. LSTM kernels start He normal as in the released code, the rest as in Keras.
    Padding may only follow a sequence: it is read like any character, which does not change what comes before it.

    Args:
      vocabulary: number of ids, at least 2.
      embedding: size of a character's vector.
      units: of each LSTM layer, at least one.

    Returns:
      A model of ids (batch, time), integers from 0 to vocabulary − 1, to logits (batch, time, vocabulary). An id
      that is too large gives NaN.

    Raises:
      UsageError: an argument is out of range, or on use ids are not integers (batch, time).
    """
    return _language_model(vocabulary, embedding, units, _KERAS._replace(kernel=he_normal()))


def so_rnn(vocabulary: int = 10_004, embedding: int = 96, units: int = 670) -> Model:
    """The next-word model of Stack Overflow in "Adaptive Federated Optimization", 4,050,748 parameters.

    Embedding, one LSTM layer, a linear dense layer back to the embedding's size, dense. It starts as in Keras.
    Padding may only follow a sentence, see `shakespeare_rnn`.

    Args:
      vocabulary: number of ids, at least 2; 10,000 words and padding, beginning, end and unknown.
      embedding: size of a word's vector.
      units: of the LSTM layer.

    Returns:
      A model of ids (batch, time) to logits (batch, time, vocabulary), as `shakespeare_rnn`.

    Raises:
      UsageError: as `shakespeare_rnn`.
    """
    return _language_model(vocabulary, embedding, (units,), _KERAS, projection=embedding)


def wikitext_lstm(vocabulary: int = 33_278, units: int = 650, layers: int = 2, dropout: float = 0.5) -> Model:
    """The WikiText-2 model of FAFED, 50,059,878 parameters.

    Embedding, LSTM layers, dense, with dropout on the embedding, between layers and before the dense layer, which
    is not tied to the embedding. The paper gives sizes only; this is the layout of PyTorch's word-language-model
    example, with one bias a gate instead of two, and its initial ranges: ±0.1 for embedding and dense layer,
    ±1/√units for the LSTM kernels; biases start at 0. Every batch starts from a zero state.

    Args:
      vocabulary: number of ids, at least 2.
      units: of the embedding and of each LSTM layer.
      layers: number of LSTM layers, at least 1.
      dropout: probability to drop a number in training, in [0, 1).

    Returns:
      A model of ids (batch, time) to logits (batch, time, vocabulary), as `shakespeare_rnn`.

    Raises:
      UsageError: as `shakespeare_rnn`.
    """
    check_int("layers", layers)
    check_int("units", units)
    weights, recurrent = _uniform(0.1), _uniform(units**-0.5)
    init = _Initializers(weights, recurrent, recurrent, 0.0, weights)
    return _language_model(vocabulary, units, (units,) * layers, init, dropout=dropout)


def so_logistic(vocabulary: int = 10_000, tags: int = 500) -> Model:
    """The tag prediction of Stack Overflow in "Adaptive Federated Optimization", 5,000,500 parameters.

    One dense layer, Glorot uniform at first. Logits come out: the sigmoid belongs to the loss, a binary
    cross-entropy for each tag.

    Args:
      vocabulary: number of words, at least 1.
      tags: at least 1.

    Returns:
      A model of bags of words (batch, vocabulary) to logits (batch, tags).

    Raises:
      UsageError: an argument is out of range.
    """
    check_int("vocabulary", vocabulary)
    check_int("tags", tags)
    return functional(lambda rngs: nnx.Linear(vocabulary, tags, kernel_init=glorot_uniform(), rngs=rngs))


_Arrays = TypeVar("_Arrays", bound=tuple[Any, ...])


class _Initializers(NamedTuple):
    embedding: Initializer
    kernel: Initializer
    recurrent: Initializer
    forget_bias: float
    dense: Initializer


def _uniform(bound: float) -> Initializer:
    """Uniform on [−bound, bound)."""

    def init(key: jax.Array, shape: Sequence[Any], dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


_KERAS = _Initializers(_uniform(0.05), glorot_uniform(), orthogonal(), 1.0, glorot_uniform())


def _language_model(
    vocabulary: int,
    embedding: int,
    units: Sequence[int],
    init: _Initializers,
    projection: int | None = None,
    dropout: float = 0.0,
) -> Model:
    check_int("vocabulary", vocabulary, 2)
    check_int("embedding", embedding)
    if not units:
        raise UsageError("units must name at least one LSTM layer, got none")
    for size in units:
        check_int("units", size)
    check_number("dropout", dropout, 0.0, 1.0)
    return functional(partial(_LanguageModel, vocabulary, embedding, units, init, projection, dropout))


class _LanguageModel(nnx.Module):
    def __init__(
        self,
        vocabulary: int,
        embedding: int,
        units: Sequence[int],
        init: _Initializers,
        projection: int | None,
        dropout: float,
        rngs: nnx.Rngs,
    ) -> None:
        self.embedding = nnx.Embed(
            vocabulary, embedding, embedding_init=init.embedding, promote_dtype=_keep_dtype, rngs=rngs
        )
        self.layers = nnx.List(
            LSTM(
                inputs,
                outputs,
                kernel_init=init.kernel,
                recurrent_init=init.recurrent,
                forget_bias=init.forget_bias,
                rngs=rngs,
            )
            for inputs, outputs in pairwise((embedding, *units))
        )
        linear = partial(nnx.Linear, kernel_init=init.dense, rngs=rngs)
        self.projection = None if projection is None else linear(units[-1], projection)
        self.dense = linear(projection or units[-1], vocabulary)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer):
            raise UsageError(f"x must be integer ids (batch, time), got {ids.dtype} of shape {ids.shape}")
        x = self.dropout(self.embedding(ids.T))  # (time, batch, embedding)
        for layer in self.layers:
            x = self.dropout(layer(x))
        x = x.swapaxes(0, 1)
        if self.projection is not None:
            x = self.projection(x)
        return self.dense(x)


def _keep_dtype(arrays: _Arrays, /, *, dtype: Any = None, inexact: bool = True) -> _Arrays:
    """Keep the parameters' own dtype, where Flax would promote to the one that the layer was built with."""
    return arrays
