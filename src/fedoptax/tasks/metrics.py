"""Metrics: sums or collected rows over held-out examples, the resulting number, and its columns."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Tree
from fedoptax.errors import UsageError

SUMMARIES = {"train": (), "test": (), "val": (), "client": ("mean", "spread", "worst_decile"), "nodes": ("bound",)}
"""Whose examples a metric is of, and the summaries that it may have there."""
LOWER = ("loss", "error", "mse", "mae", "mape", "rmsle", "entropy", "brier", "bits", "divergence", "regret", "cost",
    "risk", "ppl", "perplexity", "nll", "distance", "excess", "spread", "seconds", "epsilon")  # fmt: skip
"""Words in the names of values of which less is better, where nothing else says so."""
BINS = 1000
TRACED_ROWS = 8191  # of a batch that is only traced; as another axis, labels (n, 1) were broadcast to (n, n)


class Column(NamedTuple):
    """A column of the history that measures quality: `test_accuracy`, `client_accuracy_worst_decile`.

    `split` says whose examples: `train`, `test`, `val`, `client` (summarized over clients), `nodes` (of a deployment);
    `summary` is of `client` the mean, spread or worst_decile, of `nodes` the bound of a binned metric, else empty.
    """

    split: str
    metric: str
    summary: str = ""

    def __str__(self) -> str:
        return "_".join(filter(None, self))

    @classmethod
    def parse(cls, name: str) -> "Column | None":
        """Return the column of this name; None for one that measures no quality, such as `bytes_up`."""
        split, _, rest = name.partition("_")
        if not rest or split not in SUMMARIES:
            return None
        summary = next((text for text in SUMMARIES[split] if rest.endswith(f"_{text}")), "")
        return cls(split, rest.removesuffix(f"_{summary}") if summary else rest, summary)


def higher_is_better(name: str, stated: Mapping[str, bool]) -> bool:
    """Return whether more is better in a column of the history, as `stated` by metric, or else by words in its name."""
    column = Column.parse(name)
    if column is not None and column.split != "train" and column.metric in stated:
        return column.summary not in ("spread", "bound") and stated[column.metric]
    return not any(word.startswith(LOWER) or word.endswith(LOWER) for word in re.split(r"[\W_]+", name.lower()))


STATIC = {"static": True}  # part of a metric's structure, as JAX sees it, not of its arrays


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Metric:
    """The rows of a metric for a batch of examples, and the number that follows from all examples.

    Attributes:
      values: a tree of arrays (batch, …), one row per example; they are summed over batches, devices and nodes, in
        float32.
      result: `sums -> number`, of the tree of sums; NaN where it is not defined.
      higher_is_better: which way is better.
      format: `"number"`, or `"share"` for one from 0 to 1, of which tables compare differences by the point.
      is_collected: rows are collected instead of summed; `result` is `(values, mask) -> number` of rows (n, …), of
        which those where `mask` (n,) is False do not count.
      binned: of a collected metric, the one of sums that replaces it among the nodes of a deployment, where scores of
        examples may not travel; None if there is none.
      bound: `sums -> number`, the most by which a binned result may be off.

    Example:
      >>> import jax.numpy as jnp, fedoptax as fx
      >>> errors = jnp.array([3.0, 4.0])
      >>> rmse = fx.metrics.Metric((errors**2, jnp.ones(2)), lambda s: jnp.sqrt(s[0] / s[1]), higher_is_better=False)
    """

    values: Tree
    result: Callable[..., jax.Array] = field(metadata=STATIC)
    higher_is_better: bool = field(default=True, metadata=STATIC)
    format: str = field(default="number", metadata=STATIC)
    is_collected: bool = field(default=False, metadata=STATIC)
    binned: "Metric | None" = None
    bound: Callable[[Tree], jax.Array] | None = field(default=None, metadata=STATIC)


def mean(
    values: jax.Array, weights: jax.Array | None = None, higher_is_better: bool = True, format: str = "number"
) -> Metric:
    """Return the mean of `values` (batch, …), weighted by `weights` of the same shape; NaN where these sum to 0."""
    values = jnp.asarray(values)
    values = values.astype(jnp.promote_types(values.dtype, jnp.float32))
    weights = jnp.ones_like(values, jnp.float32) if weights is None else jnp.asarray(weights)
    if values.shape != weights.shape or not values.shape or TRACED_ROWS in values.shape[1:]:
        raise UsageError(f"values and weights must be one row per example, got {values.shape} and {weights.shape}")
    sums = jnp.where(weights > 0, weights * values, 0), weights
    rows = tuple(jnp.sum(a.reshape(len(a), -1), axis=1, dtype=jnp.float32) for a in sums)
    return Metric(rows, _divide, higher_is_better, format)


def perplexity(losses: jax.Array, weights: jax.Array | None = None) -> Metric:
    """Return the exponential of the mean of `losses`, weighted as in `mean`."""
    return replace(mean(losses, weights, higher_is_better=False), result=lambda sums: jnp.exp(_divide(sums)))


def root_mean(squares: jax.Array) -> Metric:
    """Return the square root of the mean of `squares` (batch,), such as RMSE."""
    return replace(mean(squares, higher_is_better=False), result=lambda sums: jnp.sqrt(_divide(sums)))


def r2(predicted: jax.Array, actual: jax.Array) -> Metric:
    """Return the coefficient of determination of numbers (batch,), 1 − Σ(y − ŷ)² / Σ(y − ȳ)²; NaN for (nearly) equal y.

    Sums are in float32: let the numbers be standardised.
    """

    def result(sums: Tree) -> jax.Array:
        errors, total, squares, count = sums
        spread = squares - _divide((jnp.square(total), count))
        return jnp.where(spread > 1e-5 * squares, 1 - errors / spread, jnp.nan)

    return Metric((jnp.square(actual - predicted), actual, jnp.square(actual), jnp.ones_like(actual)), result)


def accuracy(scores: jax.Array, labels: jax.Array, positive: int = 1) -> Metric:
    """Return the share of examples whose `labels` (batch,) have the largest of their `scores` (batch, classes)."""
    return mean(jnp.argmax(scores, axis=-1) == jnp.reshape(labels, scores.shape[:-1]), format="share")


def f1(probabilities: jax.Array, labels: jax.Array, positive: int = 1) -> Metric:
    """Return F1, 2·TP / (2·TP + FP + FN): of the `positive` class if there are two, else the mean over the classes."""
    classes = probabilities.shape[-1]
    predicted = jax.nn.one_hot(jnp.argmax(probabilities, axis=-1), classes)
    actual = jax.nn.one_hot(labels, classes)

    def result(sums: Tree) -> jax.Array:
        by_class = _divide((2 * sums["right"], sums["either"]))
        return by_class[positive] if classes == 2 else jnp.nanmean(by_class)

    return Metric({"right": predicted * actual, "either": predicted + actual}, result, format="share")


def auroc(probabilities: jax.Array, labels: jax.Array, positive: int = 1) -> Metric:
    """Return the area under the ROC curve, see `ranked`; of two classes either gives the same.

    Pairs of both classes that share a bin count half, so a binned area is off by at most half their share among all.
    """

    def area(scores: jax.Array, positive: jax.Array, negative: jax.Array) -> jax.Array:
        """The share of pairs with the larger score at the positive."""
        order = jnp.argsort(scores)
        below = jnp.concatenate([jnp.zeros(1), jnp.cumsum(negative[order])])  # the negatives before each place
        first, last = (below[jnp.searchsorted(scores[order], scores, side=side)] for side in ("left", "right"))
        return _divide((jnp.sum(positive * (first + last) / 2), jnp.sum(positive) * jnp.sum(negative)))

    def bound(scores: jax.Array, positive: jax.Array, negative: jax.Array) -> jax.Array:
        return _divide((jnp.sum(positive * negative) / 2, jnp.sum(positive) * jnp.sum(negative)))

    return ranked(probabilities, labels, positive, area, bound)


def auprc(probabilities: jax.Array, labels: jax.Array, positive: int = 1) -> Metric:
    """Return the area under the precision-recall curve as the average precision, see `ranked`."""

    def precision(scores: jax.Array, positive: jax.Array, negative: jax.Array) -> jax.Array:
        """The mean over the positives of the precision where they are just found."""
        order = jnp.argsort(scores)
        first = jnp.searchsorted(scores[order], scores, side="left")
        right, wrong = (
            jnp.sum(count) - jnp.concatenate([jnp.zeros(1), jnp.cumsum(count[order])])[first]
            for count in (positive, negative)
        )
        found = jnp.sum(positive * right / jnp.maximum(right + wrong, 1))
        return _divide((found * jnp.any(negative > 0), jnp.sum(positive) * jnp.any(negative > 0)))

    return ranked(probabilities, labels, positive, precision)


def balanced_accuracy(probabilities: jax.Array, labels: jax.Array, positive: int = 1) -> Metric:
    """Return the mean over the classes of the share of a class's examples whose score is the largest."""
    actual = jax.nn.one_hot(labels, probabilities.shape[-1])
    is_right = (jnp.argmax(probabilities, axis=-1) == labels)[:, None]
    return Metric((actual * is_right, actual), lambda sums: jnp.nanmean(_divide(sums)), format="share")


