"""`text:PATH`: what is learned of conversations, prompts and texts; adapters beside a frozen base."""

import json
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedoptax as fx
from fedoptax.data.text import IGNORED, TextTokenizer, as_sequences, read_texts
from fedoptax.engine.xla import Compiled
from fedoptax.models import llama
from refusals import refused
from tiny_llama import conversations, write_model, write_text_task, write_texts, write_tokenizer

RUN: dict[str, Any] = {"rounds": 2, "cohort_size": 2, "batch_size": 4, "local_steps": 2, "eval_every": 2, "seed": 1}
ALGORITHMS = {
    "fedavg": fx.fedavg(0.5),
    "fedadam": fx.fedadam(0.5, 0.01),
    "scaffold": fx.scaffold(0.5),
    "fafed": fx.fafed(0.01),
    "diloco": fx.diloco(0.01),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_text_task(tmp_path_factory.mktemp("texts"))


def load(folder: Path, **options: Any) -> fx.Task:
    options = {"model": str(folder / "model"), "context": 40, "lora": 2} | options
    return fx.load_task(f"text:{folder / 'talk.jsonl'}", **options)


def test_only_responses_are_learned(folder, caplog):
    tokenizer = TextTokenizer.read(folder / "model")
    ids, is_learned = tokenizer.encode(conversations()[1])
    assert tokenizer.tokenizer.decode([t for t, learned in zip(ids, is_learned) if learned]) == "aaa"
    assert ids[-1] == tokenizer.end[0] and is_learned[-1], "the end of a response is learned, too"
    ids, is_learned = tokenizer.encode({"prompt": "ab", "completion": "cde"})
    assert is_learned == [False] * 2 + [True] * 4 and ids[-1:] == tokenizer.end
    rows = as_sequences([{"prompt": "ab", "completion": "cde"}, {"prompt": "x" * 9, "completion": "y"}], tokenizer, 4)
    assert rows["x"].shape == (1, 4), "nothing is learned of the second within 4 tokens"
    assert "1 examples left out: no learned token in context=4" in caplog.text
    assert (rows["y"][0] == IGNORED).tolist() == [True, False, False, False]
    np.testing.assert_array_equal(rows["x"][0, 1:], [ids[1], *rows["y"][0, 1:3]])
    alone = as_sequences([{"prompt": "", "completion": "ab"}] * 2, tokenizer, 8)
    assert len(alone["x"]) == 2, "completions are sequences of their own"
    refused(lambda: tokenizer.encode({"messages": '[{"role": "user"}]'}), "messages must be a list of objects")
    refused(lambda: tokenizer.encode({"messages": [{"role": "user", "content": None}]}), "content (text), got")
    packed = as_sequences([{"text": "abc"}, {"text": "defg"}], tokenizer, 4)
    assert packed["x"].shape == (2, 4) and (packed["y"] != IGNORED).sum() == 8, "9 tokens with two ends, joined"


def test_texts_are_tokenised_once_until_they_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(folder).clients.examples["x"]
    with monkeypatch.context() as patch:
        patch.setattr(TextTokenizer, "encode", None)
        np.testing.assert_array_equal(load(folder).clients.examples["x"], first)
        with pytest.raises(TypeError):
            load(folder, context=39)
        os.utime(folder / "talk.jsonl", (0, 0))
        with pytest.raises(TypeError):
            load(folder)


def test_a_client_without_a_learned_token_is_left_out_with_a_note(folder, caplog):
    texts = [*conversations(), {"client": "late", "prompt": "x" * 99, "completion": "y"}]
    task = fx.load_task(f"text:{write_texts(folder / 'late.jsonl', texts)}", model=str(folder / "model"), context=40)
    assert task.clients.num_clients == load(folder).clients.num_clients and "1 clients left out" in caplog.text


def test_sequences_are_as_long_as_the_longest_and_may_weigh_by_tokens(folder):
    task = load(folder, context=500, weight="tokens")
    y = task.clients.examples["y"]
    assert y.shape[1] == 64, "the longest has fewer tokens"
    np.testing.assert_array_equal(task.weights, [(y[a:b] != IGNORED).sum() for a, b in pairwise(task.clients.offsets)])
    refused(lambda: load(folder, weight="words"), "weight must be one of sequences, tokens")


def test_clients_of_every_kind_of_file(folder, tmp_path):
    rows = [{"client": c, "text": text} for c, text in (("a", "one"), ("b", "two"), ("a ", "three"))]
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    pd.DataFrame(rows).to_parquet(tmp_path / "t.parquet")
    write_texts(tmp_path / "t.jsonl", rows)
    (tmp_path / "t.json").write_text(json.dumps(rows))
    for name in "ab":
        (tmp_path / "folder" / name).mkdir(parents=True)
        for row in rows:
            if row["client"].strip() == name:
                (tmp_path / "folder" / name / f"{row['text']}.txt").write_text(row["text"])
    (tmp_path / "folder" / "b").rename(tmp_path / ".elsewhere")
    (tmp_path / "folder" / "b").symlink_to(tmp_path / ".elsewhere")
    for path in ("t.csv", "t.parquet", "t.jsonl", "t.json", "folder"):
        texts = {c: sorted(row["text"] for row in part) for c, part in read_texts(tmp_path / path).items()}
        assert texts == {"a": ["one", "three"], "b": ["two"]}
    for path, client, text in (("t.csv", "who", "client_column"), ("t.x", "a", "path"), ("none.jsonl", "a", "path")):
        refused(lambda path=path, client=client: read_texts(tmp_path / path, client), text)
    (tmp_path / "bad.jsonl").write_text("\ufeff{}\n\n{")
    refused(lambda: read_texts(tmp_path / "bad.jsonl"), "line 3", "JSON")
    (tmp_path / "twice.csv").write_text("client,text,text\na,b,c\n")
    refused(lambda: read_texts(tmp_path / "twice.csv"), "'text' more than once")
    write_tokenizer(tmp_path)
    tokenizer = TextTokenizer.read(tmp_path)
    refused(lambda: tokenizer.encode({"words": 1, "text": None}), "must have text", "got {'words': 1")
    pd.DataFrame([{**conversations()[0], "client": "a"}]).to_parquet(tmp_path / "talk.parquet")
    (talk,) = read_texts(tmp_path / "talk.parquet")["a"]
    assert tokenizer.encode(talk) == tokenizer.encode(conversations()[0])  # an array of the list
    tokenizer.tokenizer.enable_truncation(2)
    tokenizer.tokenizer.enable_padding(length=9)
    tokenizer.tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert len(TextTokenizer.read(tmp_path).encode({"text": "abcd"})[0]) == 4 + len(tokenizer.end)
    refused(lambda: TextTokenizer(tokenizer.tokenizer).encode(conversations()[0]), "chat template")
    options = {"model": str(folder / "model"), "context": 40, "lora": 2}
    roots = tmp_path, tmp_path / "folder"  # of the same texts, which the first has of one client
    tasks = [fx.load_task(f"text:{root}", **options) for root in (*roots, folder / "talk.jsonl")]
    assert [task.num_clients for task in tasks[:2]] == [1, 2]
    assert [task.spec["is_chat"] for task in tasks] == [False, False, True]
    options["model"] = str(write_model(tmp_path / "model", depth=1))
    assert fx.load_task(f"text:{roots[0]}", **options).spec["contents"] != tasks[0].spec["contents"]  # another base


@pytest.mark.parametrize("options", [
    {"lora": None, "lora_alpha": 4.0}, {"lora": None, "freeze_a": 1}, {"num_clients": 99}, {"test_fraction": 10.0},
])  # fmt: skip
def test_an_option_without_effect_or_out_of_range_is_refused_by_name(folder, options):
    refused(lambda: load(folder, **options), next(name for name in options if options[name]))


def test_the_loss_is_the_mean_over_learned_tokens(folder):
    task = load(folder, test_fraction=0.0)
    assert task.test is None
    model, base = llama.from_pretrained(folder / "model")
    batch = {name: jnp.asarray(a[:5]) for name, a in task.clients.examples.items()} | {"mask": jnp.arange(5) < 4}
    params = jax.jit(task.init)(jax.random.key(0))
    logits = np.asarray(jax.nn.log_softmax(jax.jit(model.apply)(base, batch["x"])))
    total = [-logits[i, t, y] for i in range(4) for t, y in enumerate(batch["y"][i].tolist()) if y != IGNORED]
    loss = jax.jit(task.loss)(params, batch, jax.random.key(0))
    assert float(loss) == pytest.approx(np.mean(total), rel=1e-5)


@pytest.mark.parametrize("name", [pytest.param(a, marks=[] if a == "fedavg" else pytest.mark.long) for a in ALGORITHMS])
def test_any_algorithm_trains_adapters_and_sends_nothing_else(folder, name, caplog):
    """The model is measured before the first round, and the memory of a run is logged."""
    task = load(folder)
    params = task.init(jax.random.fold_in(jax.random.key(1), 0))
    with caplog.at_level("INFO", "fedoptax"):
        result = fx.run(task, ALGORITHMS[name], **RUN)
    assert re.fullmatch(r"memory: .*, 2 at a time; the device's \d+ GB have room for about [\d,]+", caplog.messages[0])
    last = result.history[-1]
    assert last["test_perplexity"] == pytest.approx(np.exp(last["test_loss"]), rel=1e-4)
    assert last["client_perplexity_mean"] is not None and 0 <= last["test_accuracy"] <= 1
    assert not np.allclose(jax.tree.leaves(result.params)[1], jax.tree.leaves(params)[1])
    assert last["bytes_up"] <= 4 * 2 * fx.nbytes(params)
    if name == "fedavg":
        assert result.initial["test_perplexity"] > last["test_perplexity"]
        other = fx.run(task, ALGORITHMS[name], client_loop="vmap", mesh=1, **RUN)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), other.params, result.params)


