"""Every aggregator equals a float64 transcription of its paper on the uploads that are present, whatever the rest.

The mean of fixed-point numbers equals the mean within its step, and masks modulo 2³² leave no trace.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.algorithms.fedopt import FedOptUpload
from fedoptax.deploy.server import Reply, next_state
from fedoptax.engine.aggregation import LOSS_RANGE, Mean, SecureMean, Sent, as_aggregator
from refusals import refusals

SIZE = 9
GOOD = ("mean", "median", "trimmed_mean:0.2", "trimmed_mean:0.34", "norm_clipping:3.5", "krum:2", "krum:1,keep=3")


def uploads_of(seed: int) -> dict[str, np.ndarray]:
    """Nine uploads of a matrix, a vector and a counter, the last three far from the others."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(SIZE, 2, 3)) + 1, rng.normal(size=(SIZE, 4))
    a[-3:] *= -10
    return {"a": a.astype(np.float32), "b": b.astype(np.float32), "steps": rng.integers(1, 40, SIZE).astype(np.int32)}


def flat(upload: dict[str, np.ndarray], i: int) -> np.ndarray:
    return np.concatenate([upload["a"][i].ravel(), upload["b"][i]]).astype(np.float64)


def oracle(name: str, uploads: dict[str, np.ndarray], weights: np.ndarray, present: Sequence[int]) -> np.ndarray:
    """The aggregate in float64, as one vector with the counter behind."""
    x = np.stack([np.append(flat(uploads, i), uploads["steps"][i]) for i in present])
    w = np.asarray([weights[i] for i in present], np.float64)
    kind, _, argument = name.partition(":")
    if kind == "mean":
        out = w @ x / w.sum()
    elif kind == "median":
        out = np.median(x, axis=0)
    elif kind == "trimmed_mean":
        cut = int(float(argument) * len(present))
        out = np.sort(x, axis=0)[cut : len(present) - cut].mean(axis=0)
    elif kind == "norm_clipping":
        factors = np.minimum(1, float(argument) / np.linalg.norm(x[:, :-1], axis=1))
        x[:, :-1] *= factors[:, None]
        out = w @ x / w.sum()
    else:
        faulty, _, keep = argument.partition(",keep=")
        squares = ((x[:, None, :-1] - x[None, :, :-1]) ** 2).sum(axis=2)
        near = len(present) - int(faulty) - 2
        scores = [np.sort(np.delete(row, i))[:near].sum() for i, row in enumerate(squares)]
        out = x[np.argsort(scores)[: int(keep or 1)]].mean(axis=0)
    out[-1] = np.round(out[-1])
    return out


@cache
def compiled(name: str) -> Callable[..., Any]:
    return jax.jit(as_aggregator(name).combine)


def combined(name: str, uploads: Any, weights: np.ndarray, present: Sequence[int]) -> np.ndarray:
    is_present = np.isin(np.arange(SIZE), present)
    out = compiled(name)(uploads, jnp.asarray(weights, jnp.float32), is_present)
    assert out["a"].dtype == jnp.float32 and out["steps"].dtype == jnp.int32
    return np.concatenate([np.ravel(out["a"]), np.ravel(out["b"]), [out["steps"]]]).astype(np.float64)