def brier(probabilities: jax.Array, labels: jax.Array, positive: int = 1) -> Metric:
    """Return the mean squared error of the probabilities: of the positive class of two, else summed over all."""
    errors = jnp.square(probabilities - jax.nn.one_hot(labels.reshape(-1), probabilities.shape[-1]))
    is_binary = probabilities.shape[-1] == 2
    return mean(errors[:, positive] if is_binary else jnp.sum(errors, axis=-1), higher_is_better=False)


def calibration_error(probabilities: jax.Array, labels: jax.Array, positive: int = 1) -> Metric:
    """Return how far probabilities are from shares, on average over the examples, in ten bins of equal width.

    Of two classes the probability of the positive one counts, else that of the most probable class.
    """
    if probabilities.shape[-1] == 2:
        score, is_true = probabilities[:, positive], labels == positive
    else:
        score, is_true = jnp.max(probabilities, axis=-1), jnp.argmax(probabilities, axis=-1) == labels
    in_bin = jax.nn.one_hot(jnp.clip(jnp.ceil(score * 10) - 1, 0, 9).astype(int), 10)
    rows = in_bin * (score - is_true)[:, None], in_bin
    return Metric(rows, lambda sums: _divide((jnp.sum(jnp.abs(sums[0])), jnp.sum(sums[1]))), higher_is_better=False)


