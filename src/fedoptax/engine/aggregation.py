"""How a round's uploads are combined: the weighted mean, also of fixed-point numbers, or robust rules.

An aggregator combines the decoded uploads of a cohort, stacked leaf by leaf (S, …), of which only those that are
`present` count. Sums are in float32 or wider, and integer leaves (counters) are rounded at the end, as in the weighted
mean.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import Tree, accumulate, accumulate_result, accumulate_zero
from fedoptax.errors import UsageError, check_int, check_number
from fedoptax.wrappers.uploads import is_floating

LEVELS = 2.0**30  # of a fixed-point number from 0 to its range: sums of shares stay within int32
LOSS_RANGE, COUNT_RANGE = 2.0**10, 2.0**20  # of training losses and of integers


class Sent(NamedTuple):
    """The decoded upload and the mean training loss of a member of the cohort."""

    upload: Tree
    loss: Any


class Aggregator:
    """A rule and its name; its numbers are the fields of a dataclass, `min_uploads` the smallest number of uploads."""

    name: ClassVar[str]
    min_uploads: ClassVar[int] = 1

    def __str__(self) -> str:
        return ":".join([self.name, *map(repr, vars(self).values())])

    def combine(self, uploads: Tree, weights: jax.Array, present: jax.Array) -> Tree:
        """The aggregate of stacked uploads (S, …); weights (S,) ≥ 0; present bool (S,), `min_uploads` or more."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Aggregator):
    """The weighted mean Σ wᵢ uᵢ / Σ wᵢ, which adds up `prepare(upload)`; the others need all uploads at once."""

    name = "mean"

    def prepare(self, upload: Tree) -> Tree:
        """Return the part of an upload that is averaged: the upload itself."""
        return upload

    def zero(self, like: Tree) -> Tree:
        """An empty sum for uploads such as `like`."""
        return accumulate_zero(like)

    def add(self, total: Tree, weight: jax.Array, sent: Tree) -> Tree:
        """total + weight · sent."""
        return accumulate(total, weight, sent)

    def sum(self, weights: jax.Array, sent: Tree) -> Tree:
        """Σ wᵢ sentᵢ of stacked uploads, leaf by leaf; uploads of weight 0 are never read."""
        parts = jax.vmap(self.add)(self.zero(sent), weights, sent)
        return jax.tree.map(lambda a: jnp.sum(a, axis=0, dtype=a.dtype), parts)

    def divide(self, total: Tree, weight: jax.Array, like: Tree) -> Tree:
        """total / weight, in the dtypes of `accumulate_zero(like)`."""
        return jax.tree.map(lambda a: a / weight.astype(a.dtype), total)

    def combine(self, uploads: Tree, weights: jax.Array, present: jax.Array) -> Tree:
        """See `Aggregator.combine`."""
        weights = jnp.where(present, weights, 0)
        weights = weights / jnp.maximum(jnp.sum(weights), jnp.finfo(weights.dtype).tiny)
        return accumulate_result(self.sum(weights, jax.vmap(self.prepare)(uploads)), uploads)


MEAN = Mean()


