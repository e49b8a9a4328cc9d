"""The examples of the page about PyTorch run (```py blocks, since the other pages' tests need no PyTorch)."""

import re
from pathlib import Path

import fedoptax.torch as ft

PAGE = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page_run() -> None:
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks:
        exec(compile(block, "pytorch.md", "exec"), names)


def test_the_page_names_everything_public() -> None:
    public = [name for name, value in vars(ft).items() if getattr(value, "__module__", "").startswith("fedoptax.torch")]
    assert len(public) > 10 and [name for name in public if name not in PAGE] == []
