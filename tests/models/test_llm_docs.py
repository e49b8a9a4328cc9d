"""docs/llm.md does what it says, on a small random model in place of SmolLM2; its scripts in PyTorch where that is."""

import re
import shlex
from pathlib import Path

import pytest

from command_line import fedoptax
from federations import need_flower
from fedoptax.models.llama import read_adapters, read_config
from tiny_llama import write_model

PAGE = (Path(__file__).parents[2] / "docs" / "llm.md").read_text(encoding="utf-8")
MODEL = "SmolLM2-135M-Instruct"


def scripts(kind: str) -> list[str]:
    return re.findall(rf"^```py{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run(script: str) -> dict[str, object]:
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(script, "llm.md", "exec"), names)
    return names


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    work = tmp_path_factory.mktemp("page")
    write_model(work / MODEL)
    return work


@pytest.mark.long
def test_the_way_in_jax(work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    texts, python, deployed = scripts("")
    run(texts)
    (commands,) = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in commands.replace("\\\n", "").splitlines():
        assert fedoptax(*shlex.split(line)[1:]) == 0, line
    shown = capsys.readouterr().out
    assert "before the first round: " in shown and "adapter: adapter" in shown
    adapters, lora = read_adapters("adapter", read_config(MODEL))
    assert lora.rank == 4 and sorted(adapters) == ["q_proj", "v_proj"]
    result = run(python)["result"]
    assert result.history[-1]["test_perplexity"] < result.initial["test_perplexity"]  # type: ignore[attr-defined]
    compile(deployed, "llm.md", "exec")
    for more in ((), ("--input", "x", "--prompt", "y")):
        assert fedoptax("predict", "runs/chat", *more) == 2


@pytest.mark.long
def test_the_way_in_a_deployment(work, monkeypatch):
    need_flower()
    monkeypatch.chdir(work)
    run(scripts("")[0])
    (command,) = re.findall("^fedoptax (deploy local .*)", PAGE, re.MULTILINE)
    assert fedoptax(*shlex.split(command)) == 0
    assert fedoptax("export", "runs/chat-network", "--out", "adapter-network") == 0
    assert read_adapters("adapter-network", read_config(MODEL))[1].rank == 4


@pytest.mark.filterwarnings("ignore")
def test_the_way_in_pytorch(work, monkeypatch):
    pytest.importorskip("peft"), pytest.importorskip("transformers")
    monkeypatch.chdir(work)
    if not Path("adapter").is_dir():
        pytest.skip("the other way has not come so far")
    loading, training = scripts(" torch")
    run(loading)
    result = run(training)["result"]
    assert len(result.history) == 2  # type: ignore[attr-defined]
    assert read_adapters("adapter-torch", read_config(MODEL))[1].rank == 4
