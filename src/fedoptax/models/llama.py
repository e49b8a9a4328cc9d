"""The Llama family, from Hugging Face folders: Llama, SmolLM2 and Qwen2; and low-rank adapters, as PEFT stores them.

Blocks of RMSNorm, rotary positions, grouped-query attention and SwiGLU (Touvron et al. 2023; Ainslie et al. 2023). All
blocks' arrays are stacked, (depth, …), and run in one scan, so that a deep model compiles like a shallow one; each
block is rematerialised in the backward pass. Weights have the folders' names and orientation, (outputs, inputs).

With adapters (Hu et al. 2022), which are applied, not merged, a linear map is x Wᵀ + (α/r) (x Aᵀ) Bᵀ. W is one array
for all clients: under `vmap` over clients with adapters of their own, x Wᵀ stays one product of all their tokens.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax._files import reading, write_atomically
from fedoptax.errors import DataError, UsageError, check_int, check_number
from fedoptax.models.model import Model, Params

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear maps of a block, by their names in the folders."""
PLACES = {name: f"{'self_attn' if name in LINEAR[:4] else 'mlp'}.{name}" for name in LINEAR}
_NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a model; `rope_scaling` is Llama 3's (factor, low and high frequency factor, context), or None.

    `is_tied`: the output layer is the embedding.
    """

    vocabulary: int
    width: int
    hidden: int
    depth: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float = 1e-6
    theta: float = 10_000.0
    rope_scaling: tuple[float, float, float, float] | None = None
    is_tied: bool = False

    def linear_shape(self, name: str) -> tuple[int, int]:
        """Return (outputs, inputs) of one of `LINEAR`."""
        attention, shared = self.heads * self.head_dim, self.kv_heads * self.head_dim
        inputs = {"o_proj": attention, "down_proj": self.hidden}
        outputs = {"q_proj": attention, "k_proj": shared, "v_proj": shared} | dict.fromkeys(LINEAR[4:6], self.hidden)
        return outputs.get(name, self.width), inputs.get(name, self.width)


def read_config(folder: str | Path) -> LlamaConfig:
    """Read the `config.json` of a folder; a `UsageError` if the model is of another family or has an unknown part."""
    with reading(path := Path(folder) / "config.json", "the config of a model"):
        config = json.loads(path.read_text(encoding="utf-8"))
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        wanted = {"model_type": ("llama", "qwen2"), "hidden_act": ("silu",), "use_sliding_window": (False,)}
        values = {name: config.get(name, allowed[0]) for name, allowed in wanted.items()} | {"rope_type": rope_type}
        for name, allowed in (wanted | {"rope_type": ("default", "llama3")}).items():
            if (got := values[name]) not in allowed:
                raise UsageError(f"model '{folder}' must have {name} {' or '.join(map(str, allowed))}, got {got}")
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        scaling: Any = None if rope_type == "default" else tuple(float(rope[name]) for name in names)
        heads, width = config["num_attention_heads"], config["hidden_size"]
        return LlamaConfig(
            config["vocab_size"], width, config["intermediate_size"], config["num_hidden_layers"], heads,
            config.get("num_key_value_heads") or heads, config.get("head_dim") or width // heads,
            config.get("rms_norm_eps", 1e-6), float(rope.get("rope_theta", config.get("rope_theta", 1e4))), scaling,
            bool(config.get("tie_word_embeddings", False)),
        )  # fmt: skip


def from_pretrained(
    folder: str | Path, dtype: str = "float32", scale: float = 1.0, dropout: float = 0.0
) -> tuple[Model, Params]:
    """Read a Hugging Face folder of a Llama, SmolLM2 or Qwen2 model; return it and its parameters, NumPy arrays.

    Statistics of norms are in float32, all else in `dtype`. The model's `apply` is that of `make_apply`.
    """
    from safetensors.flax import load_file

    config, weights, folder = read_config(folder), dict[str, np.ndarray](), Path(folder)
    for path in sorted(folder.glob("*.safetensors")):
        with reading(path, "weights"):
            weights |= {name: np.asarray(array).astype(jnp.dtype(dtype)) for name, array in load_file(path).items()}

    def read(name: str, shape: tuple[int, ...]) -> np.ndarray:
        got = weights.pop(name) if name in weights else None
        if got is None or got.shape != shape:
            raise DataError(f"'{folder}' must have '{name}' of shape {shape}, got {None if got is None else got.shape}")
        return got

    def read_stack(place: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.stack([read(f"model.layers.{i}.{place}", shape) for i in range(config.depth)])

    layers = {name: read_stack(f"{name}.weight", (config.width,)) for name in _NORMS}
    for name, place in PLACES.items():
        layers[name] = read_stack(f"{place}.weight", config.linear_shape(name))
        if f"model.layers.0.{place}.bias" in weights:  # Qwen2's attention has some
            layers[f"{name}_bias"] = read_stack(f"{place}.bias", config.linear_shape(name)[:1])
    params = {"embed_tokens": read("model.embed_tokens.weight", (config.vocabulary, config.width)), "layers": layers}
    params["norm"] = read("model.norm.weight", (config.width,))
    if not config.is_tied:
        params["lm_head"] = read("lm_head.weight", (config.vocabulary, config.width))
    if unknown := sorted(n for n in weights if not n.endswith(("lm_head.weight", "rotary_emb.inv_freq"))):
        raise UsageError(f"model '{folder}' has {len(unknown)} arrays that are not used, such as '{unknown[0]}'")
    return Model(lambda key: params, make_apply(config, scale, dropout)), params


def make_apply(config: LlamaConfig, scale: float = 1.0, dropout: float = 0.0) -> Callable[..., jax.Array]:
    """Make `(params, tokens, key=None) -> logits (n, time, vocabulary)`, a causal language model.

    Padding may only follow a sequence. `params["lora"]`, if there is one, holds adapters by the name of a linear map,
    `{"q_proj": {"a": (depth, rank, inputs), "b": (depth, outputs, rank)}, …}`; `scale` is their α/r, and `dropout` that
    of their inputs, in training (with a key).
    """

    def apply(params: Params, tokens: jax.Array, key: jax.Array | None = None) -> jax.Array:
        if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise UsageError(f"tokens must be integers (n, time), got {tokens.dtype} of shape {tokens.shape}")
        x = jnp.take(jnp.asarray(params["embed_tokens"]), tokens, axis=0)
        angles = rotary_angles(config, tokens.shape[1])
        keys = None if key is None or not dropout else jax.random.split(key, config.depth)

        @partial(jax.checkpoint, prevent_cse=False)  # in a scan nothing is merged anyway
        def block(x: jax.Array, layer: tuple[Params, Params, jax.Array | None]) -> tuple[jax.Array, None]:
            return _block(config, scale, dropout, angles, x, *layer), None

        x, _ = jax.lax.scan(block, x, (params["layers"], params.get("lora", {}), keys))
        x = rms_norm(x, params["norm"], config.eps)
        return x @ jnp.asarray(params.get("lm_head", params["embed_tokens"])).T

    return apply


def _block(
    config: LlamaConfig, scale: float, dropout: float, angles: jax.Array, x: jax.Array, layer: Params, lora: Params,
    key: jax.Array | None,
) -> jax.Array:  # fmt: skip
    n, time, _ = x.shape

    def linear(name: str, x: jax.Array) -> jax.Array:
        y = x @ layer[name].T
        if f"{name}_bias" in layer:
            y = y + layer[f"{name}_bias"]
        if name in lora:
            if key is not None:
                keep = jax.random.bernoulli(jax.random.fold_in(key, LINEAR.index(name)), 1 - dropout, x.shape)
                x = jnp.where(keep, x / jnp.asarray(1 - dropout, x.dtype), jnp.zeros((), x.dtype))
            a, b = (lora[name][part].astype(x.dtype) for part in "ab")
            y = y + jnp.asarray(scale, x.dtype) * (x @ a.T @ b.T)
        return y

    h = rms_norm(x, layer["input_layernorm"], config.eps)
    q, k, v = (linear(name, h).reshape(n, time, -1, config.head_dim) for name in LINEAR[:3])
    q, k = rotate(q, angles), rotate(k, angles)
    with jax.numpy_dtype_promotion("standard"):  # jax's own function needs it
        seen = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=_attention(q))
    x = x + linear("o_proj", seen.reshape(n, time, -1))
    h = rms_norm(x, layer["post_attention_layernorm"], config.eps)
    return x + linear("down_proj", jax.nn.silu(linear("gate_proj", h)) * linear("up_proj", h))


def _attention(q: jax.Array) -> Literal["cudnn"] | None:
    """Choose cuDNN's attention where there is one: a round of SmolLM2 with adapters in 0.42 of the time (H100)."""
    fits = q.dtype in (jnp.bfloat16, jnp.float16) and q.shape[-1] % 8 == 0 and q.shape[-1] <= 128
    is_new = jax.default_backend() == "gpu" and float(jax.local_devices()[0].compute_capability) >= 8
    return "cudnn" if fits and is_new else None


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Return x / √(mean x² + ε) times `weight`, the statistics in float32 (Zhang and Sennrich 2019)."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return wide.astype(x.dtype) * weight


