"""The documentation tells the truth: its examples run, and the table of algorithms says what is really sent."""

import inspect
import re
import shlex
from pathlib import Path

import click
import jax
import jax.numpy as jnp
import pytest

import fedoptax as fx
from command_line import fedoptax, parse

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "algorithms" / "index.md"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


SHORT = (
    "README.md", "own-task.md", "own-data.md", "predict.md",
)  # other pages train for longer, or repeat what tests show  # fmt: skip


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[] if p.name in SHORT else [pytest.mark.long]) for p in PAGES if blocks(p)],
    ids=lambda p: p.relative_to(ROOT).as_posix(),
)
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks(page):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_between_pages_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def vectors(tree: object) -> int:
    """Whole vectors of the model's size in a message; counters and learning rates are left out."""
    return fx.nbytes(tree) // 4000


def test_table_of_vectors_sent_and_kept() -> None:
    rows = re.findall(r"^\| (`.*?) \| .*? \| (\d) \| (\d) \| (\w+) \|$", INDEX.read_text(), re.MULTILINE)
    told = {name: row[1:] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert set(told) == set(fx.ALGORITHMS)
    params = jnp.ones(1000)
    grad_fn = jax.value_and_grad(lambda p, b: jnp.sum(p**2) * b)
    for name, constructor in fx.ALGORITHMS.items():
        needed = [k for k, v in inspect.signature(constructor).parameters.items() if v.default is v.empty]
        algorithm = constructor(**dict.fromkeys(needed, 0.1))
        server, client = algorithm.init(params), algorithm.init_client(params)
        message = algorithm.broadcast(server)
        upload, _, _ = algorithm.client_update(grad_fn, message, client, [jnp.float32(1.0)])
        kept = vectors(client)
        assert told[name] == (str(vectors(message)), str(vectors(upload)), str(kept) if kept else "nothing"), name


def test_every_algorithm_has_a_page() -> None:
    text = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs" / "algorithms").glob("*.md"))
    assert [name for name in fx.ALGORITHMS if f"`{name}" not in text] == []


def shell_commands(page: Path) -> list[str]:
    """The `fedoptax …` lines of a page's code blocks, continued lines joined."""
    text = page.read_text(encoding="utf-8")
    told = "".join(re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    return re.findall(r"^(?:\$ )?(fedoptax .*)$", re.sub(r"\\\n\s*", " ", told), re.MULTILINE)


COMMANDS = [(page, line) for page in PAGES for line in shell_commands(page)]


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{p.stem}-{i}" for i, (p, _) in enumerate(COMMANDS)])
def test_commands_of_a_page_parse(page: Path, line: str) -> None:
    parse(line)


RUN = [page for page in PAGES if page.name in ("README.md", "start.md", "experiments.md", "protocol.md")]


@pytest.mark.long
@pytest.mark.parametrize("page", RUN, ids=lambda p: p.name)
def test_commands_of_a_page_run_as_written(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{i % 5},{('bad', 'good')[i * i % 3 % 2]},site-{i % 4}" for i in range(80)]
    for name in ("patients.csv", "new.csv"):
        Path(name).write_text("\n".join(["age,dose,outcome,hospital", *rows]) + "\n")
    for line in shell_commands(page):
        assert fedoptax(*shlex.split(line, comments=True)[1:]) == 0, line


@pytest.mark.parametrize("line", ["fedoptax run --no-such 3", "fedoptax walk", "fedoptax run --rounds many"])
def test_parsing_refuses_unknown_commands(line: str) -> None:
    with pytest.raises(click.UsageError):
        parse(line)


def excerpts(page: Path) -> list[str]:
    """The code in the third column of a page's tables of four columns."""
    rows = [row.split("|") for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
    return [code for row in rows if len(row) == 6 for code in re.findall(r"`([^`]+)`", row[3])]


def test_quoted_code_is_in_the_source() -> None:
    """White space and last commas aside; in which file is not looked at."""
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
    squeezed = re.sub(r"\s|,(?=[)\]}])", "", code)
    found = [
        (page.name, code) for page in PAGES if page.parent == ROOT / "docs" / "algorithms" for code in excerpts(page)
    ]
    assert len(found) > 100
    assert [(page, code) for page, code in found if re.sub(r"\s", "", code) not in squeezed] == []
