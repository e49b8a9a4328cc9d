"""Models that start from others: `text:PATH`, a pretrained language model on your own texts, and LoRA of any task.

A language model is trained in full or by adapters on a frozen base; of another task low-rank changes of its kernels.
"""

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedoptax._files import read_params_file
from fedoptax.algorithm import Tree, nbytes
from fedoptax.data.cache import Rows, cached
from fedoptax.data.federated import FederatedData
from fedoptax.data.readers import find_files
from fedoptax.data.text import IGNORED, TextTokenizer, as_sequences, read_texts
from fedoptax.errors import DataError, UsageError, check_choice, check_int, check_number, check_type
from fedoptax.models import llama
from fedoptax.models.llama import Lora, init_adapters, read_adapters
from fedoptax.models.model import Model, count_params
from fedoptax.tasks.custom import fingerprint
from fedoptax.tasks.recipe import TEXT_PREFIX, Recipe, TaskOptions
from fedoptax.tasks.task import Frozen, Task, check_task
from fedoptax.tasks.text import next_token

BUCKET = 64
"""Sequences are as long as the longest, rounded up to a multiple of so many tokens: shapes that compile well."""


def text_data(name: str, recipe: Recipe, options: TaskOptions) -> Task:
    """Next-token prediction on a user's texts, by a model from a Hugging Face folder (`model`).

    The texts are read by `fedoptax.data.text.read_texts`, tokenised by the folder's tokenizer, and made sequences of
    `context` tokens; of conversations only the assistant's turns count, of prompts and completions only the latter. The
    loss is the mean over the learned tokens of a batch. A client's weight is its number of sequences, or with
    `weight="tokens"` of learned tokens. Sequences are as long as the longest, in steps of `BUCKET` tokens.

    With `lora` clients train and send adapters of that rank, of the linear maps `lora_targets`, beside one base that
    all share; `freeze_a` trains B alone (FFA-LoRA, Sun et al. 2024), whose mean is exactly the mean of the products.
    `base_adapter` starts from a folder of PEFT's, with its rank, factor and targets. Else the whole model is trained.
    """
    path = Path(os.path.expanduser(name.removeprefix(TEXT_PREFIX)))
    context = check_int("context", 256 if options.context is None else options.context)
    (config, lora, start), folder = read_settings(options), model_folder(options)
    clients, owners, held_out, is_chat = read_clients(path, folder, context, options)
    net, base = read_model(options, lora)
    size, frozen = count_params(base), Frozen(base)
    if lora is None:
        trained = Model(lambda key: jax.tree.map(jnp.asarray, frozen.arrays), net.apply)
    else:
        trained, frozen = with_adapters(net, base, config, lora, start, options)
    if (top := max(int(clients.examples[name].max()) for name in "xy")) >= config.vocabulary:
        raise DataError(f"the tokenizer must have at most the model's {config.vocabulary} tokens, got token {top}")
    check_choice("weight", options.weight or "sequences", ("sequences", "tokens"))
    learned = next_token(trained, (), pad=IGNORED, primary="perplexity")
    learned = {name: learned[name] for name in ("init", "loss", "metrics", "primary_metric", "higher_is_better")}
    count = count_params(jax.eval_shape(trained.init, jax.random.key(0)))
    sizes, by_client = clients.sizes, np.add.reduceat((clients.examples["y"] != IGNORED).sum(1), clients.offsets[:-1])
    megabytes = nbytes(base) / 1e6
    notes = (
        f"clients: {len(sizes)}, {sizes.min():,} to {sizes.max():,} sequences of at most {context} tokens each; "
        f"{by_client.sum():,} tokens in the loss",
        f"model: {size:,} parameters ({megabytes:,.0f} MB{', once for all clients' if lora else ''}), {count:,} "
        f"trained and sent ({count * 4 / 1e6:,.1f} MB)",
    )
    contents = fingerprint(clients.examples, held_out or {}, flatten_dict(frozen.arrays))
    spec = {**options.chosen(), "partition_seed": options.seed, "contents": contents, "is_chat": is_chat}
    return Task(
        name, clients=clients, test=held_out, test_owners=owners if held_out else None, label=None, eval_batch=8,
        frozen=frozen, description=f"{path.name}, next token by {folder.name}", spec=spec, notes=notes,
        is_pretrained=True, client_weights=by_client if options.weight == "tokens" else None, **learned,
    )  # fmt: skip


