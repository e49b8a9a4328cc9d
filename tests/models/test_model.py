"""Models as pure functions, and their sizes."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedoptax import models
from fedoptax.models import cnn, count_params, emnist_cnn, functional, mlp
from fedoptax.tasks.recipe import MODELS
from refusals import refusals, refused
from small_models import KEY, assert_dtype_of_params, normal, some_params

SIZES = [
    # name, input shape, classes, parameters
    ("logistic", (28, 28, 1), 10, 7_850),
    ("mlp", (28, 28, 1), 10, 159_010),  # Fed-LAMB
    ("mlp_dropout", (28, 28, 1), 10, 159_010),
    ("cnn", (28, 28, 1), 10, 21_840),  # Fed-LAMB
    ("emnist_cnn", (28, 28, 1), 62, 1_206_590),  # AFO
    ("resnet18", (24, 24, 3), 10, 11_181_642),  # AFO, CIFAR-10
    ("resnet18", (24, 24, 3), 100, 11_227_812),  # AFO, CIFAR-100
    ("resnet18_unstrided", (24, 24, 3), 10, 11_181_642),  # strides have no parameters
    ("resnet9", (32, 32, 3), 10, 4_903_242),  # Fed-LAMB
    ("cifar_cnn", (32, 32, 3), 10, 122_570),
    ("fafed_fmnist_cnn", (28, 28, 1), 10, 26_620),  # FAFED
    ("fafed_cifar_cnn", (32, 32, 3), 10, 581_866),  # FAFED
    ("lenet", (28, 28, 1), 10, 44_426),
    ("lenet", (32, 32, 3), 10, 62_006),
    ("vit", (32, 32, 3), 10, 2_693_194),  # 48·192 + 192 + 64·192 + 6·(12·192² + 13·192) + 2·192 + 192·10 + 10
    ("vit_small", (32, 32, 3), 10, 157_962),
]


RESNETS = ("resnet18", "resnet9")


@pytest.mark.parametrize(("name", "shape", "classes", "parameters"), SIZES)
def test_models_have_the_published_sizes(name, shape, classes, parameters):
    model = MODELS[name](shape, classes)
    params = jax.eval_shape(model.init, KEY)
    assert count_params(params) == parameters
    assert jax.eval_shape(model.apply, params, np.zeros((2, *shape))).shape == (2, classes)


def test_every_classifier_has_a_known_size():
    assert {name for name, *_ in SIZES} == set(MODELS)


def test_dropout_needs_a_key():
    model = mlp((5,), 3, hidden=(8,), dropout=0.5)
    params, apply, x = some_params(model), jax.jit(model.apply), normal(0, (4, 5))
    evaluated = apply(params, x)
    one, same, two = (apply(params, x, jax.random.key(seed, impl="rbg")) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, two)
    assert not np.allclose(one, evaluated)
    without = mlp((5,), 3, hidden=(8,))
    np.testing.assert_array_equal(evaluated, jax.jit(without.apply)(params, x, KEY))


def test_dropout_keeps_the_mean_and_layers_draw_independently():
    class Two(nnx.Module):
        def __init__(self, rngs):
            self.scale = nnx.Param(jnp.ones(()))
            self.first, self.second = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return jnp.stack([self.first(x), self.second(x), self.first(x)]) * self.scale[...]

    model = functional(Two)
    out = np.asarray(jax.jit(model.apply)({"scale": jnp.ones(())}, jnp.ones((10_000,)), KEY))
    assert set(np.unique(out)) == {0.0, 2.0}
    np.testing.assert_allclose(out.mean(1), 1.0, atol=0.05)
    assert np.abs(np.corrcoef(out) - np.eye(3)).max() < 0.05


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
@pytest.mark.parametrize("name", ["mlp_dropout", "cnn", *(pytest.param(n, marks=pytest.mark.long) for n in RESNETS)])
def test_logits_have_the_dtype_of_the_parameters(name, dtype):
    assert_dtype_of_params(MODELS[name]((8, 8, 1), 10), normal(0, (2, 8, 8, 1)), (2, 10), dtype)


def test_batch_statistics_are_refused():
    model = functional(lambda rngs: nnx.BatchNorm(3, rngs=rngs))
    refused(lambda: model.init(KEY), "BatchStat")


def test_missing_parameters_are_named():
    model = mlp((4,), 2)
    params = some_params(model)
    del params["dense2"]["kernel"]
    refused(lambda: model.apply(params, jnp.ones((1, 4))), "dense2/kernel")
    refused(lambda: model.apply(list(params.values()), jnp.ones((1, 4))), "params must")


WRONG = [
    (lambda: mlp((), 10), "input_shape"), (lambda: mlp((0, 3), 10), "input_shape"),
    (lambda: mlp((4,), 2, dropout=1.0), "dropout"), (lambda: cnn((784,), 10), "input_shape"),
    (lambda: emnist_cnn((5, 8, 1), 62), "input_shape"), (lambda: models.autoencoder(()), "sizes"),
    (lambda: models.resnet18((7, 8, 3), 10), "input_shape"), (lambda: models.resnet9((8, 8), 10), "input_shape"),
    (lambda: models.resnet18((8, 8, 3), 10, width=0), "width"),
    (lambda: models.resnet18((8, 8, 3), 10, width=3), "width"), (lambda: models.shakespeare_rnn(1), "vocabulary"),
    (lambda: models.shakespeare_rnn(90, units=()), "units"), (lambda: models.so_rnn(90, units=0), "units"),
    (lambda: models.wikitext_lstm(90, dropout=1.0), "dropout"), (lambda: models.so_logistic(0), "vocabulary"),
    (lambda: models.so_logistic(10, tags=0), "tags"), (lambda: MODELS["vit"]((28, 28, 1), 10, patch=5), "patch"),
    (lambda: MODELS["vit"]((28, 28, 1), 10, width=10, heads=4), "width"), (lambda: models.gpt(1), "vocabulary"),
    (lambda: models.gpt(10, depth=0), "depth"),
]  # fmt: skip
test_wrong_arguments_are_refused_by_name = refusals((call, f"^{argument} must") for call, argument in WRONG)


def test_importing_models_starts_no_backend():
    code = "import fedoptax.models, jax._src.xla_bridge as b; raise SystemExit(bool(b._backends))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