def confusion(probabilities: jax.Array, labels: jax.Array, names: Sequence[str]) -> dict[str, Metric]:
    """Return by `confusion_ACTUAL_as_PREDICTED` the number of examples of each pair of classes."""
    predicted = jnp.argmax(probabilities, axis=-1)

    def count(i: int, j: int) -> Metric:
        found = mean((labels == i) & (predicted == j), higher_is_better=i == j)
        return replace(found, result=lambda sums: sums[0] / (sums[1] > 0))  # NaN without examples

    pairs = product(enumerate(names), enumerate(names))
    return {f"confusion_{actual}_as_{other}": count(i, j) for (i, actual), (j, other) in pairs}


Ranking = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""`(scores, positive, negative) -> number` of scores (n,) and how many positive and negative examples have each."""


def ranked(
    probabilities: jax.Array, labels: jax.Array, positive: int, number: Ranking, bound: Ranking | None = None
) -> Metric:
    """Return a metric that depends on the order of the scores; of more than two classes the mean of each against all.

    It is exact where scores can be collected. Nodes of a deployment send how many positive and negative examples are in
    each of 1,000 bins of equal width in arcsin √probability, narrow where that is small or large. A class without
    positive or negative examples is left out; without any class the metric is NaN.

    Takes `probabilities` (batch, classes), whole `labels` (batch,) and, of two classes, the `positive` one. `number` is
    the metric of one class, `bound` the most by which it may be off for bins, if that is known.
    """
    classes = np.arange(probabilities.shape[-1]) if probabilities.shape[-1] != 2 else np.array([positive])
    scores, is_positive = probabilities[:, classes], labels[:, None] == classes

    def exact(values: Tree, mask: jax.Array) -> jax.Array:
        score, weight = values["score"], mask[:, None].astype(jnp.float32)
        by_class = jax.vmap(number, 1)(score, values["positive"] * weight, (1 - values["positive"]) * weight)
        return jnp.nanmean(jnp.where(jnp.any(jnp.isnan(score) & mask[:, None], axis=0), jnp.nan, by_class))

    def of_bins(number: Ranking, sums: Tree) -> jax.Array:
        return jnp.nanmean(jax.vmap(number, (None, 0, 0))(jnp.arange(BINS), sums["positive"], sums["negative"]))

    place = 2 / jnp.pi * jnp.arcsin(jnp.sqrt(jnp.clip(scores, 0, 1)))  # from 0 to 1
    in_bin = jax.nn.one_hot(jnp.minimum(place * BINS, BINS - 1).astype(int), BINS)
    in_bin = jnp.where(jnp.isnan(scores)[..., None], jnp.nan, in_bin)
    counts = {"positive": in_bin * is_positive[..., None], "negative": in_bin * ~is_positive[..., None]}
    binned = Metric(counts, partial(of_bins, number), format="share", bound=bound and partial(of_bins, bound))
    values = {"score": scores, "positive": is_positive.astype(jnp.float32)}
    return Metric(values, exact, format="share", is_collected=True, binned=binned)


def total_of(metric: Metric) -> float:
    """Return the number of a metric from the values of all examples."""
    if metric.is_collected:
        return float(metric.result(metric.values, jnp.ones(len(jax.tree.leaves(metric.values)[0]), bool)))
    return float(metric.result(jax.tree.map(partial(jnp.sum, axis=0), metric.values)))


METRICS: dict[str, Callable[[jax.Array, jax.Array, int], Metric]] = {
    "accuracy": accuracy, "auroc": auroc, "auprc": auprc, "f1": f1, "balanced_accuracy": balanced_accuracy,
    "brier": brier, "calibration_error": calibration_error,
}  # fmt: skip
"""Metrics of classes by name, `(probabilities, labels, positive class) -> Metric`; see `fedoptax.with_metrics`."""


def as_metric(name: str, value: Any, size: int) -> Metric:
    """Return a task's metric of `size` examples as a `Metric`: the mean for values or a pair (values, weights).

    Without one row per example, or if values and weights differ in shape, it is a `UsageError`.
    """
    values, weights = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    form = "share" if "accuracy" in name else "number"
    try:
        metric = value if isinstance(value, Metric) else mean(values, weights, higher_is_better(name, {}), form)
    except (ValueError, TypeError) as error:
        raise UsageError(f"metric '{name}': {error}") from error
    for shape in map(jnp.shape, jax.tree.leaves(metric.values)):
        if shape[:1] != (size,) or TRACED_ROWS in shape[1:]:
            raise UsageError(f"metric '{name}' must have a row per example, of {size} examples, got shape {shape}")
    return metric


def _divide(sums: tuple[jax.Array, jax.Array]) -> jax.Array:
    total, weight = sums
    return jnp.where(weight > 0, total / jnp.maximum(weight, 1e-30), jnp.nan)
