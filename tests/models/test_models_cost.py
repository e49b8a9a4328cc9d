"""What the models cost: the papers' floating-point operations, counted in the program before XLA simplifies it."""

import jax
import jax.numpy as jnp
import pytest

from fedoptax.models import MODELS, autoencoder, resnet18, wikitext_lstm
from small_models import KEY

COSTS = [
    # forward and backward, MFLOP an example, 2 a multiply-add: three times the forward's
    ("cnn", (28, 28, 1), 10, 2.9),
    ("emnist_cnn", (28, 28, 1), 62, 72),
    ("fafed_fmnist_cnn", (28, 28, 1), 10, 0.67),
    ("fafed_cifar_cnn", (32, 32, 3), 10, 20),
    ("resnet9", (32, 32, 3), 10, 1500),
    ("resnet18", (24, 24, 3), 10, 169),
]


def megaflops(model, shape, dtype=jnp.float32):
    params = jax.eval_shape(model.init, KEY)
    lowered = jax.jit(model.apply).lower(params, jax.ShapeDtypeStruct((1, *shape), dtype))
    return 3 * lowered.cost_analysis()["flops"] / 1e6


@pytest.mark.parametrize(("name", "shape", "classes", "cost"), COSTS)
def test_convolutional_networks_cost_what_the_papers_do(name, shape, classes, cost):
    model = MODELS[name](shape, classes, lowering="patches")  # counts the padding, as people do
    assert megaflops(model, shape) == pytest.approx(cost, rel=0.04)


def test_resnet18_without_stage_strides_keeps_the_resolution():
    model = resnet18((24, 24, 3), 10, strides=False, lowering="patches")
    assert megaflops(model, (24, 24, 3)) == pytest.approx(2400, rel=0.04)


def test_the_autoencoder_costs_17_megaflops():
    assert megaflops(autoencoder(), (784,)) == pytest.approx(17, rel=0.04)


def test_the_wikitext_lstm_costs_170_megaflops_a_token():
    assert megaflops(wikitext_lstm(), (1,), jnp.int32) == pytest.approx(170, rel=0.04)