def model_folder(options: TaskOptions) -> Path:
    """Return the folder of the base model; raise a `UsageError` if the options name none."""
    if options.model is None:
        raise UsageError("text:PATH needs a model, the folder of a Llama, SmolLM2 or Qwen2 model")
    return Path(os.path.expanduser(options.model))


def read_settings(options: TaskOptions) -> tuple[llama.LlamaConfig, Lora | None, Tree | None]:
    """Return the model's shape, the adapters' settings, and the adapters to start from; None if there are none."""
    config = llama.read_config(model_folder(options))
    chosen = {"alpha": options.lora_alpha, "targets": options.lora_targets, "dropout": options.lora_dropout}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if chosen and (options.lora is None or options.base_adapter is not None):
        raise UsageError(f"lora_{min(chosen)} applies to new adapters: it needs lora, without base_adapter")
    if options.freeze_a and options.lora is None and options.base_adapter is None:
        raise UsageError("freeze_a needs lora or base_adapter")
    if options.base_adapter is not None:
        start, lora = read_adapters(os.path.expanduser(options.base_adapter), config)
        if options.lora not in (None, lora.rank):
            raise UsageError(f"lora must be {lora.rank}, the rank of base_adapter, got {options.lora}")
        return config, lora, start
    return config, None if options.lora is None else Lora(options.lora, **chosen), None  # type: ignore[arg-type]


def read_model(options: TaskOptions, lora: Lora | None) -> tuple[Model, Tree]:
    """Return the model, which applies adapters with the settings `lora`, and its parameters."""
    if lora is None:  # trained parameters are float32
        return llama.from_pretrained(model_folder(options))
    return llama.from_pretrained(model_folder(options), options.compute_dtype or "float32", lora.scale, lora.dropout)


def frozen_a(config: llama.LlamaConfig, lora: Lora, start: Tree | None, options: TaskOptions) -> Tree:
    """Return the frozen part of the adapters: with `freeze_a` all A, those of `start` or else of the seed."""
    if not options.freeze_a:
        return {}
    adapters = init_adapters(config, lora, jax.random.key(options.seed)) if start is None else start
    return {name: {"a": pair["a"]} for name, pair in adapters.items()}


def join_adapters(params: Tree, still: Tree) -> Tree:
    """Return the adapters from their trained and frozen parts."""
    return {name: pair | still.get(name, {}) for name, pair in params.items()}


