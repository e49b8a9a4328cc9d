"""The transformers, computed by hand, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedoptax.errors import UsageError
from fedoptax.models import gpt
from fedoptax.tasks.recipe import MODELS
from small_models import KEY, normal, some_params


def dense(params, x):
    return x @ np.float64(params["kernel"]) + np.float64(params["bias"])


def norm(params, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * params["scale"] + np.float64(params["bias"])


def attention(params, x, heads, is_causal):
    """Multi-head attention of Vaswani et al. 2017, one head after the other; x (time, width)."""
    queries, keys, values = np.split(dense(params["attend"], x), 3, axis=-1)
    size, out = x.shape[1] // heads, []
    for head in range(heads):
        q, k, v = (part[:, head * size : (head + 1) * size] for part in (queries, keys, values))
        scores = q @ k.T / np.sqrt(size)
        if is_causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out.append(weights / weights.sum(-1, keepdims=True) @ v)
    return dense(params["project"], np.concatenate(out, axis=-1))


def block(params, x, heads, is_causal):
    x = x + attention(params, norm(params["norm1"], x), heads, is_causal)
    hidden = dense(params["expand"], norm(params["norm2"], x))
    gelu = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
    return x + dense(params["contract"], gelu)


def test_gpt_is_computed_layer_by_layer():
    model = gpt(11, context=7, width=6, depth=2, heads=2)
    params, ids = some_params(model), np.array([[3, 1, 4, 1, 5]])
    x = np.float64(params["embedding"])[ids[0]] + np.float64(params["positions"])[:5]
    for index in ("0", "1"):
        x = block(params["blocks"][index], x, heads=2, is_causal=True)
    expected = dense(params["head"], norm(params["norm"], x))
    np.testing.assert_allclose(jax.jit(model.apply)(params, ids)[0], expected, rtol=1e-4, atol=1e-5)


def test_vit_is_computed_layer_by_layer():
    """Patches in rows, pixels of a patch in rows."""
    model = MODELS["vit"]((8, 12, 3), 5, patch=4, width=6, depth=1, heads=2)
    params, image = some_params(model), np.asarray(normal(1, (8, 12, 3)))
    patches = [image[i : i + 4, j : j + 4].ravel() for i in (0, 4) for j in (0, 4, 8)]
    x = dense(params["embed"], np.float64(patches)) + np.float64(params["positions"])
    x = block(params["blocks"]["0"], x, heads=2, is_causal=False)
    expected = dense(params["head"], norm(params["norm"], x).mean(0))
    np.testing.assert_allclose(jax.jit(model.apply)(params, image[None])[0], expected, rtol=1e-4, atol=1e-5)


def test_a_sequence_longer_than_the_context_is_refused():
    model = gpt(11, context=4, width=4, depth=1, heads=1)
    with pytest.raises(UsageError, match=r"time <= 4"):
        jax.eval_shape(model.apply, jax.eval_shape(model.init, KEY), jnp.zeros((1, 5), jnp.int32))