@pytest.mark.parametrize("name", GOOD)
def test_an_aggregator_equals_its_papers_rule_over_present_uploads(name):
    for seed, present in enumerate([range(SIZE), [0, 1, 2, 3, 4, 6, 8], [1, 2, 3, 4, 5, 6, 7, 8]]):
        uploads, weights = uploads_of(seed), np.random.default_rng(seed).uniform(1, 9, SIZE)
        absent = [i for i in range(SIZE) if i not in present]
        want = oracle(name, uploads, weights, present)
        for garbage in (np.nan, np.inf, -1e30):
            for leaf in (uploads["a"], uploads["b"]):
                leaf[absent] = garbage
            np.testing.assert_allclose(combined(name, uploads, weights, present), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", GOOD)
def test_few_uploads_or_none_give_finite_numbers(name):
    uploads, weights = uploads_of(0), np.ones(SIZE)
    uploads["a"][5:] = np.nan
    for present in ([], [3], [0, 4]):
        assert np.isfinite(combined(name, uploads, weights, present)).all()
    np.testing.assert_allclose(combined("median", uploads, weights, [3])[:-1], flat(uploads, 3), rtol=1e-6)


def test_the_trimmed_fraction_is_exact():
    """0.29 · 100 is a little less than 29 in binary; 29 are cut at each end all the same."""
    values = jnp.asarray(np.random.default_rng(0).permutation(100).astype(np.float32))
    values = values.at[values >= 71].set(1e6)
    everyone = jnp.ones(100, bool)
    assert float(fx.TrimmedMean(0.29).combine(values, jnp.ones(100), everyone)) == pytest.approx(49.5)
    assert float(fx.TrimmedMean(0.28).combine(values, jnp.ones(100), everyone)) > 1e4


def test_texts_and_constructors_make_the_same_aggregators():
    made = (Mean(), fx.Median(), fx.TrimmedMean(0.2), fx.NormClipping(3.5), fx.Krum(2), fx.Krum(1, keep=3))
    texts = ("mean", "median", "trimmed_mean:0.2", "norm_clipping:3.5", "krum:2", "krum:1,keep=3")
    for aggregator, text in zip(made, texts, strict=True):
        assert as_aggregator(text) == aggregator and str(aggregator) == text and as_aggregator(aggregator) is aggregator
    assert as_aggregator(str(fx.NormClipping(1 / 3))) == fx.NormClipping(1 / 3)


WRONG = ("avg", "krum", "krum:x", "krum:1,take=2", "median:2", "krum:-1", "krum:1,keep=0", "trimmed_mean:0.5",
         "trimmed_mean:nan", "norm_clipping:0", "norm_clipping:inf", 3)  # fmt: skip


test_wrong_aggregators_are_refused = refusals((partial(as_aggregator, wrong), "aggregate") for wrong in WRONG)


@pytest.mark.parametrize(("limit", "present"), [(8.0, range(SIZE)), (100.0, [0, 2, 7])])
def test_the_mean_of_fixed_point_numbers_is_the_mean_within_its_bound(limit, present):
    rng = np.random.default_rng(5)
    a = rng.uniform(-limit, limit, (SIZE, 2, 300))
    a[0], a[1:3, 0, 0] = limit, (-limit, 1e-12)
    losses, steps = rng.uniform(0, LOSS_RANGE, SIZE), rng.integers(0, 10_000, SIZE)
    shares = rng.uniform(1, 9, SIZE)
    shares /= shares.sum()
    counted = np.where(np.isin(np.arange(SIZE), present), shares, 0)
    a[counted == 0] = np.nan
    mean, total, w = SecureMean(limit), counted.sum(), counted[present]
    with jax.enable_x64(True):
        sent = Sent({"a": jnp.asarray(a), "steps": jnp.asarray(steps)}, jnp.asarray(losses))
        summed = jax.jit(mean.sum)(jnp.asarray(counted), sent)
        rows = [jax.tree.map(lambda leaf, i=i: leaf[i], sent) for i in present]
        found = jax.device_get(jax.jit(mean.divide)(summed, jnp.asarray(total), rows[0]))
        coded = [np.asarray(mean.encode(share, row).upload["a"]) for share, row in zip(w, rows)]
    bound = len(present) / 2 * 2.0**-30 / total * 1.001
    error = np.abs(found.upload["a"] - np.tensordot(w, a[present], 1) / total)
    assert found.upload["a"].dtype == np.float64 and 0 < error.max() <= limit * bound
    assert abs(found.loss - w @ losses[present] / total) <= LOSS_RANGE * bound
    assert np.round(found.upload["steps"]) == np.round(w @ steps[present] / total)
    masks = rng.integers(0, 2**32, (len(present), *coded[0].shape), np.uint32)
    masked = sum(c.view(np.uint32) + mask for c, mask in zip(coded, masks))
    assert np.array_equal((masked - masks.sum(axis=0, dtype=np.uint32)).view(np.int32), np.asarray(summed.upload["a"]))


def test_numbers_beyond_the_range_are_clipped_and_no_sum_overflows():
    sent = Sent(jnp.asarray([[9.0, -9e30], [8.0, -8.0], [1e9, -np.inf]]), jnp.ones(3))
    shares = jnp.full(3, 1 / 3)

    @jax.jit
    def average(sent: Sent) -> Sent:
        one = Sent(sent.upload[0], sent.loss[0])
        return SecureMean(8.0).divide(SecureMean(8.0).sum(shares, sent), jnp.sum(shares), one)

    found = average(sent)
    np.testing.assert_allclose(found.upload, [8, -8], rtol=1e-6)


def replies(values: Sequence[float]) -> list[Reply]:
    return [Reply(FedOptUpload({"w": np.full(2, v, np.float32)}, ()), 1.0, 10 + i) for i, v in enumerate(values)]


VALUES, COUNTS = [1.0, 2.0, 2.0, 3.0, 1000.0], [10, 11, 12, 13, 14]  # of `replies`
MOVES = {"mean": np.average(VALUES, weights=COUNTS), "median": 2.0, "trimmed_mean:0.2": 7 / 3, "krum:1": 2.0}


@pytest.mark.parametrize("aggregate", MOVES)
def test_a_deployments_server_uses_the_aggregator(aggregate):
    algorithm = fx.fedavg(0.1)
    server = algorithm.init({"w": jnp.zeros(2)})
    state, loss, finite = next_state(algorithm, server, replies(VALUES), "examples", 5, as_aggregator(aggregate))
    assert finite and loss == pytest.approx(1)
    np.testing.assert_allclose(state.params["w"], MOVES[aggregate], rtol=1e-5)
