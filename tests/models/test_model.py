"""Models as pure functions, and their sizes."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedoptax import models
from fedoptax.errors import UsageError
from fedoptax.models import cnn, count_params, emnist_cnn, functional, mlp
from fedoptax.tasks.recipe import MODELS
from small_models import KEY, assert_dtype_of_params, init, normal, paths, some_params

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


def test_parameters_are_plain_dictionaries():
    params = init(mlp((4,), 2, hidden=(3,), dropout=0.5))
    assert paths(params) == ["dense1/bias", "dense1/kernel", "dense2/bias", "dense2/kernel"]
    assert type(params) is dict
    assert type(params["dense1"]) is dict
    assert all(type(leaf) is type(jnp.ones(1)) for leaf in jax.tree.leaves(params))
    params = jax.eval_shape(cnn((28, 28, 1), 10).init, KEY)
    layers = ("conv1", "conv2", "dense1", "dense2")
    assert paths(params) == [f"{layer}/{kind}" for layer in layers for kind in ("bias", "kernel")]
    assert params["conv1"]["kernel"].shape == (5, 5, 1, 10)


def test_key_decides_the_parameters():
    model = mlp((4,), 2, hidden=(3,))
    first, second, other = (init(model, seed) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert not np.array_equal(first["dense1"]["kernel"], other["dense1"]["kernel"])


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


@pytest.mark.long
def test_dropout_of_channels_drops_whole_channels():
    """With a second convolution of kernel 0 and bias 1, a dropped channel is 0 at all its 16 pixels."""
    model = cnn((28, 28, 1), 20)
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), jax.eval_shape(model.init, KEY))
    params["conv2"]["bias"] = jnp.ones(20)
    params["dense1"]["kernel"] = jnp.tile(jnp.eye(20, 50), (16, 1))  # sums each channel over its 4 × 4 pixels
    params["dense2"]["kernel"] = jnp.eye(50, 20)
    sums = np.unique(jax.jit(model.apply)(params, jnp.zeros((8, 28, 28, 1)), KEY))
    assert set(sums) == {0.0, 64.0}  # 16 pixels, doubled by each dropout


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
@pytest.mark.parametrize("name", ["mlp_dropout", "cnn", *(pytest.param(n, marks=pytest.mark.long) for n in RESNETS)])
def test_logits_have_the_dtype_of_the_parameters(name, dtype):
    assert_dtype_of_params(MODELS[name]((8, 8, 1), 10), normal(0, (2, 8, 8, 1)), (2, 10), dtype)


@pytest.mark.long
def test_kernels_start_at_the_usual_scale():
    """Kernels have variance 1 / fan-in (Glorot uniform: 2 / (fan-in + fan-out)), biases are zero."""
    params = init(cnn((28, 28, 1), 10))
    assert np.var(params["conv2"]["kernel"]) == pytest.approx(1 / 250, rel=0.1)
    assert not np.any(params["conv2"]["bias"])
    params = init(emnist_cnn((28, 28, 1), 62))
    assert np.var(params["conv2"]["kernel"]) == pytest.approx(2 / (9 * 32 + 9 * 64), rel=0.05)


def test_batch_statistics_are_refused():
    model = functional(lambda rngs: nnx.BatchNorm(3, rngs=rngs))
    with pytest.raises(UsageError, match="BatchStat"):
        model.init(KEY)


def test_missing_parameters_are_named():
    model = mlp((4,), 2)
    params = some_params(model)
    del params["dense2"]["kernel"]
    with pytest.raises(UsageError, match="dense2/kernel"):
        model.apply(params, jnp.ones((1, 4)))
    with pytest.raises(UsageError, match=r"^params must"):
        model.apply(list(params.values()), jnp.ones((1, 4)))


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: mlp((), 10), "input_shape"), (lambda: mlp((0, 3), 10), "input_shape"),
        (lambda: mlp((4,), 0), "num_classes"), (lambda: mlp((4,), 2, hidden=(0,)), "hidden"),
        (lambda: mlp((4,), 2, dropout=1.0), "dropout"), (lambda: cnn((784,), 10), "input_shape"),
        (lambda: cnn((3, 8, 1), 10), "input_shape"), (lambda: cnn((28, 28, 1), 10, dropout=-0.1), "dropout"),
        (lambda: emnist_cnn((5, 8, 1), 62), "input_shape"), (lambda: models.autoencoder(()), "sizes"),
        (lambda: models.autoencoder((784,)), "sizes"), (lambda: models.autoencoder((784, 0)), "sizes"),
        (lambda: models.resnet18((7, 8, 3), 10), "input_shape"), (lambda: models.resnet9((8, 8), 10), "input_shape"),
        (lambda: models.resnet9((8, 8, 3), 1), "num_classes"),
        (lambda: models.resnet18((8, 8, 3), 10, width=0), "width"),
        (lambda: models.resnet18((8, 8, 3), 10, width=3), "width"), (lambda: models.shakespeare_rnn(1), "vocabulary"),
        (lambda: models.shakespeare_rnn(90, embedding=0), "embedding"),
        (lambda: models.shakespeare_rnn(90, units=()), "units"), (lambda: models.so_rnn(90, units=0), "units"),
        (lambda: models.wikitext_lstm(90, units=0), "units"), (lambda: models.wikitext_lstm(90, layers=0), "layers"),
        (lambda: models.wikitext_lstm(90, dropout=1.0), "dropout"), (lambda: models.so_logistic(0), "vocabulary"),
        (lambda: models.so_logistic(10, tags=0), "tags"), (lambda: MODELS["vit"]((28, 28, 1), 10, patch=5), "patch"),
        (lambda: MODELS["vit"]((28, 28, 1), 10, width=10, heads=4), "width"), (lambda: models.gpt(1), "vocabulary"),
        (lambda: models.gpt(10, depth=0), "depth"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(call, argument):
    with pytest.raises(UsageError, match=f"^{argument} must"):
        call()


def test_importing_models_starts_no_backend():
    code = "import fedoptax.models, jax._src.xla_bridge as b; raise SystemExit(bool(b._backends))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
