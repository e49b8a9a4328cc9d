"""Cross-entropy, the loss of classification and of the next word."""

from __future__ import annotations

import jax
import optax

MANY = 129
"""Classes from which a label's logit is gathered: with fewer, a sum over all takes no longer and compiles sooner."""


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Each label's cross-entropy in nats: (…, classes) and whole numbers (…,) to (…,), in the logits' dtype."""
    classes = logits.shape[-1]
    if classes >= MANY:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, classes, dtype=logits.dtype))