@dataclass(frozen=True)
class SecureMean(Mean):
    """The weighted mean of fixed-point numbers, as the server of secure aggregation computes it, with C = `limit` > 0.

    Weights are shares that sum to at most 1. A client sends round(wᵢ min(max(uᵢ, −C), C) 2³⁰/C), and these integers are
    added: no sum leaves int32, so modulo 2³² masks can be put upon them. Where no number exceeds C the result differs
    from the weighted mean by at most n/2 · 2⁻³⁰ C / Σ wᵢ over n uploads, apart from the rounding of floating-point
    products. Losses and integers have ranges of their own, `LOSS_RANGE` and `COUNT_RANGE`.
    """

    limit: float

    name = "secure"
    min_uploads = 3  # of two uploads each client could find the other's in the mean

    def zero(self, like: Sent) -> Sent:
        """See `Mean.zero`."""
        return jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.int32), like)

    def add(self, total: Sent, weight: jax.Array, sent: Sent) -> Sent:
        """See `Mean.add`."""
        return jax.tree.map(jnp.add, total, self.encode(weight, sent))

    def encode(self, weight: jax.Array, sent: Sent) -> Sent:
        """The int32 numbers of one client; all 0 for weight 0."""

        def leaf(a: jax.Array, limit: float) -> jax.Array:
            wide = tree.sum_dtype(a)
            share = jnp.asarray(weight, wide) * jnp.clip(a.astype(wide), -limit, limit)
            return jnp.where(weight == 0, 0, jnp.round(share * (LEVELS / limit))).astype(jnp.int32)

        return jax.tree.map(leaf, sent, self._limits(sent))

    def divide(self, total: Sent, weight: jax.Array, like: Sent) -> Sent:
        """See `Mean.divide`."""

        def leaf(t: jax.Array, a: jax.Array, limit: float) -> jax.Array:
            return t.astype(tree.sum_dtype(a)) * (limit / LEVELS) / weight.astype(tree.sum_dtype(a))

        return jax.tree.map(leaf, total, like, self._limits(like))

    def _limits(self, sent: Sent) -> Sent:
        upload = jax.tree.map(lambda a: self.limit if is_floating(a) else COUNT_RANGE, sent.upload)
        return Sent(upload, jax.tree.map(lambda loss: LOSS_RANGE, sent.loss))


