"""The examples of the page about PyTorch run (```py blocks, since the other pages' tests need no PyTorch)."""

import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest

import fedoptax.torch as ft
from command_line import fedoptax
from federations import assert_params, need_flower

PAGE = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page_run():
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks:
        exec(compile(block, "pytorch.md", "exec"), names)


@pytest.mark.long
def test_the_program_with_batch_normalisation_computes_in_a_deployment_what_it_does_in_simulation(
    tmp_path, monkeypatch
):
    need_flower()
    monkeypatch.chdir(tmp_path)
    for name, text in re.findall(r"^```py file=(\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        Path(name).write_text(text)
    result = runpy.run_path("norm.py", run_name="__main__")["result"]
    (commands,) = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in commands.replace("\\\n", "").splitlines():
        program, *arguments = shlex.split(line)
        status = fedoptax(*arguments) if program == "fedoptax" else subprocess.call([program, *arguments])
        assert status == 0, line
    assert_params(Path("runs/norm"), result.params)


def test_the_page_names_everything_public():
    public = [name for name, value in vars(ft).items() if getattr(value, "__module__", "").startswith("fedoptax.torch")]
    assert len(public) > 10 and [name for name in public if name not in PAGE] == []
