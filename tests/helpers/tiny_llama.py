"""A Hugging Face folder of a small random model with a byte tokenizer, and what transformers computes with it.

`python tests/helpers/tiny_llama.py` writes tests/models/llama.json anew; it needs torch and transformers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fedoptax.models.llama import LINEAR, read_config

KNOWN = Path(__file__).parents[1] / "models" / "llama.json"
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": False},
    "llama3": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
        },
    },
}  # fmt: skip
TOKENS = np.array([[5, 61, 3, 200, 9, 9, 17, 30, 1], [254, 0, 77, 120, 4, 256, 2, 50, 99]], np.int32)


def write_model(folder: Path, kind: str = "llama", depth: int = 2) -> Path:
    """Write the folder: 2 blocks of width 16, 4 heads and 2 of keys and values; weights follow from a seed."""
    config = {
        "vocab_size": 260, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": depth,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
        "hidden_act": "silu", "max_position_embeddings": 128, "bos_token_id": 256, "eos_token_id": 257,
    } | KINDS[kind]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    shape, rng = read_config(folder), np.random.default_rng(7)
    weights = {"model.embed_tokens.weight": (260, 16), "model.norm.weight": (16,)}
    for i in range(depth):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{i}.{norm}.weight"] = (16,)
        for name in LINEAR:
            place = f"model.layers.{i}.{'self_attn' if name in LINEAR[:4] else 'mlp'}.{name}"
            weights[f"{place}.weight"] = shape.linear_shape(name)
            if kind == "qwen2" and name in LINEAR[:3]:
                weights[f"{place}.bias"] = shape.linear_shape(name)[:1]
    if kind == "qwen2":
        weights["lm_head.weight"] = (260, 16)
    arrays = {name: rng.normal(0, 0.3, size).astype(np.float32) for name, size in weights.items()}
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ("<s>", "<|end|>", "<|user|>", "<|assistant|>")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(described | {"chat_template": CHAT, "pad_token": "<s>"}))


def conversations(clients: int = 3, each: int = 6) -> list[dict[str, Any]]:
    """Rows of a JSONL: each client asks for its own letter."""
    return [
        {
            "client": f"c{client}",
            "messages": [
                {"role": "user", "content": f"Say {number}."},
                {"role": "assistant", "content": "abcdefgh"[client] * (number + 2)},
            ],
        }
        for client in range(clients)
        for number in range(each)
    ]


def write_texts(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_text_task(folder: Path) -> Path:
    """Write what `text:PATH` needs: `model/` and the conversations `talk.jsonl`."""
    write_model(folder / "model")
    write_texts(folder / "talk.jsonl", conversations())
    return folder


if __name__ == "__main__":
    import tempfile

    import torch
    from transformers import AutoModelForCausalLM

    known = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            model = AutoModelForCausalLM.from_pretrained(write_model(Path(folder), kind), dtype=torch.float32)
            tokens = torch.tensor(TOKENS, dtype=torch.int64)
            labels = tokens.clone()
            labels[:, :4] = -100
            with torch.no_grad():
                result = model(input_ids=tokens, labels=labels)
        logits = result.logits[:, ::2, ::37].numpy().round(6).tolist()
        known[kind] = {"logits": logits, "loss_after_4": round(result.loss.item(), 6)}
    KNOWN.write_text(json.dumps(known) + "\n")