@dataclass(frozen=True)
class NormClipping(Mean):
    """The weighted mean of uploads clipped to a norm, Σ wᵢ uᵢ min(1, C/‖uᵢ‖) / Σ wᵢ (Sun et al. 2019).

    C = `max_norm` > 0. ‖·‖ is the 2-norm over all leaves together but integers, which are averaged as they are.
    """

    max_norm: float

    name = "norm_clipping"

    def __post_init__(self) -> None:
        check_number("aggregate's norm", self.max_norm, 0, open_low=True)

    def prepare(self, upload: Tree) -> Tree:
        """Return the upload, clipped."""
        norm = tree.norm([a for a in jax.tree.leaves(upload) if is_floating(a)])
        factor = jnp.minimum(1, self.max_norm / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
        return jax.tree.map(lambda a: a * factor.astype(a.dtype) if is_floating(a) else a, upload)


class _CoordinateWise(Aggregator):
    """The mean of each coordinate's n present values without the `_count_cut(n)` smallest and as many largest."""

    def _count_cut(self, n: int) -> int:
        raise NotImplementedError

    def combine(self, uploads: Tree, weights: jax.Array, present: jax.Array) -> Tree:
        n, places = jnp.sum(present), jnp.arange(present.shape[0])
        cut = jnp.asarray([self._count_cut(k) for k in range(present.shape[0] + 1)])[n]
        is_middle = (places >= cut) & (places < n - cut)

        def leaf(a: jax.Array) -> jax.Array:
            ordered = jnp.sort(_present_or(jnp.inf, a, present), axis=0)
            total = jnp.sum(_present_or(0, ordered, is_middle), axis=0)
            result = total / jnp.maximum(n - 2 * cut, 1).astype(total.dtype)
            return (jnp.round(result) if jnp.issubdtype(a.dtype, jnp.integer) else result).astype(a.dtype)

        return jax.tree.map(leaf, uploads)


@dataclass(frozen=True)
class Median(_CoordinateWise):
    """The coordinate-wise median (Yin et al. 2018, Definition 1); the mean of the middle two of an even number.

    Weights are not used.
    """

    name = "median"

    def _count_cut(self, n: int) -> int:
        return max(n - 1, 0) // 2


@dataclass(frozen=True)
class TrimmedMean(_CoordinateWise):
    """The coordinate-wise trimmed mean (Yin et al. 2018, Definition 2).

    Of the n values of a coordinate the ⌊βn⌋ smallest and the ⌊βn⌋ largest are left out, β = `fraction` in [0, 0.5); the
    rest is averaged. Weights are not used.
    """

    fraction: float

    name = "trimmed_mean"

    def __post_init__(self) -> None:
        check_number("aggregate's fraction", self.fraction, 0, 0.5)

    def _count_cut(self, n: int) -> int:
        return math.floor(self.fraction * n + 1e-9)  # 0.29 · 100 is less than 29 in binary


@dataclass(frozen=True)
class Krum(Aggregator):
    """Krum and multi-Krum (Blanchard et al. 2017, Section 4).

    The score of an upload is the sum of its squared distances, over all leaves but integers, to the n − f − 2 others
    that are nearest to it. The result is the upload with the least score, or the plain mean of the `keep` uploads with
    the least (of equal ones the earlier in the cohort). Weights are not used.

    Args:
      faulty: f ≥ 0, how many uploads of a cohort may be false. n ≥ 2f + 3 are needed, and n ≥ keep + f + 2.
      keep: uploads that are averaged, ≥ 1.
    """

    faulty: int
    keep: int = 1

    def __post_init__(self) -> None:
        check_int("aggregate's F", self.faulty, 0)
        check_int("aggregate's keep", self.keep)

    def __str__(self) -> str:
        return f"krum:{self.faulty}" + (f",keep={self.keep}" if self.keep > 1 else "")

    @property
    def min_uploads(self) -> int:  # type: ignore[override]
        """The fewest uploads it works with."""
        return max(2 * self.faulty + 3, self.keep + self.faulty + 2)

    def combine(self, uploads: Tree, weights: jax.Array, present: jax.Array) -> Tree:
        """See `Aggregator.combine`."""
        scores = self.scores(uploads, present)
        chosen = present & (jnp.argsort(jnp.argsort(scores, stable=True)) < self.keep)
        return MEAN.combine(uploads, jnp.ones(scores.shape, scores.dtype), chosen)

    def scores(self, uploads: Tree, present: jax.Array) -> jax.Array:
        """The score of every upload (S,); infinite for one that is not present."""
        places = jnp.arange(present.shape[0])
        leaves = [_present_or(0, a, present) for a in jax.tree.leaves(uploads) if is_floating(a)]
        near = jnp.sum(present) - self.faulty - 2

        def score(i: jax.Array) -> jax.Array:
            # differences, not |a|² + |b|² − 2ab: uploads may be close to each other and far from 0
            squares = [jnp.sum(jnp.square(a - a[i]).reshape(places.size, -1), axis=1) for a in leaves]
            distances = sum(squares, jnp.zeros(places.shape, jnp.float32))
            others = jnp.sort(jnp.where(present & (places != i), distances, jnp.inf))
            score = jnp.sum(jnp.where(places < near, others, 0))
            return jnp.minimum(score, jnp.finfo(score.dtype).max)  # a sum that overflows is still less than absence

        return jnp.where(present, jax.lax.map(score, places), jnp.inf)


FORMS = "mean, median, trimmed_mean:FRACTION, norm_clipping:NORM, krum:F or krum:F,keep=M"


def as_aggregator(aggregate: str | Aggregator) -> Aggregator:
    """Return an aggregator, or make it of a text in one of `FORMS`."""
    if isinstance(aggregate, Aggregator):
        return aggregate
    name, colon, text = str(aggregate).partition(":")
    numbers = text.split(",keep=") if colon else []
    kinds = {"mean": Mean, "median": Median, "trimmed_mean": TrimmedMean, "norm_clipping": NormClipping, "krum": Krum}
    try:
        return kinds[name](*map(int if name == "krum" else float, numbers))
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError):  # no such rule, another count of numbers, or a text in place of one
        raise UsageError(f"aggregate must be one of {FORMS}, got {aggregate!r}") from None


def stacked(uploads: list[Tree]) -> Tree:
    """Stack uploads of equal structure to one tree of leaves (S, …)."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *uploads)


def _present_or(value: float, a: jax.Array, present: jax.Array) -> jax.Array:
    a = a.astype(tree.sum_dtype(a))
    return jnp.where(present.reshape(-1, *[1] * (a.ndim - 1)), a, jnp.asarray(value, a.dtype))