@pytest.mark.long
def test_the_program_holds_the_base_once_for_all_clients(folder, tmp_path, monkeypatch):
    """As an argument: its text has no long constant. (tests/models/test_llama.py: and no copy for each client.)"""
    lowered = []

    class Spy(Compiled):
        def __init__(self, jitted: Any, *observers: Any) -> None:
            super().__init__(jitted, *observers)
            self.jitted = jitted

        def __call__(self, *args: Any) -> Any:
            lowered.append(self.jitted.lower(*args))
            return super().__call__(*args)

    monkeypatch.setattr("fedoptax.engine.program.Compiled", Spy)
    task = load(folder, model=str(write_model(tmp_path, depth=12)))
    fx.run(task, fx.fedavg(0.5), **RUN | {"rounds": 1, "cohort_size": 3}, client_loop="vmap", mesh=1)
    base, memory = fx.nbytes(task.frozen.arrays["base"]), lowered[0].compile().memory_analysis()
    assert max(map(len, re.findall(r'"0x[0-9A-F]*"', lowered[0].as_text())), default=0) < 2000
    assert base < memory.argument_size_in_bytes < 1.5 * base


@pytest.mark.long
def test_a_whole_model_is_trained(folder):
    assert fx.run(load(folder, lora=None), fx.fedavg(0.1), **RUN).status == "completed"


def test_ffa_lora_and_options(folder):
    task = load(folder, freeze_a=1, lora_targets="*_proj", lora_alpha=2.0, lora_dropout=0.1, compute_dtype="bfloat16")
    result = fx.run(task, fx.fedavg(0.5), **RUN)
    assert {part for pair in result.params.values() for part in pair} == {"b"} and len(result.params) == 7
    assert {a.dtype for a in jax.tree.leaves(result.params)} == {np.dtype("float32")}
    wrong = (({"model": None}, "needs a model"), ({"lora": 0}, "lora"), ({"context": 1}, "no token in the loss"))
    for options, text in wrong:
        refused(lambda options=options: load(folder, **options), text)
