"""Every model learns: a step against its gradient lowers its loss on a few examples."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedoptax import models
from fedoptax.models import MODELS
from small_models import init, normal, some_params

SMALL = {
    # name: input shape, options
    "logistic": ((8, 8, 1), {}),
    "mlp": ((8, 8, 1), {}),
    "mlp_dropout": ((8, 8, 1), {}),
    "cnn": ((8, 8, 1), {}),
    "emnist_cnn": ((8, 8, 1), {}),
    "resnet18": ((8, 8, 3), {"width": 4}),
    "resnet18_unstrided": ((8, 8, 3), {"width": 4}),
    "resnet9": ((8, 8, 3), {"width": 4}),
    "cifar_cnn": ((18, 18, 3), {}),
    "fafed_fmnist_cnn": ((10, 10, 1), {}),
    "fafed_cifar_cnn": ((8, 8, 3), {}),
    "lenet": ((16, 16, 1), {}),
}
pytestmark = pytest.mark.long  # `make test` trains the models of the tasks on their data


def numbers(shape, below, seed=1):
    return jnp.asarray(np.random.default_rng(seed).integers(0, below, shape), jnp.int32)


def losses_of_two_steps(model, params, x, loss, lr):
    """The loss before and after one step, by a program compiled once; dropout is off, to compare like with like."""
    step = jax.jit(jax.value_and_grad(lambda params: loss(model.apply(params, x))))
    before, gradient = step(params)
    after, _ = step(jax.tree.map(lambda p, g: p - lr * g, params, gradient))
    return float(before), float(after)


def cross_entropy(y):
    return lambda logits: jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y))


@pytest.mark.parametrize("name", MODELS)
def test_a_classifier_learns(name):
    shape, options = SMALL[name]
    model = MODELS[name](shape, 4, **options)
    x = jnp.asarray(np.random.default_rng(0).random((4, *shape)), jnp.float32)
    before, after = losses_of_two_steps(model, some_params(model), x, cross_entropy(jnp.arange(4)), lr=0.01)
    assert after < before < 5


@pytest.mark.parametrize(
    "model",
    [
        models.shakespeare_rnn(7, embedding=4, units=(8, 8)),
        models.so_rnn(7, embedding=4, units=8),
        models.wikitext_lstm(7, units=8),
    ],
    ids=["shakespeare_rnn", "so_rnn", "wikitext_lstm"],
)
def test_a_language_model_learns(model):
    loss = cross_entropy(numbers((3, 5), 7, seed=2))
    before, after = losses_of_two_steps(model, init(model), numbers((3, 5), 7), loss, lr=0.5)
    assert before == pytest.approx(np.log(7), rel=0.1)  # it starts knowing nothing
    assert after < before - 0.01


def test_the_autoencoder_learns():
    x = jnp.asarray(np.random.default_rng(0).random((4, 12)), jnp.float32)
    model = models.autoencoder((12, 8, 3))
    before, after = losses_of_two_steps(model, some_params(model), x, lambda y: jnp.mean((y - x) ** 2), lr=1.0)
    assert after < before


def test_tag_prediction_learns():
    x, y = jnp.abs(normal(0, (4, 9))), numbers((4, 6), 2).astype(jnp.float32)
    model = models.so_logistic(9, 6)

    def loss(logits):
        return jnp.mean(jnp.sum(optax.sigmoid_binary_cross_entropy(logits, y), axis=1))

    before, after = losses_of_two_steps(model, some_params(model), x, loss, lr=0.1)
    assert after < before
