"""Low-rank adapters of `fedoptax.models.llama`: made, and read and written as PEFT's folders."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax._files import reading, write_atomically
from fedoptax.errors import DataError, UsageError, check_int, check_number
from fedoptax.models.llama import LINEAR, PLACES, LlamaConfig
from fedoptax.models.model import Params

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
    plain = {"peft_type": "LORA", "bias": "none"} | dict.fromkeys(
        ("use_dora", "use_rslora", "fan_in_fan_out", "rank_pattern", "alpha_pattern", "modules_to_save")
    )
    for name, value in plain.items():
        if (got := described.get(name, value)) != value and got not in (False, {}, []):
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
