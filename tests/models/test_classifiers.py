"""The small networks, computed again layer by layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedoptax.models import autoencoder, cifar_cnn, fafed_cifar_cnn, fafed_fmnist_cnn, lenet
from small_models import init, normal, size, some_params


def conv_pool(x, params, padding, activation, pool=True):
    x = lax.conv_general_dilated(x, params["kernel"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = activation(x + params["bias"])
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") if pool else x


def dense(x, layers, activation):
    x = x.reshape(len(x), -1)
    for i in range(len(layers)):
        x = x @ layers[str(i)]["kernel"] + layers[str(i)]["bias"]
        x = activation(x) if i < len(layers) - 1 else x
    return x


CNNS = [
    # build, input shape, padding, activation, which convolutions are pooled
    pytest.param(cifar_cnn, (32, 32, 3), "VALID", jax.nn.relu, (True, True, False), marks=pytest.mark.long),
    (fafed_fmnist_cnn, (28, 28, 1), "VALID", jnp.tanh, (True, True)),
    pytest.param(fafed_cifar_cnn, (32, 32, 3), "SAME", jax.nn.relu, (True, True, True), marks=pytest.mark.long),
    pytest.param(lenet, (28, 28, 1), "VALID", jax.nn.relu, (True, True), marks=pytest.mark.long),
]


@pytest.mark.parametrize(("build", "shape", "padding", "activation", "pools"), CNNS)
def test_logits_are_computed_layer_by_layer(build, shape, padding, activation, pools):
    model = build(shape, 10)
    params, x = some_params(model), normal(0, (2, *shape))

    @jax.jit
    def both(params, x):
        y = x
        for i, pool in enumerate(pools):
            y = conv_pool(y, params["convs"][str(i)], padding, activation, pool)
        return model.apply(params, x), dense(y, params["dense"], activation)

    ours, theirs = both(params, x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


def test_autoencoder_is_linear_only_at_the_code():
    model = autoencoder((6, 5, 4, 2))
    params, x = some_params(model), normal(0, (3, 6))
    y = x
    for i in range(6):
        y = y @ params["layers"][str(i)]["kernel"] + params["layers"][str(i)]["bias"]
        y = y if i == 2 else jax.nn.sigmoid(y)
    ours = jax.jit(model.apply)(params, x)
    assert [params["layers"][str(i)]["kernel"].shape[1] for i in range(6)] == [5, 4, 2, 4, 5, 6]
    np.testing.assert_allclose(ours, y, rtol=1e-5)


def test_autoencoder_has_the_published_size_and_starts_glorot_uniform():
    assert size(autoencoder()) == 2_837_314
    params = init(autoencoder((40, 30, 5)))
    kernel = params["layers"]["0"]["kernel"]
    assert np.var(kernel) == pytest.approx(2 / 70, rel=0.1)
    assert np.abs(kernel).max() <= np.sqrt(6 / 70)
    assert not np.any(params["layers"]["0"]["bias"])