def rotary_angles(config: LlamaConfig, time: int) -> jax.Array:
    """Return the angle of each position and pair of numbers, float32 (time, head_dim / 2) (Su et al. 2021).

    With Llama 3's scaling low frequencies are divided by its factor, and those between are interpolated.
    """
    frequency = config.theta ** (-np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim)
    if config.rope_scaling is not None:
        factor, low, high, context = config.rope_scaling
        share = np.clip((context * frequency / (2 * np.pi) - low) / (high - low), 0, 1)
        frequency = frequency * (share + (1 - share) / factor)
    return jnp.asarray(np.outer(np.arange(time), frequency), jnp.float32)


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Turn each pair (xᵢ, xᵢ₊ₕ) of x (n, time, heads, 2h) by its angle."""
    cos, sin = (f(angles)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Lora:
    """Which linear maps have adapters, of rank r, with the factor α/r; `dropout` is of their inputs in training.

    `alpha` None is 2r, a factor of 2. `targets` are names of `llama.LINEAR` or patterns, separated by commas.
    """

    rank: int
    alpha: float | None = None
    targets: str = "q_proj,v_proj"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_int("lora", self.rank)
        check_number("lora_dropout", self.dropout, 0, 1, open_high=True)
        if self.alpha is not None:
            check_number("lora_alpha", self.alpha, 0, open_low=True)
        for pattern in self.targets.split(","):
            if not any(fnmatchcase(name, pattern) for name in LINEAR):
                raise UsageError(f"lora_targets must be among {', '.join(LINEAR)}, or patterns, got '{pattern}'")

    @property
    def names(self) -> list[str]:
        """The linear maps that have adapters."""
        return [name for name in LINEAR if any(fnmatchcase(name, p) for p in self.targets.split(","))]

    @property
    def scale(self) -> float:
        """α/r."""
        return 2.0 if self.alpha is None else self.alpha / self.rank


def init_adapters(config: LlamaConfig, lora: Lora, key: jax.Array) -> Params:
    """Make adapters that change nothing yet: A uniform in ±1/√inputs, as PEFT's, and B zero."""
    adapters: Params = {}
    for name, name_key in zip(lora.names, jax.random.split(key, len(lora.names))):
        outputs, inputs = config.linear_shape(name)
        a = jax.random.uniform(name_key, (config.depth, lora.rank, inputs), jnp.float32, -1, 1) / inputs**0.5
        adapters[name] = {"a": a, "b": jnp.zeros((config.depth, outputs, lora.rank), jnp.float32)}
    return adapters


