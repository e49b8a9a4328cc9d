"""Texts of clients as sequences of tokens: plain text, prompts and completions, or conversations, from files."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedoptax._files import reading
from fedoptax.data.readers import TABLES, check_columns, find_files, read_frame
from fedoptax.errors import DataError, UsageError, import_extra, shorten

IGNORED = -100
"""The target of a token that is not learned: of a prompt, of a user's turn, of padding."""


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer of the package `tokenizers`, with the chat template and the special tokens that it may use."""

    tokenizer: Any
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokenizer.no_truncation()  # a stored tokenizer may have been used with some
        self.tokenizer.no_padding()

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` of a Hugging Face folder."""
        tokenizers, folder = import_extra("tokenizers", "a tokenizer needs", "llm"), Path(folder)
        with reading(folder, "a tokenizer"):
            config = folder / "tokenizer_config.json"
            tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            described = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
            template, template_file = described.get("chat_template"), folder / "chat_template.jinja"
            if template_file.is_file():
                template = template_file.read_text(encoding="utf-8")
        special = {name: described.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
        texts = {name: str(a["content"] if isinstance(a, Mapping) else a) for name, a in special.items() if a}
        return cls(tokenizer, template, texts)

    @property
    def end(self) -> list[int]:
        """The token that ends a text, or none."""
        token = self.tokenizer.token_to_id(self.special_tokens.get("eos_token", ""))
        return [] if token is None else [token]

    @cached_property
    def _template(self) -> Any:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = refuse
        return environment.from_string(self.chat_template or "")

    def render(self, messages: Sequence[Mapping[str, Any]], is_prompt: bool = False) -> str:
        """Return a conversation as text, by the chat template; a prompt ends where the assistant's answer begins."""
        if not self.chat_template:
            raise DataError("messages need a tokenizer with a chat template")
        try:
            values = {"messages": list(messages), "add_generation_prompt": is_prompt, **self.special_tokens}
            return self._template.render(**values)
        except Exception as error:  # a template is a program
            raise DataError(f"messages do not fit the chat template: {shorten(error)}") from error

    def encode(self, example: Mapping[str, Any]) -> tuple[list[int], list[bool]]:
        """Return the tokens of an example, and which of them are learned: a text's, a completion's, the assistant's."""
        match example:
            case {"messages": messages} if messages is not None:
                return self._encode_conversation(getattr(messages, "tolist", lambda: messages)())  # of Parquet
            case {"prompt": str(question), "completion": str(completion)}:
                prompt = self.tokenizer.encode(question).ids
                answer = self.tokenizer.encode(completion, add_special_tokens=False).ids + self.end
                return prompt + answer, [False] * len(prompt) + [True] * len(answer)
            case {"text": str(text)}:
                ids = self.tokenizer.encode(text).ids + self.end
                return ids, [True] * len(ids)
        raise DataError(f"an example must have text, messages, or prompt and completion, got {shorten(example)}")

    def _encode_conversation(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[bool]]:
        if not isinstance(messages, list) or not all(
            isinstance(m, Mapping) and ("tool_calls" in m or isinstance(m.get("content"), str)) for m in messages
        ):
            raise DataError(f"messages must be a list of objects with role and content (text), got {shorten(messages)}")
        whole = self.render(messages)
        spans = []
        for i, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            before, after = self.render(messages[:i], is_prompt=True), self.render(messages[: i + 1])
            if not after.startswith(before) or not whole.startswith(after):
                raise DataError("the chat template must not change earlier turns when later ones are added")
            spans.append((len(before), len(after)))
        encoding = self.tokenizer.encode(whole, add_special_tokens=False)
        starts = [start for start, _ in encoding.offsets]
        return encoding.ids, [any(low <= start < high for low, high in spans) for start in starts]


def as_sequences(examples: Iterable[Mapping], tokenizer: TextTokenizer, context: int) -> dict[str, np.ndarray]:
    """Return `context` tokens x and the ones that follow, y, int32 (n, context); `IGNORED` in y is not learned.

    Plain texts are packed: joined, and cut into sequences. Any other example is a sequence of its own, cut at
    `context`, and left out if nothing of it is learned.
    """
    packed: list[int] = []
    rows: list[tuple[list[int], list[bool]]] = []
    for example in examples:
        ids, is_learned = tokenizer.encode(example)
        if all(is_learned) and example.get("completion") is None:
            packed += ids
        else:
            rows.append((ids, is_learned))
    for start in range(0, len(packed) - 1, context):
        ids = packed[start : start + context + 1]
        rows.append((ids, [True] * len(ids)))
    x, y = np.zeros((len(rows), context), np.int32), np.full((len(rows), context), IGNORED, np.int32)
    for i, (ids, is_learned) in enumerate(rows):
        ids = ids[: context + 1]
        x[i, : len(ids[:-1])] = ids[:-1]
        y[i, : len(ids[1:])] = np.where(is_learned[1 : len(ids)], ids[1:], IGNORED)
    has_target = (y != IGNORED).any(axis=1)
    if n := int((~has_target).sum()):
        logging.getLogger("fedoptax").warning("note: %d examples left out: no learned token in context=%d", n, context)
    return {"x": x[has_target], "y": y[has_target]}


def read_texts(path: Path, client: str = "client") -> dict[str, list[dict[str, Any]]]:
    """Read the examples of each client: of a .jsonl, .json, .parquet, .csv or .tsv file, or of a folder of .txt files.

    In a folder each subfolder and each file beside them is a client (of one name: one client), hidden ones are left
    out; in a file the column `client` names it.
    """
    clients: dict[str, list[dict[str, Any]]] = {}
    if path.is_dir():
        for file in find_files(path, {".txt"}):
            *folders, name = file.relative_to(path).with_suffix("").parts
            name = folders[0] if folders else name
            with reading(file, "a text"):
                clients.setdefault(name, []).append({"text": file.read_text(encoding="utf-8-sig")})
    else:
        for number, row in enumerate(_read_rows(path, client), 1):
            if not isinstance(row, dict) or row.get(client) in (None, "") or row[client] != row[client]:  # NaN
                columns = ", ".join(row) if isinstance(row, dict) else type(row).__name__
                raise UsageError(f"client_column '{client}' must be filled in {path}; row {number} has {columns}")
            clients.setdefault(str(row[client]).strip(), []).append(row)
    if not clients:
        raise DataError(f"{path} has no texts")
    return clients


def _read_rows(path: Path, client: str) -> list[Any]:
    if path.suffix.lower() in TABLES:
        frame = read_frame(path, [client, "text", "prompt", "completion"])
        check_columns(path, frame.columns, list(dict.fromkeys(frame.columns)))
        return frame.astype(object).where(frame.notna(), None).to_dict("records")
    if path.suffix.lower() not in (".jsonl", ".json") or not path.is_file():
        raise UsageError(f"path must be a folder, or a .jsonl, .parquet, .csv or .tsv file that exists, got {path}")
    with reading(path, "JSON"):
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            return json.loads(text)
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            with reading(f"line {number} of {path}", "JSON"):
                rows.append(json.loads(line))
    return rows
