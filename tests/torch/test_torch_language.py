"""`causal_lm_task`: the loss of transformers, micro-batches, adapters of peft; the client in JAX agrees."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
import fedoptax.torch as ft
from fedoptax.data.text import IGNORED
from fedoptax.engine.batches import Minibatch
from fedoptax.models.llama import read_adapters, read_config
from tiny_llama import conversations, write_text_task
from torch_models import torch

transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore")
RUN: dict[str, Any] = {"rounds": 2, "cohort_size": 2, "batch_size": 5, "local_steps": 2, "seed": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_text_task(tmp_path_factory.mktemp("texts"))


def adapted(folder: Path, **options: Any) -> tuple[Any, fx.Task]:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    options = {"context": 40, "test": conversations(1)} | options
    with pytest.raises(fx.UsageError, match="lists of examples"):
        ft.causal_lm_task(model, tokenizer, conversations(1))
    return model, ft.causal_lm_task(model, tokenizer, folder / "talk.jsonl", **options)


def test_the_loss_is_that_of_transformers_and_micro_batches_give_its_gradient(folder):
    (model, task), (_, parts) = adapted(folder), adapted(folder, micro_batch=2)
    examples = {name: jnp.asarray(a[:5]) for name, a in task.clients.examples.items()}
    batch = Minibatch(examples | {"mask": jnp.arange(5) < 4}, jax.random.key(0))
    params = task.init(jax.random.key(0))
    (loss, grads), (other, other_grads) = (
        jax.value_and_grad(lambda p, t=t: t.loss(p, batch.examples, batch.key))(params) for t in (task, parts)
    )
    ids = torch.tensor(np.concatenate([examples["x"][:4, :1], np.maximum(examples["y"][:4], 0)], 1), dtype=torch.int64)
    labels = torch.tensor(np.concatenate([np.full((4, 1), IGNORED), examples["y"][:4]], 1), dtype=torch.int64)
    ids[:, 1:-1] = torch.tensor(np.asarray(examples["x"][:4, 1:]))
    with torch.no_grad():
        want = model.eval()(input_ids=ids, labels=labels).loss.item()
    assert float(loss) == pytest.approx(want, rel=1e-5) and float(other) == pytest.approx(want, rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), grads, other_grads)


def test_a_run_falls_saves_an_adapter_and_agrees_with_the_client_in_jax(folder, tmp_path):
    model, task = adapted(folder)
    result = fx.run(task, fx.fedavg(0.5), **RUN, out=tmp_path / "run", evaluate_start=True)
    assert result.history[-1]["test_perplexity"] < result.initial["test_perplexity"]
    model.save_pretrained(tmp_path / "start")
    twin = fx.load_task(
        f"text:{folder / 'talk.jsonl'}", model=str(folder / "model"), base_adapter=str(tmp_path / "start"), context=40,
        test_fraction=0.0,
    )  # fmt: skip
    other = fx.run(twin, fx.fedavg(0.5), **RUN)
    ft.save_adapter(tmp_path / "run", model, tmp_path / "adapter")
    read, _ = read_adapters(tmp_path / "adapter", read_config(folder / "model"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), read, other.params)
    torch.manual_seed(1)
    ft.save_adapter(result, model, tmp_path / "again")
    again, _ = read_adapters(tmp_path / "again", read_config(folder / "model"))
    jax.tree.map(np.testing.assert_array_equal, read, again)
