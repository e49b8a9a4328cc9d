"""The documentation tells the truth: its examples run, and the table of algorithms says what is really sent."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from command_line import fedoptax, parse

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "algorithms" / "index.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
QUICK = ("own-task.md",)  # pages whose Python takes seconds
NETWORK = "deploy local"
BY_OTHER_TESTS = {
    "deploy.md": "tests/deploy/test_recipe.py, test_local.py",
    "llm.md": "tests/models/test_llm_docs.py",
    "pytorch.md": "tests/torch/test_torch_docs.py",
    "CONTRIBUTING.md": "what they start is the tests themselves",
}
NOT_RUN = {  # a part of the command: what it needs
    "pip install": "a package index",
    "make demo": "tests/project/test_demo.py runs it",
    "data fetch": "the publisher's server",
    "data check": "all published files",
    "--task mnist": "MNIST; all algorithms tuned take hours",
    "--task emnist-cr": "EMNIST, and hours without a GPU",
    "--task fashion-mnist": "Fashion-MNIST, and hours without a GPU",
    "--workers submitit": "Slurm",
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """The code blocks of a page: the words after the fence, and the text.

    `python` runs in one process per page, also if it has `file=NAME`, as which it is saved first; without a word, or
    with `sh` or `bash`, it is shell. Others (`text` for output, `py` for what needs more packages) do not run here.
    """
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shell_commands(text: str) -> list[str]:
    """The commands of a shell block, continued lines joined."""
    return re.sub(r"\\\n\s*", " ", text).strip().splitlines()


def is_shell(kind: str) -> bool:
    return kind.split(" ")[0] in ("", "sh", "bash")


COMMANDS = [
    (page, line) for page in PAGES for kind, text in blocks(page) if is_shell(kind) for line in shell_commands(text)
]


def run_page(page: Path, shell: bool = False, networks: bool = False) -> None:
    """Run a page's blocks in their order; a command that needs what another leaves is left out with it."""
    names: dict[str, object] = {"__name__": "example"}
    left_out: set[str] = set()
    for kind, text in blocks(page):
        if kind.startswith("python"):
            for name in re.findall(r"file=(\S+)", kind):
                Path(name).write_text(text, encoding="utf-8")
            exec(compile(text, page.name, "exec"), names)
        for line in shell_commands(text) if shell and is_shell(kind) else []:
            refused = [part for part in NOT_RUN if part in line] + [NETWORK] * (NETWORK in line and not networks)
            if refused or left_out & set(line.split()):
                left_out |= set(re.findall(r"--out (\S+)", line))
            elif line.startswith("fedoptax "):
                assert fedoptax(*shlex.split(line, comments=True)[1:]) == 0, line
            else:
                subprocess.run(["bash", "-ec", line], check=True, timeout=600)


@pytest.mark.parametrize("name", QUICK)
def test_python_of_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(next(page for page in PAGES if page.name == name))


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("page", "networks"),
    [
        pytest.param(page, networks, id=f"{page.stem}-network" if networks else page.stem, marks=marks)
        for page in PAGES
        if page.name not in BY_OTHER_TESTS and blocks(page)
        for networks, marks in ((False, ()), (True, pytest.mark.network))
        if not networks or any(NETWORK in line for other, line in COMMANDS if other == page)
    ],
)
def test_a_page_runs_as_written(page, networks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    rows = [f"{i % 7},{i % 5},{('bad', 'good')[i * i % 3 % 2]},site-{i % 4}" for i in range(80)]
    for name, header in (("patients", "outcome,hospital"), ("new", "outcome,hospital"), ("mine", "label,client")):
        Path(f"{name}.csv").write_text("\n".join([f"age,dose,{header}", *rows]) + "\n")
    x = np.arange(240, dtype=np.float32).reshape(80, 3) % 11
    np.savez("data.npz", x=x, y=np.arange(80) % 2, client=np.arange(80) % 8)
    run_page(page, shell=True, networks=networks)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_between_pages_exist(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def vectors(tree: object) -> int:
    """Whole vectors of the model's size in a message; counters and learning rates are left out."""
    return fx.nbytes(tree) // 4000


def test_table_of_vectors_sent_and_kept():
    rows = re.findall(r"^\| (`.*?) \| .*? \| (\d) \| (\d) \| (\w+) \|$", INDEX.read_text(), re.MULTILINE)
    told = {name: row[1:] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert set(told) == set(fx.ALGORITHMS)
    params = jnp.ones(1000)
    grad_fn = jax.value_and_grad(lambda p, b: jnp.sum(p**2) * b)
    for name, constructor in fx.ALGORITHMS.items():
        needed = [k for k, v in inspect.signature(constructor).parameters.items() if v.default is v.empty]
        algorithm = constructor(**dict.fromkeys(needed, 0.1))

        def exchange(params: jax.Array, algorithm: fx.FedAlgorithm = algorithm) -> tuple[object, object, object]:
            message, client = algorithm.broadcast(algorithm.init(params)), algorithm.init_client(params)
            return message, algorithm.client_update(grad_fn, message, client, [jnp.float32(1.0)])[0], client

        message, upload, client = jax.eval_shape(exchange, params)
        kept = vectors(client)
        assert told[name] == (str(vectors(message)), str(vectors(upload)), str(kept) if kept else "nothing"), name


FEDOPTAX = [(page, line) for page, line in COMMANDS if line.startswith("fedoptax ")]


@pytest.mark.parametrize(("page", "line"), FEDOPTAX, ids=[f"{p.stem}-{i}" for i, (p, _) in enumerate(FEDOPTAX)])
def test_commands_of_a_page_parse(page, line):
    parse(line)


def test_each_reason_not_to_run_a_command_is_needed():
    assert [part for part in NOT_RUN if not any(part in line for _, line in COMMANDS)] == []


def excerpts(page: Path) -> list[str]:
    """The code in the third column of a page's tables of four columns."""
    rows = [row.split("|") for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
    return [code for row in rows if len(row) == 6 for code in re.findall(r"`([^`]+)`", row[3])]


def test_quoted_code_is_in_the_source():
    """White space and last commas aside; in which file is not looked at."""
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
    squeezed = re.sub(r"\s|,(?=[)\]}])", "", code)
    found = [
        (page.name, code) for page in PAGES if page.parent == ROOT / "docs" / "algorithms" for code in excerpts(page)
    ]
    assert len(found) > 100
    assert [(page, code) for page, code in found if re.sub(r"\s", "", code) not in squeezed] == []
