"""Models of text: the language models of AFO and FAFED, and AFO's tag prediction.

A language model maps ids (batch, time), integers from 0 to vocabulary − 1, to logits (batch, time, vocabulary); an id
that is too large gives NaN. Its `vocabulary` is the number of ids, at least 2. Padding may only follow a sequence: it
is read like any id, which does not change what comes before it. Builders raise a `UsageError` if an argument is out of
range, and a model does on use if its ids are not integers (batch, time).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import Initializer, glorot_uniform, he_normal

from fedoptax.errors import UsageError, check_int, check_number
from fedoptax.models.model import Model, functional
from fedoptax.models.recurrent import LSTM


def shakespeare_rnn(vocabulary: int = 90, embedding: int = 8, units: Sequence[int] = (256, 256)) -> Model:
    """The next-character model of "Adaptive Federated Optimization", 820,522 parameters.

    Embedding, two LSTM layers, dense. LSTM kernels start He normal as in the released code, the rest as in Keras.
    `embedding` is the size of a character's vector; `units` has that of each LSTM layer, at least one.
    """
    return _language_model(vocabulary, embedding, units, partial(LSTM, kernel_init=he_normal()))


def so_rnn(vocabulary: int = 10_004, embedding: int = 96, units: int = 670) -> Model:
    """The next-word model of Stack Overflow in "Adaptive Federated Optimization", 4,050,748 parameters.

    Embedding, one LSTM layer, a linear dense layer back to the embedding's size, dense. It starts as in Keras.
    The ids are those of 10,000 words and of padding, beginning, end and unknown; `embedding` is the size of a word's
    vector.
    """
    return _language_model(vocabulary, embedding, (units,), LSTM, projection=embedding)


def wikitext_lstm(vocabulary: int = 33_278, units: int = 650, layers: int = 2, dropout: float = 0.5) -> Model:
    """The WikiText-2 model of FAFED, 50,059,878 parameters.

    Embedding, LSTM layers, dense, with dropout on the embedding, between layers and before the dense layer, which
    is not tied to the embedding. The paper gives sizes only; this is the layout of PyTorch's word-language-model
    example, with one bias a gate instead of two, and its initial ranges: ±0.1 for embedding and dense layer,
    ±1/√units for the LSTM kernels; biases start at 0. Every batch starts from a zero state.

    `units` is the size of the embedding and of each of the LSTM `layers`; `dropout`, in [0, 1), is the probability to
    drop a number in training.
    """
    check_int("layers", layers)
    check_int("units", units)
    recurrent = _uniform(units**-0.5)
    layer = partial(LSTM, kernel_init=recurrent, recurrent_init=recurrent, forget_bias=0.0)
    return _language_model(vocabulary, units, (units,) * layers, layer, _uniform(0.1), _uniform(0.1), dropout=dropout)


def so_logistic(vocabulary: int = 10_000, tags: int = 500) -> Model:
    """The tag prediction of Stack Overflow in "Adaptive Federated Optimization", 5,000,500 parameters.

    One dense layer, Glorot uniform at first, from bags of words (batch, vocabulary) to logits (batch, tags): the
    sigmoid belongs to the loss, a binary cross-entropy for each tag. Both sizes are at least 1.
    """
    check_int("vocabulary", vocabulary)
    check_int("tags", tags)
    return functional(lambda rngs: nnx.Linear(vocabulary, tags, kernel_init=glorot_uniform(), rngs=rngs))


def _uniform(bound: float) -> Initializer:
    """Uniform on [−bound, bound)."""
    return lambda key, shape, dtype=jnp.float32, out_sharding=None: jax.random.uniform(key, shape, dtype, -bound, bound)


def _language_model(
    vocabulary: int, embedding: int, units: Sequence[int], layer: Callable[..., LSTM],
    embedding_init: Initializer | None = None, dense_init: Initializer | None = None, *, projection: int | None = None,
    dropout: float = 0.0,
) -> Model:  # fmt: skip
    """Initializers are Keras's by default."""
    check_int("vocabulary", vocabulary, 2)
    check_int("embedding", embedding)
    if not units:
        raise UsageError("units must name at least one LSTM layer, got none")
    for size in units:
        check_int("units", size)
    check_number("dropout", dropout, 0.0, 1.0)

    def build(rngs: nnx.Rngs) -> _LanguageModel:
        dense = partial(nnx.Linear, kernel_init=dense_init or glorot_uniform(), rngs=rngs)
        return _LanguageModel(
            embedding=nnx.Embed(vocabulary, embedding, embedding_init=embedding_init or _uniform(0.05), rngs=rngs),
            layers=nnx.List(layer(inputs, outputs, rngs=rngs) for inputs, outputs in pairwise((embedding, *units))),
            projection=dense(units[-1], projection) if projection else None,
            dense=dense(projection or units[-1], vocabulary),
            dropout=nnx.Dropout(dropout, rngs=rngs),
        )

    return functional(build)


@dataclass(eq=False)
class _LanguageModel(nnx.Module):
    embedding: nnx.Embed
    layers: nnx.List[LSTM]
    projection: nnx.Linear | None
    dense: nnx.Linear
    dropout: nnx.Dropout

    def __call__(self, ids: jax.Array) -> jax.Array:
        if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer):
            raise UsageError(f"x must be integer ids (batch, time), got {ids.dtype} of shape {ids.shape}")
        # (time, batch, embedding); `self.embedding(…)` would promote to the dtype that it was built with
        x = self.dropout(jnp.take(self.embedding.embedding[...], ids.T, axis=0))
        for layer in self.layers:
            x = self.dropout(layer(x))
        x = x.swapaxes(0, 1)
        if self.projection is not None:
            x = self.projection(x)
        return self.dense(x)
