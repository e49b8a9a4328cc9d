"""The examples of the page about PyTorch run (```py blocks, since the other pages' tests need no PyTorch)."""

from __future__ import annotations

import re
from pathlib import Path

import fedoptax.torch as ft
from torch_models import torch

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"


def test_the_examples_of_the_page_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)


def test_the_page_tells_of_every_public_name() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in ft.NATIVE if name not in text] == []
    optimizers = [
        name
        for name in ft.__all__
        if isinstance(kind := getattr(ft, name), type) and issubclass(kind, torch.optim.Optimizer)
    ]
    assert len(optimizers) == 6 and all(f"`{name}`" in text for name in optimizers)
