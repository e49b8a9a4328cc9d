"""The residual networks are the published ones, layer by layer, computed again with NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedoptax.models import resnet9, resnet18
from small_models import init, normal, some_params

pytestmark = pytest.mark.long  # each compiles for seconds


def windows(x, size, stride, fill):
    """(n, output height, output width, channels, size, size), padded as TensorFlow's SAME."""
    pads = []
    for length in x.shape[1:3]:
        total = max((-(-length // stride) - 1) * stride + size - length, 0)
        pads.append((total // 2, total - total // 2))
    padded = np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))[:, ::stride, ::stride]


def conv(x, params, stride=1):
    assert set(params) == {"kernel"}  # no bias
    return np.einsum("nhwcij,ijco->nhwo", windows(x, params["kernel"].shape[0], stride, 0.0), params["kernel"])


def norm(x, params, epsilon):
    groups = x.reshape(len(x), -1, 2, x.shape[3] // 2)
    mean, variance = (f(groups, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    return ((groups - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * params["scale"] + params["bias"]


def relu(x):
    return np.maximum(x, 0)


def shortcut(x, params, stride, epsilon):
    if "shortcut" not in params:
        return x
    return norm(conv(x, params["shortcut"]["conv"], stride), params["shortcut"]["norm"], epsilon)


def resnet18_in_numpy(params, x, strides):
    x = relu(norm(conv(x, params["conv"], 2), params["norm"], 1e-3))
    x = windows(x, 3, 2, -np.inf).max(axis=(-1, -2))
    for number in range(8):
        block = params["blocks"][str(number)]
        stride = 2 if strides and number in (2, 4, 6) else 1
        y = x if number == 0 else relu(norm(x, block["norm1"], 1e-3))
        y = relu(norm(conv(y, block["conv1"], stride), block["norm2"], 1e-3))
        x = conv(y, block["conv2"]) + shortcut(x, block, stride, 1e-3)
    x = relu(norm(x, params["last_norm"], 1e-3)).mean(axis=(1, 2))
    return x @ params["dense"]["kernel"] + params["dense"]["bias"]


def resnet9_in_numpy(params, x):
    x = relu(norm(conv(x, params["conv"]), params["norm"], 1e-5))
    for number in range(4):
        block, stride = params["blocks"][str(number)], 1 if number == 0 else 2
        y = relu(norm(conv(x, block["conv1"], stride), block["norm1"], 1e-5))
        x = relu(norm(conv(y, block["conv2"]), block["norm2"], 1e-5) + shortcut(x, block, stride, 1e-5))
    return x.mean(axis=(1, 2)) @ params["dense"]["kernel"] + params["dense"]["bias"]


@pytest.mark.parametrize(
    ("build", "options", "oracle"),
    [
        (resnet18, {"strides": True}, lambda params, x: resnet18_in_numpy(params, x, strides=True)),
        (resnet18, {"strides": False}, lambda params, x: resnet18_in_numpy(params, x, strides=False)),
        (resnet9, {}, resnet9_in_numpy),
    ],
)
def test_logits_are_those_of_numpy(build, options, oracle):
    model = build((18, 13, 3), 5, width=4, **options)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        params = jax.tree.map(lambda a: a.astype(jnp.float64), some_params(model))
        x = normal(0, (2, 18, 13, 3), jnp.float64)
        ours = jax.jit(model.apply)(params, x)
    assert ours.dtype == jnp.float64
    expected = oracle(jax.tree.map(np.asarray, params), np.asarray(x))
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_kernels_start_at_the_published_scale():
    """He normal convolutions; the dense layer's standard deviation is 0.01."""
    params = init(resnet18((8, 8, 3), 50, width=8))
    assert np.var(params["blocks"]["7"]["conv2"]["kernel"]) == pytest.approx(2 / (9 * 64), rel=0.05)
    assert np.std(params["dense"]["kernel"]) == pytest.approx(0.01, rel=0.05)