def with_adapters(
    net: Model, base: Tree, config: llama.LlamaConfig, lora: Lora, start: Tree | None, options: TaskOptions
) -> tuple[Model, Frozen]:
    """Return a model of the adapters, and the frozen arrays: the base, and with `freeze_a` all A."""
    frozen = Frozen(jax.tree.map(jnp.asarray, {"base": base, "a": frozen_a(config, lora, start, options)}))

    def init(key: jax.Array) -> Tree:
        adapters = init_adapters(config, lora, key) if start is None else jax.tree.map(jnp.asarray, start)
        return {name: {"b": pair["b"]} if options.freeze_a else pair for name, pair in adapters.items()}

    def apply(params: Tree, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        adapters = join_adapters(params, frozen.arrays["a"])
        return net.apply({**frozen.arrays["base"], "lora": adapters}, x, key)

    return Model(init, apply), frozen


def read_clients(
    path: Path, folder: Path, context: int, options: TaskOptions
) -> tuple[FederatedData, np.ndarray, dict[str, np.ndarray] | None, bool]:
    """Return the clients' sequences, the owners and sequences for tests, and whether some are of conversations.

    `test_fraction` of each client's are for tests. The tokens are cached, see `fedoptax.data.cache`.
    """
    column = options.client_column or "client"
    files = find_files(path, {".txt"}) if path.is_dir() else [path]
    files += [folder / name for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")]

    def decode() -> Rows:
        tokenizer, texts, left_out = TextTokenizer.read(folder), read_texts(path, column), 0
        for client, examples in enumerate(texts.values()):
            sequences = as_sequences(examples, tokenizer, context)
            left_out += not len(sequences["x"])
            about = {"client": client, "chat": any(example.get("messages") is not None for example in examples)}
            of_rows = {name: np.full(len(sequences["x"]), value, np.int32) for name, value in about.items()}
            yield from {**sequences, **of_rows}.items()
        if left_out == len(texts):
            raise DataError(f"{path} has no token in the loss within {context} tokens (context)")
        if left_out:
            logging.getLogger("fedoptax").warning("note: %d clients left out: no learned token in them", left_out)

    key = hashlib.sha256(f"{path.resolve()} {column} {context}".encode()).hexdigest()[:8]
    arrays = cached(f"tokens-{key}", [file for file in files if file.exists()], 3, decode)
    ids, sizes = np.unique(arrays["client"], return_counts=True)
    count = len(ids) if options.num_clients is None else check_int("num_clients", options.num_clients, 1, len(ids))
    sizes, end, share = sizes[:count], sizes[:count].sum(), options.test_fraction
    if share is not None:
        check_number("test_fraction", share, 0, 1)
    longest = int((arrays["y"][:end] != IGNORED).any(axis=0).nonzero()[0].max()) + 1
    width = min(-(-longest // BUCKET) * BUCKET, context)
    examples = {name: np.asarray(arrays[name][:end, :width]) for name in ("x", "y")}
    clients = FederatedData(examples, np.concatenate([[0], np.cumsum(sizes)]))
    left, held_out, owners = clients.split(0.1 if share is None else share, options.seed)
    parts = (left, owners, held_out) if len(owners) else (clients, owners, None)
    return *parts, bool(arrays["chat"][:end].any())


def with_lora(task: Task, base: str | Path | Tree, rank: int) -> Task:
    """Return `task` with its dense kernels frozen at `base` and trained by low-rank changes (Hu et al. 2022).

    A kernel W (m, n) becomes W + A B with A (m, rank), normal with deviation 1/√m at first, and B (rank, n), zero at
    first, so training starts from the base. What the base has not, or in another shape, such as the head of another
    number of classes, starts anew and is trained in full. All else stays as in the base. A, B and what is trained in
    full are all the parameters of the new task: nothing else is sent, counted or stored. The server averages A and B
    each, which is not the average of A B.

    The parameters of the task are nested dictionaries, as those of `fedoptax.models` are; `base` are such ones, or a
    run folder or `.npz` file that holds them. It is a `UsageError` if they cannot be read, or hold no dense kernel.

    Example:
      >>> import jax, fedoptax as fx
      >>> task = fx.load_task("digits")
      >>> small = fx.with_lora(task, task.init(jax.random.key(0)), rank=2)
      >>> sorted(small.init(jax.random.key(1))["dense1"]["kernel"])
      ['a', 'b']
    """
    check_task(task)
    check_int("lora", rank)
    if isinstance(base, str | Path):
        frozen = {tuple(name.split("/")): array for name, array in read_params_file("base", base).items()}
    else:
        check_type("base", base, Mapping)
        frozen = flatten_dict(jax.tree.map(np.asarray, base))
    params = jax.eval_shape(task.init, jax.random.key(0))
    check_type(f"init of task '{task.name}'", params, Mapping)
    shapes = {path: leaf.shape for path, leaf in flatten_dict(params).items()}
    known = {path for path, shape in shapes.items() if path in frozen and frozen[path].shape == shape}
    kernels = sorted(path for path in known if path[-1] == "kernel" and len(shapes[path]) == 2)
    if not kernels:
        raise UsageError(f"base must hold dense kernels of the model of task '{task.name}', got none")

    def init(key: jax.Array) -> Tree:
        fresh = flatten_dict(task.init(key))
        params: dict[Any, Any] = {path: leaf for path, leaf in fresh.items() if path not in known}
        for path, kernel_key in zip(kernels, jax.random.split(jax.random.fold_in(key, 1), len(kernels)), strict=True):
            inputs, outputs = shapes[path]
            params[*path, "a"] = jax.random.normal(kernel_key, (inputs, rank), jnp.float32) / inputs**0.5
            params[*path, "b"] = jnp.zeros((rank, outputs), jnp.float32)
        return unflatten_dict(params)

    def merge(params: Tree) -> Tree:
        trained, whole = flatten_dict(params), {}
        dtype = jax.tree.leaves(params)[0].dtype
        for path in shapes:
            whole[path] = jnp.asarray(frozen[path], dtype) if path in known else trained[path]
            if path in kernels:
                whole[path] = whole[path] + trained[*path, "a"] @ trained[*path, "b"]
        return unflatten_dict(whole)

    predict = task.predict
    return replace(
        task,
        init=init,
        loss=lambda params, batch, key: task.loss(merge(params), batch, key),
        metrics=lambda params, batch: task.metrics(merge(params), batch),
        predict=None if predict is None else lambda params, batch: predict(merge(params), batch),
        spec={**task.spec, "lora": rank, "contents": task.spec.get("contents", "") + fingerprint(frozen)}
        | ({"base": str(base)} if isinstance(base, str | Path) else {}),
        is_pretrained=True,
    )
