"""Text: the next character of Shakespeare, the next word or the tags of Stack Overflow, the next word of WikiText-2."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedoptax.algorithm import Tree
from fedoptax.data.datasets import shakespeare, stackoverflow, wikitext
from fedoptax.data.datasets.source import BOS, OOV, special_tokens, token_names
from fedoptax.errors import check_choice
from fedoptax.models import Model, so_logistic
from fedoptax.tasks.metrics import perplexity
from fedoptax.tasks.recipe import Recipe, TaskOptions, make_task
from fedoptax.tasks.task import Batch, Task, at_least_float32

SO_WORDS, SO_TAGS = 10_000, 500


def shakespeare_characters(name: str, recipe: Recipe, options: TaskOptions) -> Task:
    """The next character of a role; accuracy leaves padding out (Reddi et al. 2021; McMahan et al. 2017)."""
    source = shakespeare.load(options.data_dir)
    net = recipe.models[options.model or recipe.model](source.num_classes)
    learned = next_token(net, token_names(shakespeare.CHARACTERS), pad=shakespeare.SPECIAL.pad)
    inputs = {"text": "characters", "start": BOS, "unknown": OOV, "pad": shakespeare.SPECIAL.pad}
    return make_task(name, recipe, options, source, **learned, inputs=inputs, eval_batch=100)


def stackoverflow_words(name: str, recipe: Recipe, options: TaskOptions) -> Task:
    """The next word of a user; accuracy leaves padding, OOV and end of sentence out (Reddi et al. 2021)."""
    source = stackoverflow.load_nwp(options.data_dir, **stackoverflow_sizes(options))
    net, special = recipe.models[options.model or recipe.model](source.num_classes), special_tokens(SO_WORDS)
    assert source.vocabulary is not None
    words = token_names(source.vocabulary.tolist())
    learned = next_token(net, words, pad=special.pad, unscored=(special.oov, special.eos))
    inputs = {"text": "words", "start": BOS, "unknown": OOV, "pad": special.pad}
    return make_task(name, recipe, options, source, **learned, inputs=inputs, eval_batch=50)


def stackoverflow_sizes(options: TaskOptions) -> dict[str, Any]:
    """How much of the data is read: the first users, and 10,000 test sentences (section 4) or all (appendix E.2)."""
    choice = options.test_examples or "sample"
    check_choice("test_examples", choice, ("sample", "all"))
    return {"max_clients": options.num_clients, "test_examples": None if choice == "all" else 10_000}


def wikitext_words(name: str, recipe: Recipe, options: TaskOptions) -> Task:
    """The next word of an article or of a part of WikiText-2; perplexity, gradients clipped to norm 0.25 (FAFED)."""
    clients = "articles" if options.partition == "articles" else options.num_clients or recipe.num_clients
    source = wikitext.load(options.data_dir, clients=clients)
    net = recipe.models[options.model or recipe.model](source.num_classes)
    assert source.vocabulary is not None
    words = source.vocabulary.tolist()
    learned = next_token(net, words, primary="perplexity")
    inputs = {"text": "words", "unknown": wikitext.UNKNOWN, "pad": len(words)}
    return make_task(name, recipe, options, source, **learned, inputs=inputs, clip_norm=0.25, eval_batch=20)


def next_token(
    net: Model, tokens: Sequence[str], *, pad: int | None = None, unscored: Sequence[int] = (),
    primary: str = "accuracy",
) -> dict[str, Any]:  # fmt: skip
    """Return the attributes of `Task` for predicting each token from those before it.

    `net` maps x (batch, T) to logits (batch, T, vocabulary); y (batch, T) are the tokens that follow, `pad` among them
    where a sequence is shorter. The loss is the cross-entropy averaged over the real tokens of a batch. Metrics:
    `accuracy` over the tokens that are neither padding nor `unscored`, `loss` in nats per real token, and `perplexity`,
    its exponential. `predict` gives the probabilities of the token that follows x, which may end in padding: `pad`, or
    else the number of all `tokens`, the vocabulary.
    """

    def score(params: Tree, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        logits = at_least_float32(net.apply(params, batch["x"].astype(jnp.int32), key))
        targets = jnp.maximum(batch["y"].astype(jnp.int32), 0)  # `pad` may be below 0
        return logits, optax.softmax_cross_entropy_with_integer_labels(logits, targets)

    def is_real(y: jax.Array) -> jax.Array:
        return jnp.ones(y.shape, jnp.float32) if pad is None else (y != pad).astype(jnp.float32)

    def loss(params: Tree, batch: Batch, key: jax.Array) -> jax.Array:
        _, losses = score(params, batch, key)
        counts = (is_real(batch["y"]) * batch["mask"][:, None]).astype(losses.dtype)
        return jnp.sum(losses * counts) / jnp.maximum(jnp.sum(counts), 1)

    def metrics(params: Tree, batch: Batch) -> dict[str, Any]:
        logits, losses = score(params, batch)
        y = batch["y"]
        counts = scored = is_real(y)
        for token in unscored:
            scored = scored * (y != token)
        right = (jnp.argmax(logits, axis=-1) == y.astype(jnp.int32)).astype(jnp.float32)
        return {"accuracy": (right, scored), "loss": (losses, counts), "perplexity": perplexity(losses, counts)}

    def predict(params: Tree, batch: Batch) -> jax.Array:
        x = batch["x"].astype(jnp.int32)
        is_real_token = x != (len(tokens) if pad is None else pad)
        logits = net.apply(params, jnp.where(is_real_token, x, 0))
        last = jnp.maximum(jnp.sum(is_real_token, axis=1) - 1, 0)
        return jax.nn.softmax(jnp.take_along_axis(logits, last[:, None, None], axis=1)[:, 0])

    learned = {"init": net.init, "loss": loss, "metrics": metrics, "predict": predict, "classes": tokens}
    return learned | {"primary_metric": primary, "higher_is_better": primary == "accuracy"}


def stackoverflow_tags(name: str, recipe: Recipe, options: TaskOptions) -> Task:
    """SO LR of "Adaptive Federated Optimization" (Reddi et al. 2021); metrics `recall_at_5` and `loss`.

    The loss is the *sum* over the batch of each post's mean binary cross-entropy, as in the paper's released code, so
    the paper's client learning rates apply as they are.
    """
    source = stackoverflow.load_tags(options.data_dir, SO_WORDS, SO_TAGS, **stackoverflow_sizes(options))
    model = so_logistic(SO_WORDS, SO_TAGS)

    def logits_of(params: Tree, batch: Batch) -> jax.Array:
        dtype = jax.tree.leaves(params)[0].dtype
        bag = bag_of_words(batch["x"].astype(jnp.int32), batch["words"].astype(jnp.int32), SO_WORDS, dtype)
        return at_least_float32(model.apply(params, bag))

    def score(params: Tree, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Logits and true tags (batch, T), and each post's loss (batch,)."""
        logits = logits_of(params, batch)
        truth = jnp.max(jax.nn.one_hot(batch["y"].astype(jnp.int32) - 1, SO_TAGS, dtype=logits.dtype), axis=1)
        return logits, truth, jnp.mean(optax.sigmoid_binary_cross_entropy(logits, truth), axis=1)

    def loss(params: Tree, batch: Batch, key: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(batch["mask"], score(params, batch)[2], 0))

    def metrics(params: Tree, batch: Batch) -> dict[str, Any]:
        logits, truth, losses = score(params, batch)
        return {"recall_at_5": recall(logits, truth), "loss": losses}

    assert source.vocabulary is not None
    learned = {"init": model.init, "loss": loss, "metrics": metrics, "primary_metric": "recall_at_5", "label": None}
    learned["predict"] = lambda params, batch: jax.nn.sigmoid(logits_of(params, batch))
    learned["inputs"] = {"text": "bag", "vocabulary": source.vocabulary.tolist()}
    return make_task(name, recipe, options, source, **learned)


def bag_of_words(ids: jax.Array, words: jax.Array, vocabulary: int, dtype: Any) -> jax.Array:
    """The mean of the one-hot vectors of a post's words, 0 for a word outside the vocabulary, (batch, V).

    Of ids (batch, L), 1 … V for words in the vocabulary, else 0, and of `words` (batch,), the number of all words.
    """
    rows = jnp.arange(ids.shape[0])[:, None]
    counts = jnp.zeros((ids.shape[0], vocabulary + 1), dtype).at[rows, ids].add(1)[:, 1:]
    return counts / jnp.maximum(words, 1).astype(dtype)[:, None]


def recall(logits: jax.Array, tags: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Recall@5 of each post, (batch,), and its number of tags as weight: Σ found / Σ tags over a test set."""
    number_found = jnp.sum(jnp.take_along_axis(tags, jax.lax.top_k(logits, 5)[1], axis=1), axis=1)
    number = jnp.sum(tags, axis=1)
    return number_found / jnp.maximum(number, 1), number
