"""What the papers' tasks compute, by hand: losses, metrics, bags of words, augmentation."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedoptax.data.federated import FederatedData
from fedoptax.engine.evaluation import column_names, evaluate, evaluation_data, primary_metric
from fedoptax.errors import UsageError
from fedoptax.models import autoencoder
from fedoptax.models.model import Model
from fedoptax.tasks import reconstruction
from fedoptax.tasks.augmentation import crop, standardized
from fedoptax.tasks.division import Division
from fedoptax.tasks.recipe import Options, Recipe
from fedoptax.tasks.tags import bag_of_words, recall, tag_indicators
from fedoptax.tasks.task import Task, masked_mean, padded_loss
from fedoptax.tasks.text import next_token

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
PAD, OOV, EOS, VOCABULARY = 0, 5, 7, 8


def token_task(**options: Any) -> Any:
    """Next tokens whose logits are a table looked up by the token before."""
    table = jnp.asarray(np.random.default_rng(1).normal(size=(VOCABULARY, VOCABULARY)), jnp.float32)
    net = Model(lambda key: {"table": table}, lambda params, x, key=None: params["table"][x])
    x = RNG.integers(1, VOCABULARY, (6, 4)).astype(np.uint8)
    y = np.array([[2, 3, 5, 7], [1, 7, 0, 0], [0, 0, 0, 0], [4, 5, 6, 1], [5, 5, 7, 0], [3, 2, 1, 4]], np.uint8)
    division = Division(FederatedData.from_clients([{"x": x, "y": y}]), {"x": x, "y": y}, None, {})
    settings = {"pad": PAD, "unscored": (OOV, EOS)} | options
    return next_token("tokens", net, division, "", "table", **settings), np.asarray(table), x, y


def cross_entropies(table: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    logits = table[x].astype(np.float64)
    return np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, y[..., None].astype(int), -1)[..., 0]


@pytest.mark.parametrize("mask", [[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]])
def test_the_loss_of_a_batch_is_the_mean_over_its_real_tokens(mask: list[int]) -> None:
    task, table, x, y = token_task()
    real = (y != PAD) * np.array(mask)[:, None]
    expected = (cross_entropies(table, x, y) * real).sum() / max(real.sum(), 1)
    params = task.init(KEY)
    loss = task.loss(params, {"x": jnp.asarray(x), "y": jnp.asarray(y), "mask": jnp.asarray(mask, bool)}, KEY)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    grads = jax.grad(task.loss)(
        params, {"x": jnp.asarray(x), "y": jnp.asarray(y), "mask": jnp.asarray(mask, bool)}, KEY
    )
    assert np.isfinite(grads["table"]).all()  # also where no token is real


def test_accuracy_leaves_out_padding_and_what_is_not_scored() -> None:
    task, table, x, y = token_task()
    metrics = task.metrics(task.init(KEY), {"x": jnp.asarray(x), "y": jnp.asarray(y)})
    right, scored = (np.asarray(a) for a in metrics["accuracy"])
    np.testing.assert_array_equal(scored > 0, ~np.isin(y, [PAD, OOV, EOS]))
    np.testing.assert_array_equal(right, table[x].argmax(-1) == y)
    losses, counted = (np.asarray(a) for a in metrics["loss"])
    np.testing.assert_array_equal(counted > 0, y != PAD)
    np.testing.assert_allclose(losses, cross_entropies(table, x, y), rtol=1e-5)


def test_perplexity_is_the_exponential_of_the_mean_loss_and_less_is_better() -> None:
    task, *_ = token_task(pad=None, unscored=(), primary="perplexity", clip_norm=0.25)
    assert float(task.derived["perplexity"]({"loss": jnp.float32(2.0)})) == pytest.approx(np.exp(2.0))
    assert (task.primary_metric, task.higher_is_better, task.clip_norm) == ("perplexity", False, 0.25)
    counted = task.metrics(task.init(KEY), {k: jnp.asarray(a) for k, a in task.test.items()})["accuracy"][1]
    assert (np.asarray(counted) == 1).all()


def test_a_bag_of_words_is_a_mean_over_all_words_of_the_post() -> None:
    ids = jnp.asarray([[3, 1, 3, 0], [0, 0, 0, 0], [2, 0, 0, 0]])
    words = jnp.asarray([5, 0, 1])
    bag = bag_of_words(ids, words, 4, jnp.float32)
    np.testing.assert_allclose(bag, [[0.2, 0, 0.4, 0], [0, 0, 0, 0], [0, 1, 0, 0]], rtol=1e-6)
    np.testing.assert_array_equal(tag_indicators(ids, 4, jnp.float32), [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]])


def test_recall_at_5_is_over_all_tags_of_the_test_set() -> None:
    logits = jnp.asarray([[9, 8, 7, 6, 5, 4, 3, 2.0]] * 3)
    tags = jnp.asarray([[1, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 0, 0, 0], [0] * 8], jnp.float32)
    values, weights = recall(logits, tags)
    np.testing.assert_allclose(values, [1 / 3, 1, 0], rtol=1e-6)
    assert float((values * weights).sum() / weights.sum()) == pytest.approx(2 / 4)


@pytest.mark.long
def test_the_autoencoder_sums_over_the_batch_what_the_metric_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    x = RNG.integers(0, 256, (5, 28, 28, 1), np.uint8)
    division = Division(FederatedData.from_clients([{"x": x, "y": np.zeros(5, np.int32)}]), {"x": x}, None, {})
    monkeypatch.setattr(reconstruction, "emnist", lambda *args: None)
    monkeypatch.setattr(reconstruction, "divide", lambda *args: division)
    recipe = Recipe(reconstruction.emnist_autoencoder, "", "autoencoder", 1, partitions=("writers",))
    task = reconstruction.emnist_autoencoder("emnist-ae", recipe, Options())
    params = task.init(KEY)
    target = 1 - x.reshape(5, 784) / 255
    errors = np.mean((np.asarray(autoencoder().apply(params, target.astype(np.float32))) - target) ** 2, axis=1)
    mask = np.array([True, True, False, True, False])
    loss = task.loss(params, {"x": jnp.asarray(x), "mask": jnp.asarray(mask)}, KEY)
    assert float(loss) == pytest.approx(errors[mask].sum(), rel=1e-4)
    np.testing.assert_allclose(task.metrics(params, {"x": jnp.asarray(x)})["mse_x1000"], 1000 * errors, rtol=1e-4)
    assert (task.primary_metric, task.higher_is_better) == ("mse_x1000", False)


def test_every_image_is_standardised_and_a_blank_one_is_zero() -> None:
    x = RNG.normal(3, 5, (4, 6, 6, 3)).astype(np.float32)
    x[2] = 7
    out = np.asarray(standardized(jnp.asarray(x)))
    np.testing.assert_allclose(out[[0, 1, 3]].mean((1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(out[[0, 1, 3]].std((1, 2, 3)), 1, rtol=1e-4)
    np.testing.assert_array_equal(out[2], 0)


def test_evaluation_sees_the_centre() -> None:
    x = jnp.asarray(RNG.normal(size=(3, 32, 32, 3)), jnp.float32)
    np.testing.assert_array_equal(crop(x, None), standardized(x[:, 4:28, 4:28]))


def test_training_sees_random_crops_half_of_them_flipped() -> None:
    row, column = jnp.arange(32.0)[:, None], jnp.arange(32.0)[None, :]
    image = (100 * row + column)[None, :, :, None]
    n = 100
    out = jax.jit(crop)(jnp.repeat(image, n, axis=0), KEY)
    seen = []
    for one in np.asarray(out)[:, :, :, 0]:
        found = [
            (top, left, flip)
            for top in range(9)
            for left in range(9)
            for flip in (False, True)
            if np.allclose(one, _standard(np.asarray(image)[0, top : top + 24, left : left + 24, 0], flip), atol=1e-4)
        ]
        seen.append(found)
    assert all(seen)  # each is a crop, flipped or not (crops of a linear image look alike once standardised)
    flipped = np.mean([all(flip for *_, flip in found) for found in seen])
    assert 0.3 < flipped < 0.7
    noise = jnp.asarray(RNG.normal(size=(1, 32, 32, 1)), jnp.float32)
    many = np.asarray(jax.jit(crop)(jnp.repeat(noise, n, axis=0), KEY))
    assert len(np.unique(many.reshape(n, -1)[:, :3].round(4), axis=0)) > 60  # of 162 crops and flips
    np.testing.assert_array_equal(many, jax.jit(crop)(jnp.repeat(noise, n, axis=0), KEY))


def _standard(image: np.ndarray, flip: bool) -> np.ndarray:
    image = image[:, ::-1] if flip else image
    return (image - image.mean()) / image.std()


@pytest.mark.parametrize("way", ["masked_mean", "get", "in", "item", "copied", "jitted", "none"])
def test_a_loss_that_looks_for_the_mask_gets_it_however_it_looks(way: str) -> None:
    """It is called once, with the whole batch; one that does not look is called example by example."""
    shapes: list[tuple[int, ...]] = []

    def values(params: Any, batch: Any) -> jax.Array:
        shapes.append(batch["x"].shape)
        return params * batch["x"]

    def by_get(batch: Any) -> Any:
        return batch.get("mask", 1.0)

    def by_in(batch: Any) -> Any:
        if "mask" not in batch:
            return 1.0
        return batch["mask"]

    losses = {
        "masked_mean": lambda params, batch, key: masked_mean(values(params, batch), batch),
        "get": lambda params, batch, key: jnp.sum(values(params, batch) * by_get(batch)) / jnp.sum(by_get(batch)),
        "in": lambda params, batch, key: jnp.sum(values(params, batch) * by_in(batch)) / jnp.sum(by_in(batch)),
        "item": lambda params, batch, key: jnp.sum(values(params, batch) * batch["mask"]) / 2,
        "copied": lambda params, batch, key: jnp.sum(values(params, batch) * {**batch}["mask"]) / 2,
        "none": lambda params, batch, key: jnp.mean(values(params, batch)),
    }
    losses["jitted"] = jax.jit(losses["masked_mean"])
    batch = {"x": jnp.asarray([1.0, 5.0, 100.0]), "mask": jnp.asarray([True, True, False])}
    assert float(padded_loss(losses[way], jnp.float32(2.0), batch, KEY)) == 6.0
    assert shapes[-1] == ((1,) if way == "none" else (3,))


def test_a_pair_of_a_metric_is_a_weighted_mean() -> None:
    data = FederatedData.from_clients([{"x": np.ones(3, np.float32)}])
    test = {"x": np.array([1, 3, 5], np.float32), "w": np.array([1, 3, 0], np.float32)}

    def metrics(params: Any, batch: Any) -> dict[str, Any]:
        return {"zz": batch["x"], "pair": (batch["x"], batch["w"])}

    task = Task("pairs", lambda key: jnp.zeros(()), lambda params, batch, key: params, metrics, data, test, label=None)
    result = evaluate(task, jnp.zeros(()), evaluation_data(task))
    assert float(result["test_pair"]) == pytest.approx((1 * 1 + 3 * 3) / 4)
    assert primary_metric(task, ["zz", "pair"]) == "pair"
    for changes, message in (
        ({"clip_norm": -1.0}, "clip_norm: -1.0 given, allowed is a number > 0"),
        ({"clip_norm": 0.0}, "clip_norm: 0.0 given"),
        ({"eval_batch": 0}, "eval_batch: 0 given, allowed is a whole number >= 1"),
        ({"eval_batch": 2.5}, "eval_batch: 2.5 given"),
    ):
        with pytest.raises(UsageError, match=message):
            dataclasses.replace(task, **changes)
    with pytest.raises(UsageError, match="primary_metric: unknown name 'pairs'; did you mean 'pair'"):
        column_names(dataclasses.replace(task, primary_metric="pairs"), jnp.zeros(()), evaluation_data(task))
