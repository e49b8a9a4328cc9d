"""Next token: characters of Shakespeare, words of Stack Overflow and of WikiText-2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedoptax.algorithm import Tree
from fedoptax.errors import UsageError
from fedoptax.models import shakespeare_rnn, so_rnn, wikitext_lstm
from fedoptax.models.model import Model
from fedoptax.tasks.division import Division, divide
from fedoptax.tasks.recipe import Options, Recipe
from fedoptax.tasks.task import Task

SHAKESPEARE_MODELS: dict[str, Callable[[int], Model]] = {
    "rnn": shakespeare_rnn,
    "rnn_small": partial(shakespeare_rnn, units=(64, 64)),
}
SO_MODELS: dict[str, Callable[[int], Model]] = {
    "rnn": so_rnn,
    "rnn_small": partial(so_rnn, units=64),
}
WIKITEXT_MODELS: dict[str, Callable[[int], Model]] = {
    "lstm": wikitext_lstm,
    "lstm_small": partial(wikitext_lstm, units=128),
}


def shakespeare(name: str, recipe: Recipe, given: Options) -> Task:
    """The next character of a role; accuracy leaves padding out (Reddi et al. 2021; McMahan et al. 2017)."""
    from fedoptax.data.sources import shakespeare as source

    data = source.load(given.data_dir)
    model = given.model or recipe.model
    net = SHAKESPEARE_MODELS[model](data.num_classes)
    division = divide(data, recipe, given)
    return next_token(name, net, division, recipe.summary, model, pad=source.SPECIAL.pad)


def stackoverflow(name: str, recipe: Recipe, given: Options) -> Task:
    """The next word of a user; accuracy leaves padding, OOV and end of sentence out (Reddi et al. 2021)."""
    from fedoptax.data.sources import stackoverflow as source
    from fedoptax.data.sources.tokens import special_tokens

    data = source.load_nwp(given.data_dir, max_clients=given.num_clients)
    special = special_tokens(data.num_classes - 4)
    model = given.model or recipe.model
    net = SO_MODELS[model](data.num_classes)
    division = divide(data, recipe, given)
    unscored = (special.oov, special.eos)
    return next_token(name, net, division, recipe.summary, model, pad=special.pad, unscored=unscored, eval_batch=50)


def wikitext(name: str, recipe: Recipe, given: Options) -> Task:
    """The next word of an article or of a part of WikiText-2; perplexity, gradients clipped to norm 0.25 (FAFED)."""
    from fedoptax.data.sources import wikitext as source

    partition = given.partition or recipe.partitions[0]
    parts = recipe.num_clients if given.num_clients is None else given.num_clients
    if parts is not None and parts < 1:
        raise UsageError(f"num_clients: {parts} given, allowed is a whole number >= 1")
    data = source.load(given.data_dir, clients=parts if partition == "parts" else "articles")
    model = given.model or recipe.model
    division = divide(data, recipe, given)
    return next_token(
        name,
        WIKITEXT_MODELS[model](data.num_classes),
        division,
        recipe.summary,
        model,
        pad=None,
        primary="perplexity",
        clip_norm=0.25,
        eval_batch=20,
    )


def next_token(
    name: str,
    net: Model,
    division: Division,
    description: str,
    model: str,
    *,
    pad: int | None,
    unscored: Sequence[int] = (),
    primary: str = "accuracy",
    clip_norm: float | None = None,
    eval_batch: int = 100,
) -> Task:
    """Cross-entropy of each token given those before it, averaged over the real tokens of a batch.

    Metrics: `accuracy` over the tokens that are neither padding nor `unscored`, `loss` in nats a real token, and
    `perplexity`, its exponential.

    Args:
      name, description, clip_norm, eval_batch: as in `Task`.
      net: x (batch, T) of whole numbers to logits (batch, T, vocabulary).
      division: examples with x and y (n, T), the tokens and those that follow them.
      model: the net's name, for the spec.
      pad: the token that fills up short sequences; None if there is none.
      unscored: tokens that are learned but do not count in `accuracy`.
      primary: the metric that reports lead with.
    """

    def of_tokens(params: Tree, batch: Any, key: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        logits = net.apply(params, batch["x"].astype(jnp.int32), key)
        return logits, optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"].astype(jnp.int32))

    def real(y: jax.Array) -> jax.Array:
        return jnp.ones(y.shape, jnp.float32) if pad is None else (y != pad).astype(jnp.float32)

    def loss(params: Tree, batch: Any, key: jax.Array) -> jax.Array:
        _, losses = of_tokens(params, batch, key)
        counts = (real(batch["y"]) * batch["mask"][:, None]).astype(losses.dtype)
        return jnp.sum(losses * counts) / jnp.maximum(jnp.sum(counts), 1)

    def metrics(params: Tree, batch: Any) -> dict[str, tuple[jax.Array, jax.Array]]:
        logits, losses = of_tokens(params, batch)
        y = batch["y"]
        counts = real(y)
        scored = counts
        for token in unscored:
            scored = scored * (y != token)
        right = (jnp.argmax(logits, axis=-1) == y.astype(jnp.int32)).astype(jnp.float32)
        return {"accuracy": (right, scored), "loss": (losses, counts)}

    return Task(
        name,
        net.init,
        loss,
        metrics,
        division.clients,
        division.test,
        primary,
        primary == "accuracy",
        description,
        {"model": model, **division.spec},
        derived={"perplexity": lambda means: jnp.exp(means["loss"])},
        test_owners=division.test_owners,
        clip_norm=clip_norm,
        eval_batch=eval_batch,
    )
