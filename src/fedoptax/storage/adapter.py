"""A language model that a run adapted: its adapters for PEFT, and its answers to prompts."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from fedoptax._files import read_json, read_params_file, reading
from fedoptax.algorithm import Tree
from fedoptax.data.text import TextTokenizer
from fedoptax.errors import UsageError, check_int
from fedoptax.models.llama import Lora, write_adapters
from fedoptax.storage.model import choose_params
from fedoptax.tasks.pretrained import frozen_a, join_adapters, model_folder, read_model, read_settings
from fedoptax.tasks.recipe import TEXT_PREFIX, TaskOptions


class AdaptedModel(NamedTuple):
    """A base model, by the options of its task, and what a run trained: adapters, or with `lora` None all of it."""

    options: TaskOptions
    lora: Lora | None
    params: Tree
    is_chat: bool

    def save_adapter(self, folder: str | Path) -> Path:
        """Write the adapters as `peft.PeftModel.from_pretrained` loads them; a `UsageError` if all was trained."""
        if self.lora is None:
            raise UsageError("export writes adapters: a run that trained the whole model has its params.npz")
        return write_adapters(folder, self.params, self.lora, str(model_folder(self.options).resolve()))

    def answer(self, prompt: str, tokens: int = 64) -> Iterator[str]:
        """Return the answer to a prompt, a piece at a time: each token the most probable one, up to the end token.

        After training on conversations the prompt is a user's turn. Each token takes a pass through the whole text.
        """
        check_int("tokens", tokens)
        tokenizer = TextTokenizer.read(model_folder(self.options))
        is_chat = self.is_chat and bool(tokenizer.chat_template)
        prompt = tokenizer.render([{"role": "user", "content": prompt}], is_prompt=True) if is_chat else prompt
        ids = tokenizer.tokenizer.encode(prompt, add_special_tokens=not is_chat).ids
        if not ids:
            raise UsageError("prompt must have a token, got an empty one")
        model, base = read_model(self.options, self.lora)
        params = self.params if self.lora is None else {**base, "lora": self.params}

        @jax.jit
        def choose(params: Tree, text: jax.Array, place: jax.Array) -> jax.Array:
            return jnp.argmax(model.apply(params, text[None])[0, place])

        params, begin, shown = jax.device_put(params), len(ids), ""
        text = np.zeros(begin + tokens, np.int32)
        text[:begin] = ids
        for place in range(begin, len(text)):
            text[place] = choose(params, text, place - 1)
            if text[place] in tokenizer.end:
                return
            answer = tokenizer.tokenizer.decode(text[begin : place + 1].tolist())
            if not answer.endswith("\ufffd"):  # else a character of several tokens has only begun
                yield answer[len(shown) :]
                shown = answer


def is_adapted(folder: str | Path) -> bool:
    """Whether a folder is that of a run on a `text:PATH` task."""
    config = Path(folder) / "config.json"
    return config.is_file() and str(read_json(config).get("task", {}).get("name")).startswith(TEXT_PREFIX)


def load_adapted(folder: str | Path, params: str | None = None) -> AdaptedModel:
    """Load the best or last parameters of a run on a `text:PATH` task; its base model must be in the same place."""
    folder = Path(folder)
    if not is_adapted(folder):
        raise UsageError(f"'{folder}' must be the folder of a run on a task text:PATH")
    file = choose_params(folder, params)
    with reading(f"'{folder / 'config.json'}'", "the config of a run"):
        described = read_json(folder / "config.json")
        spec = described["task"]
        if "personal" in described.get("wrappers", ()):
            raise UsageError(f"'{folder}' has no model for prompts: each client has its own")
        chosen = {f.name: spec[f.name] for f in fields(TaskOptions) if f.name in spec}
        options = TaskOptions(**chosen, seed=spec["partition_seed"])
    arrays = read_params_file("folder", file)
    tree = unflatten_dict({tuple(name.split("/")): array for name, array in arrays.items()})
    config, lora, start = read_settings(options)
    if lora is not None:
        tree = join_adapters(tree, frozen_a(config, lora, start, options))
    return AdaptedModel(options, lora, tree, spec.get("is_chat", True))