def write_adapters(folder: str | Path, adapters: Mapping[str, Any], lora: Lora, base: str = "") -> Path:
    """Write adapters as a folder that `peft.PeftModel.from_pretrained` loads; `base` is the base model's folder."""
    from safetensors.numpy import save

    folder, tensors = Path(folder), {}
    for name, pair in adapters.items():
        for part, array in pair.items():
            for layer, matrix in enumerate(np.asarray(array, np.float32)):
                tensors[_key(layer, name, part)] = np.ascontiguousarray(matrix)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": lora.rank,
        "lora_alpha": lora.scale * lora.rank, "lora_dropout": lora.dropout, "target_modules": lora.names,
        "bias": "none", "fan_in_fan_out": False, "inference_mode": True,
    }  # fmt: skip
    write_atomically(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    write_atomically(folder / CONFIG, json.dumps(config, indent=2).encode())
    return folder


def read_adapters(folder: str | Path, config: LlamaConfig) -> tuple[Params, Lora]:
    """Read adapters from a folder as PEFT writes it; a `UsageError` if they are no plain LoRA with one rank."""
    from safetensors.numpy import load_file

    with reading(folder := Path(folder), "a folder of adapters"):
        described, tensors = json.loads((folder / CONFIG).read_text(encoding="utf-8")), load_file(folder / WEIGHTS)
        rank, alpha, targets = int(described["r"]), float(described["lora_alpha"]), described["target_modules"]
        dropout = float(described.get("lora_dropout", 0))
    absent = ("use_dora", "use_rslora", "fan_in_fan_out", "rank_pattern", "alpha_pattern", "modules_to_save")
    plain = {"peft_type": "LORA", "bias": "none", "init_lora_weights": True} | dict.fromkeys(absent)
    for name, value in plain.items():
        if (got := described.get(name, value)) != value and got not in (False, {}, [], "gaussian", "eva", "orthogonal"):
            raise UsageError(f"adapters in '{folder}' must be plain LoRA, got {name} {got!r}")
    names = [targets] if isinstance(targets, str) else [str(name).rpartition(".")[2] for name in targets]
    lora = Lora(rank, alpha, ",".join(name for name in LINEAR if name in names) or str(targets), dropout)
    form: Any = jax.eval_shape(lambda key: init_adapters(config, lora, key), jax.random.key(0))
    adapters: Params = {}
    for name, parts in form.items():
        adapters[name] = {}
        for part, struct in parts.items():
            keys = [_key(layer, name, part) for layer in range(config.depth)]
            if missing := [key for key in keys if key not in tensors or tensors[key].shape != struct.shape[1:]]:
                raise DataError(f"'{folder}' must have '{missing[0]}' of shape {struct.shape[1:]}")
            adapters[name][part] = np.stack([tensors.pop(key) for key in keys]).astype(np.float32)
    if tensors:
        raise UsageError(f"adapters in '{folder}' must be of the linear maps {', '.join(LINEAR)}, got '{min(tensors)}'")
    return adapters, lora


def _key(layer: int, name: str, part: str) -> str:
    return f"base_model.model.model.layers.{layer}.{PLACES[name]}.lora_{part.upper()}.weight"
