"""Losses, metrics, bags of words and augmentation of the papers' tasks, computed again by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedoptax.data.federated import FederatedData
from fedoptax.models import Model, autoencoder
from fedoptax.tasks.images import crop, reconstruction, standardize
from fedoptax.tasks.task import Task
from fedoptax.tasks.text import bag_of_words, next_token, recall

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
PAD, OOV, EOS, VOCABULARY = 0, 5, 7, 8


def token_task(**options: Any) -> Any:
    """Next tokens whose logits are a table looked up by the token before."""
    table = jnp.asarray(np.random.default_rng(1).normal(size=(VOCABULARY, VOCABULARY)), jnp.float32)
    net = Model(lambda key: {"table": table}, lambda params, x, key=None: params["table"][x])
    x = RNG.integers(1, VOCABULARY, (6, 4)).astype(np.uint8)
    y = np.array([[2, 3, 5, 7], [1, 7, 0, 0], [0, 0, 0, 0], [4, 5, 6, 1], [5, 5, 7, 0], [3, 2, 1, 4]], np.uint8)
    learned = next_token(net, list(map(str, range(VOCABULARY))), **{"pad": PAD, "unscored": (OOV, EOS)} | options)
    clients = FederatedData.from_clients([{"x": x, "y": y}])
    return Task(name="tokens", clients=clients, **learned), np.asarray(table), x, y


def cross_entropies(table: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    logits = table[x].astype(np.float64)
    return np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, y[..., None].astype(int), -1)[..., 0]


@pytest.mark.parametrize("mask", [[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]])
def test_next_token_loss_is_the_mean_over_real_tokens(mask):
    task, table, x, y = token_task()
    real = (y != PAD) * np.array(mask)[:, None]
    expected = (cross_entropies(table, x, y) * real).sum() / max(real.sum(), 1)
    params = task.init(KEY)
    batch = {"x": jnp.asarray(x), "y": jnp.asarray(y), "mask": jnp.asarray(mask, bool)}
    loss, grads = jax.jit(jax.value_and_grad(task.loss))(params, batch, KEY)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(grads["table"]).all()  # also where no token is real


def test_next_token_accuracy_leaves_out_padding_and_unscored_tokens():
    task, table, x, y = token_task()
    metrics = jax.jit(task.metrics)(task.init(KEY), {"x": x, "y": y})
    right, scored = (np.asarray(a) for a in metrics["accuracy"])
    np.testing.assert_array_equal(scored > 0, ~np.isin(y, [PAD, OOV, EOS]))
    np.testing.assert_array_equal(right, table[x].argmax(-1) == y)
    losses, counted = (np.asarray(a) for a in metrics["loss"])
    np.testing.assert_array_equal(counted > 0, y != PAD)
    np.testing.assert_allclose(losses, cross_entropies(table, x, y), rtol=1e-5)


def test_next_token_is_predicted_from_the_last_real_token():
    task, table, x, _ = token_task()
    x[1, 2:], x[2, 1:] = PAD, PAD
    expected = jax.nn.softmax(table[[x[0, 3], x[1, 1], x[2, 0], *x[3:, 3]]])
    np.testing.assert_allclose(task.predict({"table": jnp.asarray(table)}, {"x": x}), expected, rtol=1e-6)


def test_bag_of_words_is_a_mean_over_all_words_of_the_post():
    ids = jnp.asarray([[3, 1, 3, 0], [0, 0, 0, 0], [2, 0, 0, 0]])
    words = jnp.asarray([5, 0, 1])
    bag = jax.jit(bag_of_words, static_argnums=(2, 3))(ids, words, 4, jnp.float32)
    np.testing.assert_allclose(bag, [[0.2, 0, 0.4, 0], [0, 0, 0, 0], [0, 1, 0, 0]], rtol=1e-6)


def test_recall_counts_all_tags_of_the_test_set():
    logits = jnp.asarray([[9, 8, 7, 6, 5, 4, 3, 2.0]] * 3)
    tags = jnp.asarray([[1, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 0, 0, 0], [0] * 8], jnp.float32)
    values, weights = recall(logits, tags)
    np.testing.assert_allclose(values, [1 / 3, 1, 0], rtol=1e-6)
    assert float((values * weights).sum() / weights.sum()) == pytest.approx(2 / 4)


@pytest.mark.long
def test_reconstruction_sums_over_the_batch_what_its_metric_averages():
    x = RNG.integers(0, 256, (5, 28, 28, 1), np.uint8)
    model = autoencoder()
    learned = reconstruction(model)
    loss, metrics = learned["loss"], learned["metrics"]
    params = model.init(KEY)
    target = 1 - x.reshape(5, 784) / 255
    errors = np.mean((np.asarray(model.apply(params, target.astype(np.float32))) - target) ** 2, axis=1)
    mask = np.array([True, True, False, True, False])
    found = loss(params, {"x": jnp.asarray(x), "mask": jnp.asarray(mask)}, KEY)
    assert float(found) == pytest.approx(errors[mask].sum(), rel=1e-4)
    np.testing.assert_allclose(metrics(params, {"x": jnp.asarray(x)})["mse_x1000"], 1000 * errors, rtol=1e-4)


def test_standardize_makes_a_blank_image_zero():
    x = RNG.normal(3, 5, (4, 6, 6, 3)).astype(np.float32)
    x[2] = 7
    out = np.asarray(standardize(jnp.asarray(x)))
    np.testing.assert_allclose(out[[0, 1, 3]].mean((1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(out[[0, 1, 3]].std((1, 2, 3)), 1, rtol=1e-4)
    np.testing.assert_array_equal(out[2], 0)


def test_crop_takes_the_centre_in_evaluation_and_is_random_in_training_and_flips_half():
    image, scale = RNG.normal(size=(32, 32, 1)).astype(np.float32), jax.jit(standardize)
    centre = jax.jit(lambda images: crop(images, None))(image[None])
    np.testing.assert_array_equal(centre, scale(image[None, 4:28, 4:28]))
    windows = np.stack([image[top : top + 24, left : left + 24] for top in range(9) for left in range(9)])
    allowed = np.asarray(scale(np.concatenate([windows, windows[:, :, ::-1]])))
    out = np.asarray(jax.jit(crop)(jnp.repeat(image[None], 100, axis=0), KEY))
    distances = np.abs(out[:, None] - allowed).max(axis=(2, 3, 4))
    assert distances.min(axis=1).max() < 1e-5
    chosen = distances.argmin(axis=1)
    assert 0.3 < np.mean(chosen >= len(windows)) < 0.7
    assert len(np.unique(chosen)) > 60  # of 162
    assert set(chosen % 81 // 9) == set(chosen % 9) == set(range(9)), "every row and column of the corner"
