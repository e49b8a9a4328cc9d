"""A causal language model of transformers, whole or with adapters of peft, as a task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedoptax._files import read_params_file
from fedoptax.algorithm import Tree
from fedoptax.data.federated import FederatedData
from fedoptax.data.text import IGNORED, TextTokenizer, as_sequences, read_texts
from fedoptax.errors import UsageError, check_int, shorten
from fedoptax.experiments.result import RunResult
from fedoptax.tasks.metrics import perplexity
from fedoptax.tasks.task import Batch, Task
from fedoptax.torch.gradients import load_params
from fedoptax.torch.task import ModuleMetric, module_task

Examples = Sequence[str | Mapping[str, Any]]
"""Texts, or `{"messages": …}`, or `{"prompt": …, "completion": …}`."""


def causal_lm_task(
    model: nn.Module, tokenizer: Any, clients: Sequence[Examples] | str | Path, test: Examples | None = None,
    micro_batch: int | None = None, context: int = 256, name: str = "text", **attributes: Any,
) -> Task:  # fmt: skip
    """A task of a language model of transformers; with peft, clients train and send only its adapters.

    Sequences are made as those of `text:PATH` (`fedoptax.data.text.as_sequences`); a batch is only as long as its
    longest one. The loss is the mean over learned tokens; metrics are `loss`, `perplexity` and `accuracy` by token.

    Args:
      model: `AutoModelForCausalLM`, or `peft.get_peft_model` of it; parameters that require gradients are trained.
      tokenizer: the model's fast tokenizer.
      clients: each client's examples, or the path of a file or folder as `fedoptax.data.text.read_texts` reads it.
      test: central test examples, or None.
      micro_batch: examples that pass through the model together; the gradient is that of the whole batch.
      context: tokens of a sequence, at most.
      name: for tables and files.
      **attributes: further attributes of `Task`.
    """
    special = {key: str(value) for key, value in tokenizer.special_tokens_map.items() if key.endswith("_token")}
    texts = TextTokenizer(tokenizer.backend_tokenizer, tokenizer.chat_template, special)
    size = None if micro_batch is None else check_int("micro_batch", micro_batch)

    def sequences(examples: Examples) -> dict[str, np.ndarray]:
        if isinstance(examples, str | Path | Mapping):
            raise UsageError(f"clients and test must hold lists of examples, got one, {shorten(repr(examples))}")
        rows = ({"text": example} if isinstance(example, str) else example for example in examples)
        return as_sequences(rows, texts, check_int("context", context))

    def score(module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (n, vocabulary, time), targets and losses (n, time), up to the last learned token."""
        time = int((batch["y"] != IGNORED).any(dim=0).nonzero().max()) + 1
        y = batch["y"][:, :time]
        logits = module(input_ids=batch["x"][:, :time]).logits.float().transpose(1, 2)
        return logits, y, cross_entropy(logits, y, ignore_index=IGNORED, reduction="none")

    def loss(module: nn.Module, batch: Mapping[str, Tensor]) -> Iterator[Tensor]:
        total = (batch["y"] != IGNORED).sum()
        for start in range(0, len(batch["y"]), size or len(batch["y"])):
            rows = slice(start, start + (size or len(batch["y"])))
            yield score(module, {field: a[rows] for field, a in batch.items()})[2].sum() / total

    def by_token(values: Callable[..., Tensor]) -> ModuleMetric:
        def measure(module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
            logits, y, losses = score(module, batch)
            count = (y != IGNORED).sum(dim=1)
            return values(logits, y, losses).sum(dim=1) / count.clamp(min=1), count

        return measure

    groups = read_texts(Path(clients)).values() if isinstance(clients, str | Path) else clients
    data = FederatedData.from_clients([sequences(examples) for examples in groups])
    metrics = {"loss": by_token(lambda logits, y, losses: losses)}
    metrics["accuracy"] = by_token(lambda logits, y, losses: logits.argmax(dim=1) == y)
    about = {"primary_metric": "perplexity", "higher_is_better": False, "label": None, "eval_batch": 8}
    about |= {"is_pretrained": True} | attributes
    task = module_task(name, model, loss, metrics, data, None if test is None else sequences(test), **about)

    def measure(params: Tree, batch: Batch) -> dict[str, Any]:
        values = task.metrics(params, batch)
        return values | {"perplexity": perplexity(*values["loss"])}

    return replace(task, metrics=measure)


def save_adapter(result: RunResult | str | Path, model: nn.Module, folder: str | Path) -> None:
    """Copy the parameters of a run, its result or its folder, into the model, and write its adapters as peft does."""
    load_params(model, result.params if isinstance(result, RunResult) else read_params_file("result", result))
    model.save_pretrained(folder)
