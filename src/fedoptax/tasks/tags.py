"""Tags of Stack Overflow posts: 500 binary logistic regressions on a bag of 10,000 words."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedoptax.algorithm import Tree
from fedoptax.models import so_logistic
from fedoptax.tasks.division import divide
from fedoptax.tasks.recipe import Options, Recipe
from fedoptax.tasks.task import Task

RECALL_AT = 5


def bag_of_words(ids: jax.Array, words: jax.Array, vocabulary: int, dtype: Any) -> jax.Array:
    """The mean of the one-hot vectors of a post's words, of which those in the vocabulary are kept.

    Args:
      ids: (batch, L), 1 … V for words in the vocabulary, 0 for none.
      words: (batch,), the number of all words of the post.
      vocabulary: V.
      dtype: of the result.

    Returns:
      (batch, V).
    """
    rows = jnp.arange(ids.shape[0])[:, None]
    counts = jnp.zeros((ids.shape[0], vocabulary + 1), dtype).at[rows, ids].add(1)[:, 1:]
    return counts / jnp.maximum(words, 1).astype(dtype)[:, None]


def tag_indicators(ids: jax.Array, tags: int, dtype: Any) -> jax.Array:
    """Which tags a post has: ids (batch, L), 0 for none, 1 … T, to 0 and 1 of shape (batch, T)."""
    rows = jnp.arange(ids.shape[0])[:, None]
    return jnp.zeros((ids.shape[0], tags + 1), dtype).at[rows, ids].set(1)[:, 1:]


def recall(logits: jax.Array, tags: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Recall@5 of each post, (batch,), and its number of tags, by which it weighs: Σ found / Σ tags over a test set."""
    best = jax.lax.top_k(logits, RECALL_AT)[1]
    found = jnp.sum(jnp.take_along_axis(tags, best, axis=1), axis=1)
    number = jnp.sum(tags, axis=1)
    return found / jnp.maximum(number, 1), number


def stackoverflow_tags(name: str, recipe: Recipe, given: Options) -> Task:
    """SO LR of "Adaptive Federated Optimization" (Reddi et al. 2021); metrics `recall_at_5` and `loss`.

    The loss is the *sum* over the batch of each post's mean binary cross-entropy, as in the paper's released code, so
    the paper's client learning rates apply as they are.
    """
    from fedoptax.data.sources import stackoverflow as source

    vocabulary, tags = 10_000, 500
    data = source.load_tags(given.data_dir, vocabulary=vocabulary, tags=tags, max_clients=given.num_clients)
    division = divide(data, recipe, given)
    model = so_logistic(vocabulary, tags)

    def bag(batch: Any, dtype: Any) -> jax.Array:
        return bag_of_words(batch["x"].astype(jnp.int32), batch["words"].astype(jnp.int32), vocabulary, dtype)

    def parts(params: Tree, batch: Any, key: jax.Array | None = None) -> tuple[jax.Array, jax.Array, jax.Array]:
        dtype = jax.tree.leaves(params)[0].dtype
        logits = model.apply(params, bag(batch, dtype), key)
        truth = tag_indicators(batch["y"].astype(jnp.int32), tags, dtype)
        return logits, truth, jnp.mean(optax.sigmoid_binary_cross_entropy(logits, truth), axis=1)

    def loss(params: Tree, batch: Any, key: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(batch["mask"], parts(params, batch, key)[2], 0))

    def metrics(params: Tree, batch: Any) -> dict[str, Any]:
        logits, truth, losses = parts(params, batch)
        return {"recall_at_5": recall(logits, truth), "loss": losses}

    return Task(
        name,
        model.init,
        loss,
        metrics,
        division.clients,
        division.test,
        "recall_at_5",
        True,
        recipe.summary,
        {"model": recipe.model, **division.spec},
        label=None,
        test_owners=division.test_owners,
    )
