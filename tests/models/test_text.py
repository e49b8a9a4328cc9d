"""The models of text: sizes, what they read, dropout, where they start."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedoptax.models import gpt, shakespeare_rnn, so_logistic, so_rnn, wikitext_lstm
from small_models import KEY, assert_dtype_of_params, size, some_params

SMALL = {
    "shakespeare_rnn": shakespeare_rnn(11, embedding=3, units=(5, 4)),
    "so_rnn": so_rnn(11, embedding=3, units=5),
    "wikitext_lstm": wikitext_lstm(11, units=5, layers=2),
    "gpt": gpt(11, context=6, width=4, depth=1, heads=2),
}
IDS = jnp.asarray(np.random.default_rng(0).integers(0, 11, (3, 6)), jnp.int32)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (shakespeare_rnn(), 820_522),  # AFO
        (so_rnn(), 4_050_748),  # AFO
        (so_logistic(), 5_000_500),  # AFO
        (wikitext_lstm(), 50_059_878),  # FAFED: 33,278·650 + 2·4·650·(650 + 650 + 1) + 650·33,278 + 33,278
    ],
)
def test_models_have_the_published_sizes(model, parameters):
    assert size(model) == parameters


@pytest.mark.parametrize(
    "name", [pytest.param("shakespeare_rnn", marks=pytest.mark.long), "so_rnn", "wikitext_lstm", "gpt"]
)
def test_logits_depend_only_on_what_came_before(name):
    """So padding after a sequence changes nothing before it; and examples of a batch are apart."""
    model = SMALL[name]
    params, apply = some_params(model), jax.jit(model.apply)
    before, after = apply(params, IDS), apply(params, IDS.at[1, 3].set((IDS[1, 3] + 1) % 11))
    changed = np.any(np.asarray(before != after), axis=2)
    np.testing.assert_array_equal(changed, [[False] * 6, [False] * 3 + [True] * 3, [False] * 6])
    assert np.array_equal(before, apply(params, IDS, KEY)) == (name != "wikitext_lstm")  # which has dropout


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
@pytest.mark.parametrize("name", SMALL)
def test_logits_and_gradients_have_the_dtype_of_the_parameters(name, dtype):
    assert_dtype_of_params(SMALL[name], IDS, (3, 6, 11), dtype)


def test_ids_beyond_the_vocabulary_give_nan():
    model = SMALL["so_rnn"]
    logits = jax.jit(model.apply)(some_params(model), jnp.array([[1, 11], [1, 10]]))
    np.testing.assert_array_equal(np.isnan(logits).any(axis=2), [[False, True], [False, False]])


def start(model, part):
    """Some of the initial parameters; only what makes them is compiled."""
    return jax.jit(lambda key: part(model.init(key)))(KEY)


@pytest.mark.long
def test_models_start_as_in_the_released_code():
    """He normal LSTM kernels for Shakespeare, Keras's Glorot uniform for Stack Overflow, PyTorch's for WikiText."""
    kernel, embedding = start(
        shakespeare_rnn(40, embedding=20, units=(30, 30)),
        lambda params: (params["layers"]["1"]["kernel"], params["embedding"]["embedding"]),
    )
    assert np.var(kernel) == pytest.approx(2 / 30, rel=0.1)
    assert 0.045 < np.abs(embedding).max() <= 0.05
    kernel = start(so_rnn(40, embedding=20, units=30), lambda params: params["layers"]["0"]["kernel"])
    assert np.var(kernel) == pytest.approx(2 / (20 + 120), rel=0.1)
    dense, layer = start(wikitext_lstm(40, units=25), lambda params: (params["dense"], params["layers"]["1"]))
    for leaf, bound in ((dense, 0.1), (layer, 0.2)):
        assert 0.9 * bound < np.abs(leaf["kernel"]).max() <= bound
        assert np.min(leaf["kernel"]) < -0.9 * bound
        assert not np.any(leaf["bias"])
